"""Which machine is named when a job is given back with 75, to whom, and when nobody is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.actions import Observation, Record, StartJoint, TreeSight, Wait
from watchdog_train.core.answers import bring_home
from watchdog_train.core.decide import decide
from watchdog_train.core.detection.detect import Signs
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.job import machines
from watchdog_train.core.model.explanation import Who
from watchdog_train.core.policy import Job, Policy, Recovery
from watchdog_train.core.recovery.outcome import finish
from watchdog_train.core.recovery.restart import between_attempts
from watchdog_train.report.document import Document
from watchdog_train.report.run_json import status_object
from watchdog_train.report.summary import closing_lines
from watchdog_train.report.why_text import why_text

POLICY = Policy(recovery=Recovery(max_restarts=0), job=Job(gather_s=60.0, lost_s=60.0))
BAD = m.GuiltyNode(host="gpu-17", why=m.said("it did not come"))
BOTH = ("", "node1")
OURS, THEIRS = "/r/stalls/0001", "/r/stalls/0001/machines/node1"


def began(meet: str | None = "tcp://n0:29501") -> tuple[e.AnyEvent, ...]:
    """The leader of two nodes, which has heard the other one."""
    started = msgspec.structs.replace(b.RUN_STARTED, host="n0")
    heard = e.MachineHeard(
        where="node1", hostname="n1", place="p1", run_dir="/r1", agent=m.ProcessId(5, 5)
    )
    return (started, e.TaskJoined(task=b.node_task(0, meet)), heard)


def training(*more: e.AnyEvent, meet: str | None = "tcp://n0:29501") -> State:
    """Both nodes train."""
    root = {"pid": b.ROOT, "start": b.ROOT + 1000, "keeper_pid": 9, "keeper_start": 1009}
    launched = [e.AttemptLaunched(where=host, **root) for host in BOTH]
    launching = e.AttemptLaunching(token="t", plan=b.plan(), where=BOTH)
    return b.fold((*began(meet), e.PlanMade(plan=b.plan()), launching, *launched, *more))


def node(*more: e.AnyEvent, meet: str | None = "tcp://n0:29501") -> State:
    """A hung attempt is over, with the evidence of both on disk."""
    events: list[e.AnyEvent] = [b.stall()]
    for host in BOTH:
        events += [
            msgspec.structs.replace(one, where=host)
            for one in (b.collecting(), b.collected(), b.exited(None, signal=15), e.TreeGone())
        ]
    return training(*events, *more, meet=meet)


def look(at: float, *, silent_s: float = 0.0, **changes: Any) -> Observation:
    """Both machines, of which the other one was heard so long ago."""
    seen = b.observation(b.sample(at, keeper_alive=False, empty_looks=2), **changes)
    other = TreeSight(
        sample=m.together((), at=at, host="node1"), is_heard=silent_s < 10.0, silent_s=silent_s
    )
    return msgspec.structs.replace(seen, trees=(*seen.trees, other))


def asks(silent: tuple[str, ...] = ()) -> State:
    """A stall with evidence of all that are heard, before anything is ended."""
    heard = [host for host in BOTH if host not in silent]
    lost = [e.MachineLost(where=host, why=m.said("silent")) for host in silent]
    events = [
        msgspec.structs.replace(one, where=host)
        for one in (b.collecting(), b.collected())
        for host in heard
    ]
    return training(*lost, b.stall(), *events)


def given_up(action: Any) -> e.GivenUp:
    assert isinstance(action, Record)
    (event,) = [one for one in action.events if isinstance(one, e.GivenUp)]
    return event


def ended(state: State, *events: e.AnyEvent) -> State:
    """The state after some last events and the end that follows from them."""
    for event in events:
        state = evolve(state, event)
    return evolve(state, machines.with_guilty_nodes(finish(state), state))


def found(rank: int | None, family: str | None = "rank-left-early") -> m.Explanation:
    return b.explained(family=family, rank=rank)


def diagnosed(told: m.Explanation, host: str | None, stall_id: str = "0001") -> e.StallExplained:
    return e.StallExplained(stall_id=stall_id, explanation=told, tasks=(0, 1), host=host)


def test_a_machine_that_is_lost() -> None:
    """Once no rank makes steps; the end of the run names it."""
    idle, busy = Signs(quiet=True, age_s=70.0), Signs(age_s=1.0)
    assert machines.lose(look(100.0, silent_s=59.0, signs=idle), training(), POLICY) is None
    assert machines.lose(look(100.0, silent_s=61.0, signs=busy), training(), POLICY) is None
    action = machines.lose(look(100.0, silent_s=61.0, signs=idle), training(), POLICY)
    event = given_up(action)
    assert event.exit_code == 75
    assert isinstance(action, Record)
    kinds = [type(one) for one in action.events]
    assert kinds == [e.StallDeclared, e.GivenUp, e.MachineLost], "evidence of what is heard"
    state = training()
    for written, rest in zip(action.events, (kinds[1:], kinds[2:], []), strict=True):
        state = evolve(state, msgspec.structs.replace(written, mono=100.0, attempt=1))
        again = machines.lose(look(101.0, silent_s=62.0, signs=idle), state, POLICY)
        found = [type(one) for one in again.events] if isinstance(again, Record) else []
        assert found == rest, "what a supervisor that died in between has not written"
    last = ended(training(), event)
    (line,) = [one for one in closing_lines(last, {}) if "fault" in one]
    assert line.endswith("n1: node1 (n1) was not heard for 1 min 1 s")
    (named,) = status_object(Document(state=last))["guilty_nodes"]
    assert named == m.GuiltyNode(
        host="n1", why=m.Why("machine-lost", who="node1 (n1)", seconds=61.0)
    )


def test_a_machine_that_has_not_come_is_waited_for_and_has_no_name() -> None:
    """Nothing is launched before it is heard: what cannot be heard may be at work."""
    before = b.fold(began())
    assert machines.gather(look(5.0), before, POLICY) is None
    assert isinstance(machines.gather(look(5.0, silent_s=40.0), before, POLICY), Record), (
        "said once"
    )
    event = given_up(machines.gather(look(100.0, silent_s=61.0), before, POLICY))
    assert (event.exit_code, event.guilty) == (75, ())
    assert why_text(event.why).startswith("node1 (n1) did not come")


def test_the_evidence_of_all_machines_is_read_together() -> None:
    """While it is read nothing is planned; without an answer the job goes on, and says so."""
    for state in (asks(), node()):
        started = decide(look(5.0), state, POLICY, {})
        assert isinstance(started, StartJoint), "before the first signal"
        assert started.bundles == (OURS, THEIRS)
        assert isinstance(decide(look(5.0, running=frozenset({"joint"})), state, POLICY, {}), Wait)
    partly = machines.explain_together(look(5.0), asks(("node1",)), POLICY)
    assert isinstance(partly, StartJoint)
    assert partly.bundles == (OURS,)
    reads = look(5.0, running=frozenset({"joint"}))
    assert isinstance(machines.explain_together(reads, node(), POLICY), Wait)
    failed = m.JointAnswer(explanation=None, problem="it left no answer")
    done = machines.explain_together(look(5.0, joint=failed), node(), POLICY)
    (event,) = done.events
    assert isinstance(event, e.Noticed)
    assert "it left no answer" in why_text(event.why)
    assert machines.explain_together(look(5.0), node(event), POLICY) is None
    assert machines.explain_together(look(5.0), node(diagnosed(found(1), "n1")), POLICY) is None
    seen = look(5.0)
    mine = msgspec.structs.replace(seen.trees[0], evidence=b.result(explanation=found(0)))
    other = msgspec.structs.replace(seen.trees[1], running=frozenset({"evidence"}))
    brought = msgspec.structs.replace(seen, trees=(mine, other))
    home = bring_home(brought, training(b.stall(), b.collecting()), POLICY)
    (word,) = home.events
    assert isinstance(word, e.EvidenceCollected), "no explanation of one machine alone"
    alone = b.running(b.stall(), b.collecting(), b.collected(), b.exited(1), e.TreeGone())
    assert machines.explain_together(b.observation(b.sample(5.0)), alone, POLICY) is None


def test_the_machine_of_the_guilty_rank() -> None:
    """As the evidence of all nodes has found it, where the job is given back for it."""
    for where, meet, host in (
        (THEIRS, "tcp://n0:1", "n1"),
        (OURS, "tcp://n0:1", "n0"),
        (None, "tcp://n0:1", None),
        (THEIRS, None, None),  # tasks of one machine
    ):
        answer = m.JointAnswer(explanation=found(1), where=where)
        done = machines.explain_together(look(5.0, joint=answer), node(meet=meet), POLICY)
        (event,) = done.events
        assert (event.host, event.tasks) == (host, (0, 1))
    state = node(diagnosed(found(1), "n1"))
    survey = m.Survey(findings=(), directories=())
    event_of_all = given_up(between_attempts(look(5.0, survey=survey), state, POLICY, {}))
    assert event_of_all.exit_code == 75
    (guilty,) = event_of_all.guilty
    assert guilty == m.GuiltyNode(
        host="n1", why=m.Why("guilty", rank=1, family="rank-left-early", certainty="likely")
    )


@pytest.mark.parametrize(
    ("told", "host"),
    [
        (msgspec.structs.replace(found(1), kind="unknown"), "n1"),
        (msgspec.structs.replace(found(1), alike=(Who(pid=13, role="rank", rank=2),)), "n1"),
        (found(None), "n1"),
        (found(1), None),
    ],
    ids=["nothing observed", "two alike", "no rank", "no machine"],
)
def test_what_the_evidence_does_not_tell_blames_nobody(
    told: m.Explanation, host: str | None
) -> None:
    assert machines.of_the_culprit(node(diagnosed(told, host))) == ()


def test_a_rank_that_holds_up_the_others_is_named_without_a_family() -> None:
    """What was observed is enough."""
    (guilty,) = machines.of_the_culprit(node(diagnosed(found(1, None), "n1")))
    assert why_text(guilty.why) == "the other ranks waited for rank 1"


def test_a_rank_that_is_guilty_everywhere_is_the_program() -> None:
    """The same rank on another machine: the first one was healthy, and so is this one."""
    again = (b.stall("0002"), b.collecting("0002"), b.collected("0002"))
    for rank, wanted in ((1, ()), (0, ("n5",))):
        state = node(diagnosed(found(1), "n1"), *again, diagnosed(found(rank), "n5", "0002"))
        attempt = msgspec.structs.replace(state.attempts[-1], stall_id="0002")
        state = msgspec.structs.replace(state, attempts=(attempt,))
        assert tuple(one.host for one in machines.of_the_culprit(state)) == wanted


def test_what_outlives_sigkill_makes_its_own_machine_guilty() -> None:
    """Also in a run that is no task of a job; with another end nobody is named."""
    state = msgspec.structs.replace(b.running(b.stall()), host="n7")
    last = ended(state, e.SurvivedKill(pids=(44,), why=m.said("D")), b.exited(None, signal=9))
    (guilty,) = last.guilty
    assert (guilty.host, guilty.why) == ("n7", m.Why("survivors", pids=(44,)))
    failed = ended(
        state, e.GivenUp(why=m.said("x"), exit_code=76, outcome="gave_up", guilty=(BAD,))
    )
    assert failed.guilty == ()


def test_one_machine_that_cannot_start_it_now_does_not_end_the_job() -> None:
    """A command that cannot be started at all does."""

    def refused(number: int, error: m.Why) -> bool:
        launching = e.AttemptLaunching(token="t", plan=b.plan(number), where=BOTH)
        failed = e.AttemptExited(
            code=None, signal=None, how_known="not-started", step=None, error=error
        )
        attempt = b.fold((*began(), launching, failed)).attempt
        return attempt is not None and attempt.cannot_start

    assert refused(1, m.said("no such file"))
    assert not refused(1, m.Why("keeper-ended-early", pid=7))
    assert not refused(2, m.said("no such file"))
