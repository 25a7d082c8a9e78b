"""Requests to a training of several tasks: one to one of them is one to all, as is the proof."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.core.test_decide import KNOWN
from watchdog_train.core import events as e
from watchdog_train.core.actions import AskSave, AskStop, Record, SaveReport, Signal
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.peers import JobView, PeerView, Signs, Summary, summarise
from watchdog_train.core.model import MemberSample, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.requests import asking
from watchdog_train.core.requests.asking_all import (
    ask_save,
    follow_save,
    take_proof,
    waits_for_proof,
)
from watchdog_train.core.requests.request_answers import answers
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.report.why_text import why_text

POLICY = Policy()
LISTENS = Signs(ranks=1, world=2, can_save=True, can_stop=True)
SAVED = e.SaveProven(sequence=4, path="/out/9", step=9)


def requested(number: int) -> e.SaveRequested:
    return e.SaveRequested(by="wtrain save", sequence=number, can_be_asked=True)


def task(number: int, *more: e.AnyEvent) -> State:
    """A task of two that trains."""
    who = JobTask(job="slurm:1.0", source="slurm", task=number, tasks=2, here=2)
    coupled = e.TasksCoupled(together=True, world=2, why=said("it trains 1 of 2 ranks"))
    return b.running(e.TaskJoined(task=who), coupled, *KNOWN, *more)


def peer(*more: e.AnyEvent, signs: Signs = LISTENS) -> PeerView:
    summary = summarise(task(1, *more), signs)
    assert isinstance(summary, Summary)
    return PeerView(summary=summary, heard_s=0.1, alive=True)


def trainer(**changes: Any) -> MemberSample:
    return b.rank(**{"words": 7, "can_stop": True, "can_save": True, **changes})


def seen(*peers: PeerView, member: MemberSample | None = None, **changes: Any) -> Any:
    sample = b.sample(2.0, member or trainer(), empty_looks=2)
    return b.observation(sample, job=JobView(peers=peers), **changes)


def test_a_request_to_one_is_one_to_all() -> None:
    """Under the number that it has there; what has been taken over already is not asked again."""
    heard = seen(peer(requested(4)))
    assert follow_save(heard, task(0), POLICY) == AskSave(
        can_be_asked=True, by="task 1: wtrain save", relayed=True, number=4
    )
    assert follow_save(heard, task(0, requested(4)), POLICY) is None
    deaf = follow_save(seen(peer(requested(4)), member=trainer(can_save=False)), task(0), POLICY)
    assert isinstance(deaf, AskSave)
    assert not deaf.can_be_asked


def test_a_request_to_another_attempt_is_none_to_this_one() -> None:
    earlier = peer(requested(4))
    assert earlier.summary.save is not None
    word = msgspec.structs.replace(earlier.summary.save, attempt=2)
    summary = msgspec.structs.replace(earlier.summary, save=word)
    other = msgspec.structs.replace(earlier, summary=summary)
    assert follow_save(seen(other), task(0), POLICY) is None
    stopped = task(0, b.stop())
    assert follow_save(seen(peer(requested(4))), stopped, POLICY) is None


def test_a_new_request_has_a_number_that_nobody_had() -> None:
    """Ranks know by it what they agree on."""
    assert ask_save(seen(peer(requested(4))), task(0), "wtrain save").number == 5
    assert ask_save(seen(peer()), task(0), "wtrain save").number == 0


@pytest.mark.parametrize("heard", [(peer(signs=Signs(ranks=1, world=2)),), ()])
def test_nobody_is_asked_where_one_does_not_listen(heard: tuple[PeerView, ...]) -> None:
    """Its ranks would never agree with the others, and a wait for them costs the save's time."""
    assert not ask_save(seen(*heard), task(0), "wtrain save").can_be_asked
    action = decide(seen(*heard), task(0, b.stop()), POLICY, {})
    while isinstance(action, Record):  # the census of this moment, and the like
        state = task(
            0, b.stop(), *[msgspec.structs.replace(one, mono=2.0) for one in action.events]
        )
        action = decide(seen(*heard), state, POLICY, {})
    assert isinstance(action, Signal)
    assert "task" in why_text(action.why)
    assert "cannot be asked to save first" in why_text(action.why)


def test_all_are_asked_to_stop_where_all_listen() -> None:
    action = asking.stop(seen(peer(b.stop())), task(0, b.stop()), POLICY, {})
    assert isinstance(action, AskStop)
    assert action.expects_save


def test_one_proof_is_for_all() -> None:
    """Only the task of the rank that has saved sees a record of it."""
    mine = task(0, requested(4))
    assert take_proof(seen(peer(requested(4))), mine, POLICY) is None
    action = take_proof(seen(peer(requested(4), SAVED)), mine, POLICY)
    assert isinstance(action, Record)
    (proven,) = action.events
    assert proven == msgspec.structs.replace(SAVED, task=1)
    after = task(0, requested(4), proven)
    assert take_proof(seen(peer(requested(4), SAVED)), after, POLICY) is None
    newer = task(0, requested(5))
    assert take_proof(seen(peer(requested(4), SAVED)), newer, POLICY) is None


def test_the_proof_of_a_stop_is_waited_for() -> None:
    """A while after the end, by a task whose ranks have not saved; it is the others' word then."""
    asked = e.StopAsked(sequence=1, can_be_asked=True, why=said("asked"), step=7, expects_save=True)
    answered = e.RequestAnswered(request="stop", sequence=1, step=9)
    ended = (b.stop(), asked, answered, b.exited(0), e.TreeGone())
    mine = task(0, *ended)
    assert waits_for_proof(seen(peer(*ended)), mine)
    assert not waits_for_proof(seen(), mine)
    ours = SaveReport(path="/out/9", step=9, t=2e9)
    assert not waits_for_proof(seen(peer(*ended), last_save=ours), mine)
    proven = msgspec.structs.replace(SAVED, sequence=1, request="stop")
    action = take_proof(seen(peer(*ended, proven)), mine, POLICY)
    assert isinstance(action, Record)
    assert action.events == (msgspec.structs.replace(proven, task=1),)
    assert not waits_for_proof(seen(peer(*ended, proven)), task(0, *ended, *action.events))


def test_a_refusal_is_said_once_and_shortens_the_wait() -> None:
    """The ranks have found no step: nothing comes any more, and the signal is next."""
    asked = e.StopAsked(sequence=1, can_be_asked=True, why=said("asked"), step=7, expects_save=True)
    member = trainer(stop_refused=1, save_refused=4)
    mine = task(0, requested(4), b.stop(), asked)
    found = answers(seen(peer(), member=member), mine)
    assert [(type(one).__name__, one.request) for one in found] == [
        ("RequestRefused", "save"),
        ("RequestRefused", "stop"),
    ]
    after = task(0, requested(4), b.stop(), asked, *found)
    now = seen(peer(), member=member)
    assert answers(now, after) == []
    assert asking.ask_until(now, mine, POLICY.stopping) > now.now
    assert asking.ask_until(now, after, POLICY.stopping) == now.now
    action = decide(now, after, POLICY, {})
    while isinstance(action, Record):
        more = [msgspec.structs.replace(one, mono=2.0) for one in action.events]
        after = task(0, requested(4), b.stop(), asked, *found, *more)
        action = decide(now, after, POLICY, {})
    assert isinstance(action, Signal)
    assert "found no step" in why_text(action.why)
