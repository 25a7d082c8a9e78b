"""The kill sequences: whom to signal next, from what still lives."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, CleanUp, Signal, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import MemberSample, ProcessId, RankEnd, said
from watchdog_train.core.policy import Stopping
from watchdog_train.core.recovery import kill
from watchdog_train.core.recovery.kill import SIGINT, SIGKILL, SIGSTOP, SIGTERM
from watchdog_train.report.why_text import why_text

STOPPING = Stopping()
LAUNCHER, RANK0, RANK1, WORKER, HELPER = (
    b.member(b.ROOT, "launcher", name="torchrun"),
    b.rank(11, 0, ppid=b.ROOT),
    b.rank(12, 1, ppid=b.ROOT),
    b.member(13, "worker", rank=0, ppid=11),
    b.member(14, name="resource_tracker", ppid=11),
)
SHELL = b.member(b.ROOT, name="bash", handles_sigterm=False)
UV = b.member(b.ROOT, name="uv", handles_sigterm=True)
TEE = b.member(15, name="tee", ppid=b.ROOT)
TREE = (LAUNCHER, RANK0, RANK1, WORKER, HELPER)
HUNG = (b.stall(), b.collecting(), b.collected())


def who(*pids: int) -> tuple[ProcessId, ...]:
    return tuple(ProcessId(pid, pid + 1000) for pid in pids)


def entered(stage: Any, signal: int, *pids: int, sequence: Any = "hang") -> tuple[e.AnyEvent, ...]:
    intent = e.Signalling(
        sequence=sequence, stage=stage, targets=who(*pids), signal=signal, why=said("hung")
    )
    sent = (
        e.SentSignal(pid=pid, start=pid + 1000, signal=signal, role="rank", result="sent")
        for pid in pids
    )
    return (intent, e.Signalled(sent=tuple(sent)))


def next_one(
    *history: e.AnyEvent, alive: tuple[MemberSample, ...], at: float = 0.0, **changes: Any
) -> Action | None:
    poll = b.sample(at, *alive, b.keeper(), **changes)
    return kill.pursue(b.running(*HUNG, *history), poll, at, STOPPING, ask_until=STOPPING.ask_s)


def signal(action: Action | None) -> tuple[str, int, tuple[int, ...]]:
    assert isinstance(action, Signal)
    return action.stage, action.signal, tuple(target.pid for target in action.targets)


def first(sequence: Any, state: State, *alive: MemberSample) -> tuple[str, int, tuple[int, ...]]:
    return signal(kill.begin(sequence, state, b.sample(0.0, *alive, b.keeper()), "hung"))


@pytest.mark.parametrize(
    ("sequence", "alive", "expected"),
    [
        ("hang", TREE, ("freeze", SIGSTOP, (10,))),
        ("hang", TREE[1:], ("terminate", SIGTERM, (11, 12))),
        ("hang", (b.member(),), ("terminate", SIGTERM, (10,))),  # no heartbeat: the root
        ("hang", (WORKER,), ("kill", SIGKILL, (13,))),
        ("hang", (HELPER,), ("helpers", 0, ())),
        ("hang", (), ("keeper", 0, ())),
        ("stop", TREE, ("root", SIGTERM, (10,))),
        ("stop", TREE[1:], ("root", SIGTERM, (11, 12))),  # a shell that has died of the signal
        ("stop", (SHELL, RANK0, RANK1, TEE), ("root", SIGTERM, (11, 12))),
        ("stop", (UV, RANK0), ("root", SIGTERM, (10,))),
        ("stop", (SHELL, TEE), ("root", SIGTERM, (10,))),  # after the training, or without one
        ("stop", (TEE,), ("terminate", SIGTERM, (15,))),
        ("now", TREE, ("freeze", SIGSTOP, (10,))),
        ("now", TREE[1:], ("kill", SIGKILL, (11, 12, 13))),
        ("sweep", TREE[1:], ("terminate", SIGTERM, (11, 12, 13))),
    ],
)
def test_first_signal(
    sequence: Any, alive: tuple[MemberSample, ...], expected: tuple[str, int, tuple[int, ...]]
) -> None:
    """The first stage that somebody alive belongs to; zombies belong to none."""
    zombie = b.member(99, state="Z")
    assert first(sequence, b.running(), *alive, zombie) == expected


def test_a_hang_from_freeze_to_keeper() -> None:
    """Launchers frozen, ranks asked, all killed, helpers waited for, launchers, keeper."""
    freeze = entered("freeze", SIGSTOP, 10)
    assert signal(next_one(*freeze, alive=TREE)) == ("terminate", SIGTERM, (11, 12))
    term = entered("terminate", SIGTERM, 11, 12)
    assert isinstance(next_one(*term, alive=TREE, at=4.9), Wait)
    assert signal(next_one(*term, alive=TREE, at=5.0)) == ("kill", SIGKILL, (11, 12, 13))
    killed = entered("kill", SIGKILL, 11, 12, 13)
    rest = (LAUNCHER, HELPER)
    assert signal(next_one(*killed, alive=rest, at=0.1)) == ("helpers", 0, ())
    helpers = entered("helpers", 0)
    assert isinstance(next_one(*helpers, alive=rest, at=4.9), Wait)
    assert signal(next_one(*helpers, alive=rest, at=5.0)) == ("launchers", SIGKILL, (10, 14))
    assert signal(next_one(*helpers, alive=rest[:1], at=0.1)) == ("launchers", SIGKILL, (10,))


@pytest.mark.parametrize(
    ("stage", "number", "newcomer"),
    [("terminate", SIGTERM, b.rank(21, 2)), ("kill", SIGKILL, b.member(21, "worker"))],
)
def test_newcomers_are_chased(stage: Any, number: int, newcomer: MemberSample) -> None:
    """Who is born during a stage gets its signal, and moves no deadline."""
    history = entered(stage, number, 11, 12)
    assert signal(next_one(*history, alive=(*TREE[1:3], newcomer), at=1.0)) == (
        stage,
        number,
        (21,),
    )
    assert b.running(*HUNG, *history).kill.stage_mono == 0.0


def test_an_intent_without_its_deed_is_made_good() -> None:
    """A supervisor that died before it signalled leaves nobody unsignalled."""
    (both, _), (_, sent) = (entered("terminate", SIGTERM, *pids) for pids in ((11, 12), (11,)))
    intent = (both, sent)  # the second was not reached
    assert signal(next_one(*intent, alive=TREE, at=1.0)) == ("terminate", SIGTERM, (12,))
    root = entered("root", SIGTERM, 10, sequence="stop")[:1]
    assert signal(next_one(b.stop(), *root, alive=TREE, at=1.0)) == ("root", SIGTERM, (10,))


def test_a_stage_begins_when_its_signals_are_known_to_be_sent() -> None:
    """A leader of a thousand machines once called those survivors who had not been told yet."""
    state = b.running(*HUNG, *entered("kill", SIGKILL, 11))
    sample = b.sample(60.0, RANK0, b.keeper())
    seen = b.observation(sample)
    for obeyed_at, late in ((0.0, True), (59.0, False), (39.0, True), (inf, False)):
        sight = replace(seen.trees[0], obeyed_at=obeyed_at)
        action = kill.pursue_all(replace(seen, trees=(sight,)), state, STOPPING, ask_until=0.0)
        assert isinstance(action, Signal) == late, obeyed_at


@pytest.mark.parametrize(
    ("code", "alive", "pids", "number"),
    [
        (130, TREE, [10], SIGINT),
        (77, TREE, [10], SIGTERM),
        # Behind `timeout` in a script a rank may be outside of the group.
        (130, (TEE, RANK0, SHELL), [10, 11], SIGINT),
    ],
)
def test_ctrl_c_reaches_the_group_as_ctrl_c(
    code: int, alive: tuple[MemberSample, ...], pids: list[int], number: int
) -> None:
    """Every other request to stop is SIGTERM to the root alone."""
    action = kill.begin("stop", b.running(b.stop(code=code)), b.sample(0.0, *alive), "asked")
    assert isinstance(action, Signal)
    assert ([target.pid for target in action.targets], action.signal) == (pids, number)
    assert action.group is (number == SIGINT)


def test_a_wrapper_hears_of_it_when_the_training_has_ended() -> None:
    """A script that goes on with its next command is ended; one that ends by itself is not."""
    told = (b.stop(), *entered("root", SIGTERM, 11, sequence="stop"))
    assert isinstance(next_one(*told, alive=(SHELL, RANK0), at=59.0), Wait)
    end = RankEnd(pid=11, start=1011, rank=0, world_size=1, step=9, phase="train", at=3.0)
    assert isinstance(next_one(*told, alive=(SHELL, TEE), at=7.9, ended=(end,)), Wait)
    late = next_one(*told, alive=(SHELL, TEE), at=8.0, ended=(end,))
    assert signal(late) == ("root", SIGTERM, (10,))
    over = next_one(*told, alive=(), at=3.0, ended=(end,), empty_looks=2)
    assert signal(over) == ("keeper", 0, ())


ASKED = e.StopAsked(sequence=1, can_be_asked=True, why=said("stop"))
LEFT = (b.stop(), *entered("terminate", SIGTERM, 11, sequence="stop"))
ROOT_TOLD = (b.stop(), *entered("root", SIGTERM, 10, sequence="stop"))


@pytest.mark.parametrize(
    ("told", "alive", "at", "stage"),
    [
        # The grace period is a limit, not a delay.
        (entered("terminate", SIGTERM, 11, 12), (WORKER,), 0.2, "kill"),
        # A user's stop gives the root time to save.
        (ROOT_TOLD, TREE, 59.9, None),
        (ROOT_TOLD, TREE, 60.0, "freeze"),
        # A shell that waits for its command in the background has died of Ctrl-C.
        (LEFT, (RANK0,), 59.9, None),
        (LEFT, (RANK0,), 60.0, "kill"),
        # A training that can be asked is signalled only when it did not stop by itself.
        ((b.stop(), ASKED), TREE, 119.9, None),
        ((b.stop(), ASKED), TREE, 120.0, "root"),
    ],
)
def test_who_was_told_has_its_time(
    told: tuple[e.AnyEvent, ...], alive: tuple[MemberSample, ...], at: float, stage: str | None
) -> None:
    action = next_one(*told, alive=alive, at=at)
    assert isinstance(action, Wait) if stage is None else signal(action)[0] == stage


@pytest.mark.parametrize("stage", ["ask", "root"])
def test_a_second_request_does_not_wait(stage: Any) -> None:
    before = (ASKED,) if stage == "ask" else entered("root", SIGTERM, 10, sequence="stop")
    action = next_one(b.stop(), *before, b.stop("now"), alive=TREE[1:], at=1.0)
    assert signal(action) == ("kill", SIGKILL, (11, 12, 13))


def test_what_survives_sigkill_is_named() -> None:
    stuck = b.rank(11, state="D")
    killed = entered("kill", SIGKILL, 11)
    assert isinstance(next_one(*killed, alive=(stuck,), at=19.9), Wait)
    assert signal(next_one(*killed, alive=(stuck,), at=20.0)) == ("launchers", SIGKILL, (11,))
    again = entered("launchers", SIGKILL, 11)
    assert isinstance(next_one(*again, alive=(stuck,), at=19.9), Wait)
    action = next_one(*again, alive=(stuck,), at=20.0)
    assert isinstance(action.events[0], e.SurvivedKill)
    assert action.events[0].pids == (11,)
    assert "11 (D)" in why_text(action.events[0].why)


def test_a_straggler_of_the_last_stage_is_signalled() -> None:
    """Nobody is said to have survived a signal that was not sent."""
    waiting = entered("keeper", 0)
    action = next_one(*waiting, alive=(b.member(31),), at=10.0)
    assert signal(action) == ("launchers", SIGKILL, (31,))


@pytest.mark.parametrize(
    ("looks", "keeper_alive", "expected"),
    [(0, True, Wait), (1, False, Wait), (2, False, CleanUp), (2, None, CleanUp), (2, True, Signal)],
)
def test_two_looks_must_agree_that_nobody_is_left(
    looks: int, keeper_alive: bool | None, expected: type[Action]
) -> None:
    killed = entered("kill", SIGKILL, 11)
    action = next_one(*killed, alive=(), empty_looks=looks, keeper_alive=keeper_alive)
    assert isinstance(action, expected)


def test_a_keeper_that_stays_is_killed_last() -> None:
    """It ends by itself; when it does not it is ours to kill, and then to name."""
    waiting = entered("keeper", 0)
    assert isinstance(next_one(*waiting, alive=(), at=2.9, empty_looks=9), Wait)
    action = next_one(*waiting, alive=(), at=3.0, empty_looks=9)
    assert signal(action) == ("keeper", SIGKILL, (b.KEEPER,))
    killed = entered("keeper", SIGKILL, b.KEEPER)
    assert isinstance(next_one(*killed, alive=(), at=19.9, empty_looks=9), Wait)
    action = next_one(*killed, alive=(), at=20.0, empty_looks=9)
    assert isinstance(action.events[0], e.SurvivedKill)


def test_without_a_kill_there_is_nothing_to_pursue() -> None:
    assert next_one(alive=TREE) is None
