"""A full disk before a restart: waited for, said once, and the end has the code of a full place."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Launch, Record, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.evolve import evolve
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.core.state import State

FULL = "No space left on device"
POLICY = Policy(recovery=Recovery(room_wait_s=100.0))


def waiting() -> State:
    """A run between two attempts, with a plan."""
    gone = (b.exited(1), e.TreeGone(), e.PlanMade(plan=b.plan(2)))
    return b.running(b.collecting("0001", "crash"), b.collected("0001", "crash"), *gone)


def act(state: State, lacking: str | None, at: float) -> Any:
    seen = b.observation(b.sample(at, keeper_alive=False, empty_looks=2), no_room=lacking)
    return decide(seen, state, POLICY, {})


def told(state: State, at: float) -> State:
    action = act(state, FULL, at)
    assert isinstance(action, Record), action
    (said,) = action.events
    assert isinstance(said, e.Noticed)
    assert (said.kind, FULL in said.why) == ("room", True)
    return evolve(state, msgspec.structs.replace(said, mono=at))


def test_with_room_it_is_launched() -> None:
    """As ever."""
    assert isinstance(act(waiting(), None, 1.0), Launch)


def test_a_full_disk_is_said_once_and_waited_for() -> None:
    """And the attempt begins when there is room again."""
    state = told(waiting(), 1.0)
    assert isinstance(act(state, FULL, 50.0), Wait)
    assert isinstance(act(state, None, 51.0), Launch)


def test_the_wait_has_an_end() -> None:
    """The run ends with 75: another place may have room."""
    (given_up,) = act(told(waiting(), 1.0), FULL, 102.0).events
    assert isinstance(given_up, e.GivenUp)
    assert (given_up.exit_code, given_up.outcome) == (75, "gave_up")
    assert FULL in given_up.why


def test_a_stop_ends_the_wait() -> None:
    """Whoever does not want to wait says so."""
    (finished,) = act(evolve(told(waiting(), 1.0), b.stop()), FULL, 2.0).events
    assert isinstance(finished, e.RunFinished)
    assert finished.exit_code == 77
