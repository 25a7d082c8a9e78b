"""Whose process is it: the judgement over sessions, and what a kill does with it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import CleanUp, Signal
from watchdog_train.core.decide import decide
from watchdog_train.core.model import Daemon, DaemonFacts, Hold, ProcessId, said
from watchdog_train.core.policy import Policy, Stopping
from watchdog_train.core.recovery.daemons import judge, matching
from watchdog_train.core.recovery.kill import KEEPER_S, SIGKILL, SIGTERM, begin, pursue

PIPE, GPU = Hold(ground="pipe", what="pid 11"), Hold(ground="gpu", what="/dev/nvidia-uvm")


def facts(pid: int, session: int | None = None, **changes: Any) -> DaemonFacts:
    return DaemonFacts(
        process=ProcessId(pid, pid + 1000),
        command="x",
        session=pid if session is None else session,
        **changes,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([facts(20)], ["none"]),
        ([facts(20, holds=(PIPE, GPU))], ["pipe"]),
        ([facts(20, own_terminal=True, holds=(GPU,))], ["own-terminal"]),
        ([facts(20, client="port 8888", holds=(GPU,))], ["clients"]),
        ([facts(20, take="x", own_terminal=True)], ["take"]),
        ([facts(20, take="x", leave="x", holds=(GPU,))], ["leave"]),
        # A session is one: what its leader or its helper holds, all of it holds.
        ([facts(20), facts(21, 20, holds=(PIPE,))], ["pipe", "pipe"]),
        ([facts(20, 20, leave="x"), facts(21, 20, holds=(PIPE,))], ["leave", "leave"]),
        ([facts(20), facts(21, holds=(PIPE,))], ["none", "pipe"]),
        # The kernel of a notebook goes with its server, in whatever session it is.
        (
            [facts(21, parent_session=20, holds=(GPU,)), facts(20, client="port 8888")],
            ["clients", "clients"],
        ),
        ([facts(20, holds=(PIPE,)), facts(21, parent_session=20)], ["pipe", "none"]),
    ],
)
def test_judgement(found: list[DaemonFacts], expected: list[str]) -> None:
    """The user's word, then who uses it, then what it holds; oldest first."""
    assert [daemon.hold.ground for daemon in judge(found)] == expected


@pytest.mark.parametrize(
    ("pattern", "found"), [("tensorboard", True), ("tmux*foo", False), ("log?ir", True)]
)
def test_patterns_are_searched_in_the_command_line(pattern: str, found: bool) -> None:
    command = "/usr/bin/python -m tensorboard --logdir runs"
    assert (matching(command, (pattern,)) == pattern) is found


def left(pid: int) -> Daemon:
    return judge([facts(pid)])[0]


def test_nobody_waits_for_or_signals_who_is_left() -> None:
    """It is no target; the keeper is told to end beside it, and killed only if it does not."""
    state = b.running(b.stall(), b.collecting(), b.collected())
    rank, stays = b.rank(11, 0), b.member(20, name="tmux")
    poll = b.sample(0.0, rank, stays, b.keeper(), daemons=(left(20),))
    action = begin("now", state, poll, "hung")
    assert isinstance(action, Signal)
    assert [target.pid for target in action.targets] == [11]
    poll = b.sample(1.0, stays, b.keeper(), daemons=(left(20),), empty_looks=2)
    action = begin("now", state, poll, "hung")
    assert isinstance(action, Signal)
    keeper = b.keeper().member.identity
    assert (action.stage, action.signal, action.targets) == ("keeper", SIGTERM, (keeper,))
    told = e.Signalling(
        sequence="now", stage="keeper", targets=(keeper,), signal=SIGTERM, why=said("hung")
    )
    state = b.running(b.stall(), b.collecting(), b.collected(), told)
    late = pursue(state, poll, KEEPER_S + 1.0, Stopping(), ask_until=0.0)
    assert (late.signal, late.targets) == (SIGKILL, (keeper,))
    gone = b.sample(2.0, stays, daemons=(left(20),), empty_looks=2, keeper_alive=False)
    assert isinstance(pursue(state, gone, 2.0, Stopping(), ask_until=0.0), CleanUp)


def test_a_judgement_is_recorded_before_anything_is_killed() -> None:
    """And again only when it has changed; what is left is known after the attempt, too."""
    state = b.running()
    poll = b.sample(1.0, b.rank(11, 0), b.member(20), b.keeper(), daemons=(left(20),))
    seen = decide(b.observation(poll), state, Policy(), {})
    events = getattr(seen, "events", ())
    assert e.DaemonsJudged(daemons=(left(20),)) in events
    state = b.running(*events)
    assert state.daemons == (left(20),)
    again = getattr(decide(b.observation(poll), state, Policy(), {}), "events", ())
    assert not [event for event in again if isinstance(event, e.DaemonsJudged)]
    state = b.running(*events, b.exited(1), e.TreeGone(left=(left(20),)))
    assert (state.daemons, state.left) == ((), (left(20),))
