"""A failed scan of checkpoints: what is tried instead, the wait, and that it never means step 0."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import StartSurvey, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Survey, said
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.report.messages import news
from watchdog_train.report.summary import status_line
from watchdog_train.report.why_text import why_text

POLICY = Policy(recovery=Recovery(room_wait_s=100.0))
FAILED = Survey(findings=(), directories=(), problem="it was killed by signal 9", failed=True)
ENDED = (b.collecting("0001", "crash"), b.collected("0001", "crash"), b.exited(1), e.TreeGone())


def act(state: State, at: float, **seen: Any) -> Any:
    look = b.sample(at, keeper_alive=False, empty_looks=2)
    return decide(b.observation(look, **seen), state, POLICY, {})


def fails(state: State, at: float) -> State:
    """The scan fails, and what is said about it is recorded; nothing is planned."""
    action = act(state, at, survey=FAILED)
    said, *wait = action.events
    assert (said.kind, action.consumes) == ("scan", ("survey",))
    assert "killed by signal 9" in why_text(said.why)
    assert [type(event) for event in wait] in ([], [e.BackingOff])
    for event in action.events:
        state = evolve(state, msgspec.structs.replace(event, mono=at))
    return state


def scans(state: State, at: float) -> tuple[str, bool]:
    action = act(state, at)
    assert isinstance(action, StartSurvey), action
    return action.level, action.again


def test_a_failed_scan_is_tried_again_then_the_notes_are_used_then_the_run_waits() -> None:
    """Never a plan; the waits double, and the run ends with 75: another place may answer."""
    state = b.running(*ENDED)
    assert scans(state, 0.0) == ("full", False)
    state = fails(state, 1.0)
    assert scans(state, 1.0) == ("full", True)
    state = fails(state, 2.0)
    assert scans(state, 2.0) == ("noted", True)
    state = fails(state, 3.0)
    assert "waits" in why_text(state.noticed[-1].why)
    assert state.state == "backoff"
    look = b.observation(b.sample(8.0))
    line = status_line(state, look, state.progress)
    assert line == "wtrain: the next scan of checkpoints starts in 10 s"
    assert isinstance(act(state, 17.9), Wait)
    assert scans(state, 18.1) == ("full", True)
    state = fails(state, 19.0)
    assert scans(state, 19.0) == ("noted", True)
    state = fails(state, 20.0)
    assert isinstance(act(state, 49.9), Wait)
    state = fails(fails(state, 51.0), 52.0)
    assert isinstance(act(state, 100.9), Wait)
    assert scans(state, 101.1) == ("full", True)
    (given_up,) = act(state, 102.0, survey=FAILED).events
    assert isinstance(given_up, e.GivenUp)
    assert (given_up.exit_code, given_up.outcome) == (75, "gave_up")
    assert "step 0" in why_text(given_up.why)


def test_after_a_hang_it_is_quick_as_ever() -> None:
    hung = (b.stall(), b.collecting(), b.collected(), b.exited(None, 9), e.TreeGone())
    assert scans(b.running(*hung), 0.0) == ("quick", False)


def test_a_scan_that_answers_ends_the_trouble() -> None:
    """None found by a scan that saw every place means none; the next failure counts anew."""
    state = fails(fails(b.running(*ENDED), 1.0), 2.0)
    action = act(state, 3.0, survey=Survey(findings=(), directories=("/out",)))
    assert isinstance(action.events[-1], e.PlanMade)
    launching = e.AttemptLaunching(token="t2", plan=b.plan(2))
    assert evolve(state, launching).scan_failures == 0


def test_a_package_whose_format_fails_is_told_once() -> None:
    """The scan has not failed: the plan is made with what was found."""
    state, answer = b.running(*ENDED), Survey(findings=(), directories=(), warnings=("odd: no",))
    noticed, *planned = act(state, 1.0, survey=answer).events
    told = "the scan of checkpoints is not complete: odd: no"
    assert (noticed.kind, why_text(noticed.why)) == ("plugin", told)
    state = evolve(state, noticed)
    assert state.scan_failures == 0
    assert act(state, 1.0, survey=answer).events == tuple(planned)


def test_a_stop_ends_the_wait() -> None:
    state = fails(fails(fails(b.running(*ENDED), 1.0), 2.0), 3.0)
    (finished,) = act(evolve(state, b.stop()), 4.0).events
    assert (finished.exit_code, finished.outcome) == (77, "stopped")


def test_after_a_reboot_it_is_tried_at_once() -> None:
    """The monotonic clock began anew; the wait of before says nothing."""
    state = fails(fails(fails(b.running(*ENDED), 1e6), 1e6), 1e6)
    again = e.Adopted(pid=5, start=1, boot_id="b2", previous_pid=1, why=said("gone"))
    assert scans(evolve(state, again), 10.0) == ("full", False)


def test_a_person_is_told_of_the_wait_once() -> None:
    """Not of what is tried at once, nor of each try while it waits."""
    state, told = b.running(*ENDED), []
    for at in (1.0, 2.0, 3.0, 20.0, 21.0, 60.0):
        state = fails(state, at)
        told.append(news(state.noticed[-1], state) is not None)
    assert told == [False, False, True, False, False, False]
