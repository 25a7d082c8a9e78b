"""GPU memory before a restart: ours is waited for, others are named, the unknown stops nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Launch, Record, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import gpu as g
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.recovery.gpu_memory import (
    ANSWER_S,
    SAY_AGAIN_S,
    UNNAMED_S,
    claimed,
    hold,
    strangers,
)
from watchdog_train.report.why_text import why_text

GB = 1 << 30
POLICY = Policy(recovery=Recovery(gpu_wait_s=100.0))
ALICE = g.GpuHolder(device=0, pid=4242, memory_bytes=61 * GB, name="pid 4242 (python, user alice)")
MINE = g.GpuHolder(device=0, pid=b.ROOT, memory_bytes=70 * GB, name="pid 10")


def device(index: int, *held: tuple[int, int | None], total: int = 80 * GB) -> g.GpuDevice:
    """`held`: pid and bytes of each process."""
    used = sum(size or 0 for _, size in held)
    return g.GpuDevice(
        index=index,
        uuid=f"GPU-{index}",
        memory_used_bytes=used,
        memory_total_bytes=total,
        processes=tuple(g.GpuProcess(pid=pid, memory_bytes=size) for pid, size in held),
    )


def look(*devices: g.GpuDevice, **more: Any) -> g.GpuReading:
    return g.GpuReading(devices=devices, **more)


AT_WORK = look(device(0, (10, 40 * GB), (11, 20 * GB)), device(1, (7, GB)))
JOB = claimed(g.GpuClaim(), AT_WORK, {10, 11})


def test_a_claim_is_the_most_that_was_held() -> None:
    """It grows, does not shrink, and knows only devices on which the job has memory."""
    assert [(need.device, need.bytes) for need in JOB.needs] == [("GPU-0", 60 * GB)]
    later = claimed(JOB, look(device(0, (10, 5 * GB)), device(1, (10, 2 * GB), (7, GB))), {10, 11})
    assert [(need.device, need.bytes) for need in later.needs] == [
        ("GPU-0", 60 * GB),
        ("GPU-1", 2 * GB),
    ]
    assert later.beside == {7}


def test_room_for_the_claim_is_enough() -> None:
    """A small process of somebody else on the same device stands in nobody's way."""
    assert hold(JOB, look(device(0)), {10, 11}).is_free
    assert hold(JOB, look(device(0, (4242, 19 * GB))), {10, 11}).is_free
    assert hold(JOB, look(device(0), device(1, (7, 79 * GB))), {10, 11}).is_free


def test_who_has_taken_the_room_is_named() -> None:
    found = hold(JOB, look(device(0, (4242, 61 * GB))), {10, 11})
    assert [(one.pid, one.device) for one in found.others] == [(4242, 0)]
    assert not found.ours
    assert not found.unnamed


def test_a_process_of_ours_is_waited_for_even_where_there_is_room() -> None:
    """Nothing is started over memory of the last attempt."""
    found = hold(JOB, look(device(0, (11, GB))), {10, 11})
    assert [one.pid for one in found.ours] == [11]
    assert not found.is_free


def test_a_neighbour_of_unknown_size_who_was_there_all_the_time_is_none() -> None:
    """A driver that tells no sizes: only whoever has come meanwhile can be meant."""
    claim = claimed(g.GpuClaim(), look(device(0, (10, None), (7, None), total=0)), {10})
    full = g.GpuDevice(
        index=0,
        uuid="GPU-0",
        memory_used_bytes=70 * GB,
        processes=(g.GpuProcess(pid=7), g.GpuProcess(pid=8)),
    )
    assert [one.pid for one in hold(claim, look(full), {10}).others] == [8]


def test_in_a_container_nobody_can_be_named() -> None:
    """The driver's pids are the machine's: 10 there is not our 10."""
    claim = claimed(g.GpuClaim(), look(device(0, (31337, 60 * GB)), foreign_pids=True), {10})
    found = hold(claim, look(device(0, (10, 60 * GB)), foreign_pids=True), {10})
    assert (found.ours, found.others, found.unnamed) == ((), (), (0,))
    assert strangers(claim, look(device(0, (10, 60 * GB)), foreign_pids=True), {10}) == ()


def act(state: State, found: g.GpuHold | None, at: float) -> Any:
    seen = b.observation(b.sample(at, keeper_alive=False, empty_looks=2), gpu_hold=found)
    return decide(seen, state, POLICY, {})


def after(state: State, action: Any, at: float) -> State:
    assert isinstance(action, Record), action
    (event,) = action.events
    return evolve(state, replace(event, mono=at))


@pytest.mark.parametrize(
    "found", [None, g.GpuHold(), g.GpuHold(answered=False, asked_at=-ANSWER_S)]
)
def test_nothing_known_and_nobody_there_launches(found: g.GpuHold | None) -> None:
    assert isinstance(act(b.waiting(), found, 1.0), Launch)


def test_the_driver_is_asked_once_more_after_the_end() -> None:
    """What it said while the job lived counts for nothing."""
    action = act(b.waiting(), g.GpuHold(answered=False, asked_at=0.5), 1.0)
    assert isinstance(action, Wait)
    assert 1.0 < action.until <= 2.0


def test_somebody_else_is_named_waited_for_and_then_the_run_ends_with_75() -> None:
    taken = g.GpuHold(others=(ALICE,))
    action = act(b.waiting(), taken, 1.0)
    assert isinstance(action, Record)
    (said,) = action.events
    assert isinstance(said, e.GpuMemoryHeld)
    assert "user alice" in why_text(said.why)
    assert "61.0 GiB on GPU 0" in why_text(said.why)
    assert "the training itself is not out of memory" in why_text(said.why)
    state = after(b.waiting(), action, 1.0)
    assert state.state == "backoff"
    assert isinstance(act(state, taken, 50.0), Wait)
    action = act(state, taken, 101.0)
    assert isinstance(action, Record)
    (given_up,) = action.events
    assert isinstance(given_up, e.GivenUp)
    assert (given_up.exit_code, given_up.outcome) == (75, "gave_up")
    assert "pid 4242 (python, user alice)" in why_text(given_up.why)


def test_memory_that_comes_back_lets_the_attempt_begin() -> None:
    state = after(b.waiting(), act(b.waiting(), g.GpuHold(ours=(MINE,)), 1.0), 1.0)
    action = act(state, g.GpuHold(), 31.0)
    assert action == Record(events=(e.GpuMemoryFree(waited_s=30.0),))
    assert isinstance(act(after(state, action, 31.0), g.GpuHold(), 31.0), Launch)


def test_another_holder_is_said_but_moves_no_limit() -> None:
    """A queue of strangers cannot keep the run for ever."""
    state = after(b.waiting(), act(b.waiting(), g.GpuHold(ours=(MINE,)), 1.0), 1.0)
    assert isinstance(act(state, g.GpuHold(others=(ALICE,)), 1.5), Wait)
    again = act(state, g.GpuHold(others=(ALICE,)), 2.0 + SAY_AGAIN_S)
    state = after(state, again, 2.0 + SAY_AGAIN_S)
    assert state.gpu_held.others == (ALICE,)
    (given_up,) = act(state, g.GpuHold(others=(ALICE,)), 101.0).events
    assert isinstance(given_up, e.GivenUp)


def test_memory_of_nobody_holds_a_run_only_for_a_while() -> None:
    """A container: whose it is cannot be told, so it ends no run."""
    state = after(b.waiting(), act(b.waiting(), g.GpuHold(unnamed=(0,)), 1.0), 1.0)
    assert isinstance(act(state, g.GpuHold(unnamed=(0,)), UNNAMED_S), Wait)
    assert isinstance(act(state, g.GpuHold(unnamed=(0,)), UNNAMED_S + 1.5), Launch)


def test_a_stop_ends_the_wait() -> None:
    state = after(b.waiting(), act(b.waiting(), g.GpuHold(others=(ALICE,)), 1.0), 1.0)
    stopped = evolve(state, b.stop())
    (finished,) = act(stopped, g.GpuHold(others=(ALICE,)), 2.0).events
    assert isinstance(finished, e.RunFinished)
    assert finished.exit_code == 77
