"""Which machine is named when a job is given back with 75, to whom, and when nobody is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Record
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.confer import as_one_job, confer
from watchdog_train.core.job.guilty import guilty_nodes, of_the_culprit
from watchdog_train.core.job.joint import diagnose_together
from watchdog_train.core.job.peers import (
    JobView,
    PeerView,
    Signs,
    Summary,
    bundle_of,
    summarise,
    trouble_of,
)
from watchdog_train.core.model import (
    Explanation,
    GuiltyNode,
    JointAnswer,
    Survey,
    Why,
    said,
)
from watchdog_train.core.model.explanation import Who
from watchdog_train.core.policy import Job, Policy, Recovery
from watchdog_train.core.recovery.between import between_attempts
from watchdog_train.core.recovery.outcome import finish
from watchdog_train.report.status_json import status_object
from watchdog_train.report.summary import closing_lines
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.guilty_nodes import GuiltyNodes

POLICY = Policy(recovery=Recovery(max_restarts=0), job=Job(plan_s=60.0))
BAD = GuiltyNode(host="gpu-17", why=said("it did not come"))


def node(number: int, *more: e.AnyEvent, meet: str | None = "/meet") -> State:
    """A node of two whose hung attempt is over, with its evidence on disk."""
    who = b.node_task(number, meet)
    coupled = e.TasksCoupled(together=True, world=2, why=said("it is a node of the job"))
    end = (b.stall(), b.collecting(), b.collected(), b.exited(None, signal=15), e.TreeGone())
    state = b.running(e.TaskJoined(task=who, host=f"n{number}"), coupled, *end, *more)
    return msgspec.structs.replace(state, host=f"n{number}")


def other(**changes: Any) -> PeerView:
    summary = summarise(node(1), Signs(ranks=1, world=2))
    assert isinstance(summary, Summary)
    return PeerView(summary=msgspec.structs.replace(summary, **changes), heard_s=0.1)


def look(at: float, *peers: PeerView, **changes: Any) -> Any:
    poll = b.sample(at, keeper_alive=False, empty_looks=2)
    return b.observation(poll, job=JobView(peers=peers), **changes)


def given_up(action: Any) -> e.GivenUp:
    assert isinstance(action, Record)
    (event,) = action.events
    assert isinstance(event, e.GivenUp)
    return event


def ended(state: State, *events: e.AnyEvent) -> State:
    """The state after some last events and the end that follows from them."""
    for event in events:
        state = evolve(state, event)
    return evolve(state, finish(state))


def found(rank: int | None, family: str | None = "rank-left-early") -> Explanation:
    return b.explained(family=family, rank=rank, confidence=0.6)


def diagnosed(told: Explanation, host: str | None, stall_id: str = "0001") -> e.StallExplained:
    return e.StallExplained(stall_id=stall_id, explanation=told, tasks=(0, 1), host=host)


def test_a_machine_that_does_not_come_to_the_plan() -> None:
    """Each supervisor names it, and the end of the run says so."""
    event = given_up(confer(look(100.0, other(gone=False)), node(0), POLICY))
    assert event.exit_code == 75
    assert [one.host for one in event.guilty] == ["n1"]
    last = ended(node(0), event)
    (line,) = [one for one in closing_lines(last, {}) if "fault" in one]
    assert line.endswith("n1: it did not come to the plan of the next attempt")
    (named,) = status_object(last)["job"]["guilty_nodes"]
    assert named == {"host": "n1", "why": Why("no-plan", who="it")}


def test_a_machine_that_may_still_come_is_not_named() -> None:
    """A third one that was never heard of ends the job at once, and has no name."""
    two = node(0).job
    assert two is not None
    job = msgspec.structs.replace(two, task=msgspec.structs.replace(two.task, tasks=3))
    three = msgspec.structs.replace(node(0), job=job)
    event = given_up(confer(look(6.0, other(gone=False)), three, POLICY))
    assert event.guilty == ()
    assert why_text(event.why).startswith("1 node that nothing was heard of did not come")


def test_tasks_of_one_machine_are_on_no_guilty_one() -> None:
    """Which of them did not come is said; the machine is the only one there is."""
    alone = node(0, meet=None)
    event = given_up(confer(look(100.0, other(gone=False)), alone, POLICY))
    assert event.guilty == ()
    neighbour = other(gone=False, host="n0")
    assert given_up(confer(look(100.0, neighbour), node(0), POLICY)).guilty == ()


def test_the_machine_of_the_guilty_rank() -> None:
    """As the evidence of all nodes has found it, where the job is given back for it."""
    answer = JointAnswer(explanation=found(1), where="/r/stalls/0001")
    trouble = trouble_of(node(1))
    assert trouble is not None
    peer = other(trouble=msgspec.structs.replace(trouble, bundle="/r1/stalls/0001"))
    for where, host in (("/r1/stalls/0001", "n1"), ("/r/stalls/0001", "n0"), (None, None)):
        joint = msgspec.structs.replace(answer, where=where)
        done = diagnose_together(look(5.0, peer, joint=joint), node(0))
        assert isinstance(done, Record)
        (event,) = done.events
        assert isinstance(event, e.StallExplained)
        assert event.host == host
    state = node(0, diagnosed(found(1), "n1"))
    survey = Survey(findings=(), directories=())
    event_of_all = given_up(between_attempts(look(5.0, survey=survey), state, POLICY, {}))
    assert event_of_all.exit_code == 75
    (guilty,) = event_of_all.guilty
    assert guilty == GuiltyNode(
        host="n1", why=Why("guilty", rank=1, family="rank-left-early", certainty="likely")
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
def test_what_the_evidence_does_not_tell_blames_nobody(told: Explanation, host: str | None) -> None:
    assert of_the_culprit(node(0, diagnosed(told, host))) == ()


def test_a_rank_that_holds_up_the_others_is_named_without_a_family() -> None:
    """What was observed is enough; the joint explanation counts before a victim's own family."""
    (guilty,) = of_the_culprit(node(0, diagnosed(found(1, None), "n1")))
    assert why_text(guilty.why) == "the other ranks waited for rank 1"
    guess = b.explained(family="nccl-timeout-unattributed", rank=0)
    peer = other(trouble=msgspec.structs.replace(trouble_of(node(1)), explanation=guess))
    state = node(0, diagnosed(found(1, None), "n1"))
    bundle = bundle_of(as_one_job(look(5.0, peer), state))
    assert bundle is not None
    assert bundle.explanation == found(1, None)


def test_a_rank_that_is_guilty_everywhere_is_the_program() -> None:
    """The same rank on another machine: the first one was healthy, and so is this one."""
    again = (b.stall("0002"), b.collecting("0002"), b.collected("0002"))
    for rank, wanted in ((1, ()), (0, ("n5",))):
        state = node(0, diagnosed(found(1), "n1"), *again, diagnosed(found(rank), "n5", "0002"))
        attempt = msgspec.structs.replace(state.attempts[-1], stall_id="0002")
        state = msgspec.structs.replace(state, attempts=(attempt,))
        assert tuple(one.host for one in of_the_culprit(state)) == wanted


def test_what_outlives_sigkill_makes_its_own_machine_guilty() -> None:
    """Also in a run that is no task of a job; with another end nobody is named."""
    state = msgspec.structs.replace(b.running(b.stall()), host="n7")
    last = ended(state, e.SurvivedKill(pids=(44,), why=said("D")), b.exited(None, signal=9))
    (guilty,) = guilty_nodes(last)
    assert (guilty.host, guilty.why) == ("n7", Why("survivors", pids=(44,)))
    failed = ended(state, e.GivenUp(why=said("x"), exit_code=76, outcome="gave_up", guilty=(BAD,)))
    assert guilty_nodes(failed) == ()


def finished(*guilty: GuiltyNode) -> State:
    event = e.GivenUp(why=said("lost"), exit_code=75, outcome="gave_up", guilty=guilty)
    return ended(b.running(), event)


def test_each_machine_is_a_file_with_the_reason(tmp_path: Path) -> None:
    """Asked for or not; what another supervisor has left there stays."""
    state = finished(BAD, GuiltyNode(host="n2.cluster", why=said("Ω")))
    assert list(GuiltyNodes(None, cwd=str(tmp_path)).finish(state)) == []
    assert list(tmp_path.iterdir()) == []
    place = tmp_path / "a" / "guilty"
    place.mkdir(parents=True)
    (place / "n9").write_text("mine\n")
    assert list(GuiltyNodes("a/guilty", cwd=str(tmp_path)).finish(state)) == []
    files = {path.name: path.read_text("utf-8") for path in place.iterdir()}
    assert files == {"gpu-17": "it did not come\n", "n2.cluster": "Ω\n", "n9": "mine\n"}
    assert list(GuiltyNodes("b", cwd=str(tmp_path)).finish(finished())) == []
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("host", ["../n1", "-n1", "n 1", "", ".", "n1\n", "n" * 300, "$(id)"])
def test_a_name_that_is_no_word_is_not_written(tmp_path: Path, host: str) -> None:
    """A shell reads these names, and a peer says what it is called."""
    state = finished(GuiltyNode(host=host, why=said("x")), BAD)
    (noticed,) = GuiltyNodes("bad", cwd=str(tmp_path)).finish(state)
    assert noticed.kind == "guilty"
    assert os.listdir(tmp_path / "bad") == ["gpu-17"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    """It costs the run nothing."""
    (tmp_path / "bad").write_text("")
    (noticed,) = GuiltyNodes("bad", cwd=str(tmp_path)).finish(finished(BAD))
    assert why_text(noticed.why).startswith(
        f"the guilty machines cannot be named in {tmp_path / 'bad'}: "
    )
