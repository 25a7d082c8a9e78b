"""What the leader of a job does between two attempts: one diagnosis of all evidence, one port."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Record, StartJoint, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.joint import diagnose_together
from watchdog_train.core.job.peers import JobView, PeerView, Signs, Summary, summarise, trouble_of
from watchdog_train.core.model import JointAnswer, Survey, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.between import between_attempts
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.report.why_text import why_text

EXPLAINED = b.explained("drop-last", family="rank-left-early", rank=1, confidence=0.62)


def task(number: int, *more: e.AnyEvent) -> State:
    """A task whose hung attempt is over, with its evidence on disk."""
    who = JobTask(job="slurm:1.0", source="slurm", task=number, tasks=2, here=2)
    coupled = e.TasksCoupled(together=True, world=2, why=said("it trains 1 of 2 ranks"))
    collected = msgspec.structs.replace(b.collected(), dir=f"/runs/task{number}/stalls/0001")
    end = (b.stall(), b.collecting(), collected, b.exited(None, signal=15), e.TreeGone())
    return b.running(e.TaskJoined(task=who), coupled, *end, *more)


def peer() -> PeerView:
    summary = summarise(task(1), Signs(ranks=1, world=2))
    assert isinstance(summary, Summary)
    return PeerView(summary=summary, heard_s=0.1, alive=True)


def seen(**changes: Any) -> Any:
    return b.observation(b.sample(5.0), job=JobView(peers=(peer(),)), **changes)


def test_the_bundles_of_all_tasks_are_read_together() -> None:
    """Ours first; while they are read nothing is planned, and the answer is recorded once."""
    state = task(0)
    trouble = trouble_of(task(1))
    assert trouble is not None
    assert trouble.bundle == "/runs/task1/stalls/0001"
    started = diagnose_together(seen(), state)
    assert isinstance(started, StartJoint)
    assert started.bundles == ("/runs/task0/stalls/0001", "/runs/task1/stalls/0001")
    assert isinstance(diagnose_together(seen(running=frozenset({"joint"})), state), Wait)
    done = diagnose_together(seen(joint=JointAnswer(explanation=EXPLAINED)), state)
    assert isinstance(done, Record)
    assert done.consumes == ("joint",)
    (event,) = done.events
    assert isinstance(event, e.StallExplained)
    assert event.tasks == (0, 1)
    after = task(0, *done.events)
    assert after.stalls[-1].explanation == EXPLAINED
    assert diagnose_together(seen(), after) is None


def test_without_an_answer_it_goes_on_and_says_so() -> None:
    """A diagnosis is no reason to wait for ever."""
    failed = JointAnswer(explanation=None, problem="it left no answer")
    done = diagnose_together(seen(joint=failed), task(0))
    assert isinstance(done, Record)
    (event,) = done.events
    assert isinstance(event, e.Noticed)
    assert "it left no answer" in why_text(event.why)
    assert diagnose_together(seen(), task(0, event)) is None


def test_a_run_of_its_own_has_nothing_to_join() -> None:
    """Also a task whose peers have no evidence."""
    alone = b.running(b.stall(), b.collecting(), b.collected(), b.exited(1), e.TreeGone())
    assert diagnose_together(b.observation(b.sample(5.0)), alone) is None
    assert diagnose_together(b.observation(b.sample(5.0), job=JobView()), task(0)) is None


def test_a_taken_port_is_replaced_in_the_plan() -> None:
    """With the reason; a free one is left as it was set."""
    crashed = (b.exited(1), b.collecting(why="crash"), b.collected(why="crash"), e.TreeGone())
    state = b.running(*crashed)
    survey = Survey(findings=(), directories=())
    for port, env in ((None, {}), (41234, {"MASTER_PORT": "41234"})):
        poll = b.sample(5.0, keeper_alive=False, empty_looks=2)
        made = between_attempts(
            b.observation(poll, survey=survey, other_port=port), state, Policy(), {}
        )
        assert isinstance(made, Record)
        (plan,) = [one.plan for one in made.events if isinstance(one, e.PlanMade)]
        assert plan.env == env
        assert ("meet at 41234" in why_text(plan.why)) == (port is not None)
