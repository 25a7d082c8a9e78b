"""Requests that the training answers: what is asked, how long that may take, and what proves it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.core.test_decide import kinds, run, then
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.notices.poll_events import news
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.outcome import finish
from watchdog_train.core.requests import asking
from watchdog_train.core.requests.asking import answers
from watchdog_train.report.why_text import why_text

POLICY = Policy()
STOPPED = b.stop()
ASK = e.StopAsked(sequence=1, can_be_asked=True, why=m.said("asked"), step=7, expects_save=True)
SAVED = m.SaveRecord(format="hf", path="/out/9", step=9, t=1e9 + 1.0)
SAVE_ASKED = e.SaveRequested(by="wtrain save", sequence=4, can_be_asked=True)
SUSPECT = Verdict(kind="suspect", age_s=99.0)


def listener(**changes: Any) -> m.MemberSample:
    """A Trainer at step seven."""
    return b.rank(**{"words": 7, "can_stop": True, "can_save": True, **changes})


def act(state: State, *members: m.MemberSample, at: float = 1.0, **seen: Any) -> Any:
    verdict = seen.pop("verdict", None)
    poll = b.sample(at, *(members or (listener(),)), empty_looks=2)
    return then(b.observation(poll, verdict, **seen), state)


def whole(*, whole: bool, path: str = "/out/9", beside_writers: bool = False) -> m.Survey:
    finding = m.CheckpointFinding(
        path=path, format="hf", step=9, whole=whole, said="it ends early", how_checked="recorded"
    )
    return m.Survey(findings=(finding,), directories=("/out",), beside_writers=beside_writers)


# Asking to stop ------------------------------------------------------------------------------


def test_a_trainer_is_asked_to_save_and_stop() -> None:
    action = act(run(STOPPED))
    assert (action.step, action.expects_save) == (7, True)
    assert action.why == m.Why("asked-to-save", who="wtrain stop")


def test_a_loop_is_asked_to_stop() -> None:
    """What should_stop() leads to nobody knows: a save is not promised."""
    action = act(run(STOPPED), listener(can_save=False))
    assert not action.expects_save
    assert "saving is up to it" in why_text(action.why)


@pytest.mark.parametrize(
    ("member", "code"), [(b.rank(words=7), "cannot-ask"), (b.rank(), "no-step-yet")]
)
def test_who_cannot_be_asked_is_called_so(member: m.MemberSample, code: m.WhyCode) -> None:
    action = act(run(STOPPED), member)
    assert isinstance(action, a.Signal)
    assert action.why == m.Why("asked", who="wtrain stop").plus(m.Why(code))


def test_a_save_under_way_is_not_interrupted() -> None:
    """It gets the grace period, said once; a second request, a silence, and the end of the grace
    period end that."""
    saving = b.rank(words=7, phase="checkpoint")
    assert kinds(act(run(STOPPED), saving)) == ["Noticed"]
    noticed = e.Noticed(kind="save", pids=(), why=m.said("a save is under way"))
    state = run(STOPPED, noticed)
    assert isinstance(act(state, saving, at=59.0), a.Wait)
    assert isinstance(act(state, saving, at=61.0), a.Signal)
    assert isinstance(act(state, saving, at=5.0, verdict=SUSPECT), a.Signal)
    assert isinstance(act(run(b.stop("now")), saving), a.Signal)


# How long an answer may take -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "verdict", "waits_s"),
    [
        pytest.param(listener(words=200), None, 120.0, id="steps-on-and-does-not-answer"),
        pytest.param(listener(), None, 1800.0, id="in-a-long-step"),
        pytest.param(listener(words=9), None, 1800.0, id="the-step-was-not-agreed-yet"),
        pytest.param(listener(words=200, phase="eval"), None, 1800.0, id="evaluates"),
        pytest.param(listener(words=200, phase="checkpoint"), None, 1800.0, id="saves"),
        pytest.param(listener(phase="eval"), SUSPECT, 120.0, id="hangs"),
    ],
)
def test_an_answer_has_its_time(
    member: m.MemberSample, verdict: Verdict | None, waits_s: float
) -> None:
    """Two minutes for who could have answered, longer for who could not yet."""
    state = run(STOPPED, ASK)
    assert isinstance(act(state, member, at=waits_s - 1.0, verdict=verdict), a.Wait)
    action = act(state, member, at=waits_s + 1.0, verdict=verdict)
    assert action.stage == "root"
    assert action.why.because == (m.Why("not-ended-in-time", seconds=waits_s + 1.0),)


def test_after_the_answer_the_time_begins_anew() -> None:
    """It came in the last second, and the save is short: no signal then."""
    answered = e.RequestAnswered(request="stop", sequence=1, step=8)
    state = run(STOPPED, ASK)
    state = msgspec.structs.replace(
        run(STOPPED, ASK, answered),
        stop_asked=msgspec.structs.replace(state.stop_asked, answered_mono=119.0),  # type: ignore[type-var]
    )
    done = listener(words=9, phase="finishing", can_stop=False, stop_answered=1)
    assert isinstance(act(state, done, at=238.0), a.Wait)
    assert isinstance(act(state, done, at=240.0), a.Signal)


# Answers and proof ---------------------------------------------------------------------------


def heard(state: State, member: m.MemberSample) -> list[str]:
    poll = b.sample(1.0, member, keeper_alive=True)
    told = news(b.observation(poll), state, POLICY)
    return [event.request for event in told if isinstance(event, e.RequestAnswered)]


def test_an_answer_is_told_once() -> None:
    answer = e.RequestAnswered(request="save", sequence=4, step=8)
    assert heard(run(SAVE_ASKED), listener(save_answered=3)) == []
    assert heard(run(SAVE_ASKED), listener(save_answered=4)) == ["save"]
    assert heard(run(SAVE_ASKED, answer), listener(save_answered=4)) == []
    assert heard(run(STOPPED, ASK), listener(stop_answered=1)) == ["stop"]
    assert heard(run(STOPPED, ASK), listener()) == []


def test_a_stop_is_proven_like_a_save() -> None:
    """One checkpoint proves both, when both were asked for."""
    state = run(STOPPED, ASK)
    assert isinstance(act(state, last_save=SAVED), a.StartSurvey)
    action = act(state, last_save=SAVED, survey=whole(whole=True))
    assert kinds(action) == ["SaveProven"]
    assert action.events[0].request == "stop"
    both = act(run(SAVE_ASKED, STOPPED, ASK), last_save=SAVED, survey=whole(whole=True))
    assert [(event.request, event.sequence) for event in both.events] == [("save", 4), ("stop", 1)]


def test_an_older_save_proves_nothing() -> None:
    old = msgspec.structs.replace(SAVED, t=1e9 - 1.0)
    assert isinstance(act(run(STOPPED, ASK), last_save=old), a.Wait)


GONE = (b.exited(0), e.TreeGone())


def test_the_last_save_is_looked_at_after_the_end() -> None:
    """A training that saves and ends at once is gone before the survey is: the run waits for it."""
    state = run(STOPPED, ASK, *GONE)
    assert isinstance(act(state, b.keeper(), last_save=SAVED), a.StartSurvey)
    waiting = act(state, b.keeper(), last_save=SAVED, running=frozenset(("survey",)))
    assert isinstance(waiting, a.Wait)
    proven = act(state, b.keeper(), last_save=SAVED, survey=whole(whole=True))
    assert kinds(proven) == ["SaveProven"]
    assert proven.consumes == ("survey",)
    end = act(run(STOPPED, ASK, *GONE, *proven.events), b.keeper(), last_save=SAVED)
    assert kinds(end) == ["RunFinished"]
    assert end.events[0].warning is None


def test_a_last_save_that_is_not_whole_is_said() -> None:
    state = run(STOPPED, ASK, *GONE)
    told = act(state, b.keeper(), last_save=SAVED, survey=whole(whole=False))
    assert kinds(told) == ["Noticed"]
    assert "it ends early" in why_text(told.events[0].why)
    end = act(run(STOPPED, ASK, *GONE, *told.events), b.keeper(), last_save=SAVED)
    assert kinds(end) == ["RunFinished"]
    assert "no valid checkpoint was seen since" in why_text(end.events[0].warning)


def test_what_a_survey_saw_beside_the_training_is_not_its_last_word() -> None:
    """It began before the end and saw a file that moved: looked at again."""
    state = run(STOPPED, ASK, *GONE)
    torn = whole(whole=False, beside_writers=True)
    again = act(state, b.keeper(), last_save=SAVED, survey=torn)
    assert (again.events, again.consumes) == ((), ("survey",))
    assert isinstance(act(state, b.keeper(), last_save=SAVED), a.StartSurvey)
    good = whole(whole=True, beside_writers=True)
    assert kinds(act(state, b.keeper(), last_save=SAVED, survey=good)) == ["SaveProven"]


def test_a_plan_is_not_made_from_a_survey_beside_the_training() -> None:
    """It was asked for the proof of a save, and came home after a crash: a newer one may exist."""
    state = run(SAVE_ASKED, b.exited(1), e.TreeGone())
    early = whole(whole=False, beside_writers=True)
    dropped = act(state, b.keeper(), last_save=SAVED, survey=early)
    assert (dropped.events, dropped.consumes) == ((), ("survey",))
    planned = act(state, b.keeper(), last_save=SAVED, survey=whole(whole=False))
    assert "PlanMade" in kinds(planned)


def test_a_stop_without_a_save_is_said() -> None:
    assert "asked to save first" in why_text(finish(run(STOPPED, ASK, *GONE)).warning)
    loop = msgspec.structs.replace(ASK, expects_save=False)
    assert finish(run(STOPPED, loop, *GONE)).warning is None


def test_a_save_that_nobody_makes_is_said_once() -> None:
    assert isinstance(act(run(SAVE_ASKED), at=599.0), a.Wait)
    action = act(run(SAVE_ASKED), at=601.0)
    assert kinds(action) == ["Noticed"]
    assert "no step has ended that could take it" in why_text(action.events[0].why)
    answer = e.RequestAnswered(request="save", sequence=4, step=8)
    taken = act(run(SAVE_ASKED, answer), at=601.0)
    assert "the training has taken it" in why_text(taken.events[0].why)
    assert isinstance(act(run(SAVE_ASKED, *action.events), at=700.0), a.Wait)
    refused = e.SaveRequested(by="wtrain save", sequence=1, can_be_asked=False)
    assert isinstance(act(run(refused), at=601.0), a.Wait)


@pytest.mark.parametrize("can_save", [True, False])
def test_a_request_to_save_says_whether_anybody_listens(can_save: bool) -> None:
    from watchdog_train.core.actions import Request

    action = act(run(), listener(can_save=can_save), request=Request(kind="save", by="wtrain save"))
    assert action == a.AskSave(can_be_asked=can_save, by="wtrain save")


def test_a_refusal_is_said_once_and_shortens_the_wait() -> None:
    """Ranks of several tasks have found no step: nothing comes any more, and the signal is next."""
    history = (e.TaskJoined(task=b.node_task(0, None)), SAVE_ASKED, STOPPED, ASK)
    member = listener(stop_refused=1, save_refused=4)
    now = b.observation(b.sample(2.0, member, empty_looks=2))
    found = answers(now, run(*history))
    assert [(type(one).__name__, one.request) for one in found] == [
        ("RequestRefused", "save"),
        ("RequestRefused", "stop"),
    ]
    after = run(*history, *found)
    assert answers(now, after) == []
    assert asking.ask_until(now, run(*history), POLICY) > now.now
    assert asking.ask_until(now, after, POLICY) == now.now
    action = act(after, member, at=2.0)
    assert isinstance(action, a.Signal)
    assert "no common step" in why_text(action.why)
