"""What a leader knows of the machines of its job, and how a person is told."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.core import builders as b
from tests.core.test_guilty import began, look, training
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.answers import ASKED_FIRST, bring_home
from watchdog_train.core.decide import _record_exit
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import Machine, State
from watchdog_train.core.job.machines import explain_together, hear
from watchdog_train.core.model.explanation import CollectiveWait, Computing, Standstill, Who
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import watch
from watchdog_train.report.document import Document, Live, machines_now
from watchdog_train.report.narrative import narrate
from watchdog_train.report.notices import machine_cells
from watchdog_train.report.report_text import report_page
from watchdog_train.report.run_json import status_object
from watchdog_train.report.status_text import led_by, runs_text, status_text

SILENT = e.MachineSilent(where="node1", since=1e9 + 40.0)
LIVE = Live(at=1e9 + 60.0, mono=60.0, supervisor_alive=True, here=True)


def census() -> e.Progress:
    """A rank of each machine, under the same pid."""
    here = m.Member(pid=b.ROOT, start=b.ROOT + 1000, role="rank", rank=0, name="python")
    there = msgspec.structs.replace(here, rank=1, host="node1")
    return e.Progress(progress=m.RunProgress(step=7), members=(here, there), ranks=())


def told(state: State, **changes: Any) -> Any:
    """What is recorded of agents after a look at so many seconds."""
    agent = Machine(host="node1", hostname="n1", place="p1", run_dir="/r1", agent=m.ProcessId(5, 5))
    seen = look(100.0, **changes)
    sights = [msgspec.structs.replace(seen.trees[1], agent=agent)]
    return hear(msgspec.structs.replace(seen, trees=(seen.trees[0], *sights)), state, Policy())


def test_the_last_progress_of_machines_that_end_one_after_another() -> None:
    """It lists all ranks: again only where a rank has told a newer step since."""
    first = e.AttemptExited(code=1, signal=None, how_known="keeper", step=4)

    def recorded(step: int, *before: e.AnyEvent) -> list[str]:
        seen = look(100.0, last_words=(b.rank(step=step),))
        here, there = seen.trees
        status = m.ExitStatus(code=1, signal=None, how_known="keeper")
        if before:
            there = msgspec.structs.replace(there, exit=status)
        else:
            here = msgspec.structs.replace(here, exit=status)
        observation = msgspec.structs.replace(seen, trees=(here, there))
        action = _record_exit(observation, training(*before), Policy())
        assert isinstance(action, a.Record)
        return [type(event).__name__ for event in action.events]

    assert recorded(4) == ["Progress", "AttemptExited"]
    assert recorded(4, first) == ["AttemptExited"]
    assert recorded(5, first) == ["Progress", "AttemptExited"]


def test_a_silence_and_its_end_are_recorded_once() -> None:
    assert told(training(), silent_s=9.0) is None
    action = told(training(), silent_s=12.0)
    (event,) = action.events
    assert event == e.MachineSilent(where="node1", since=1e9 + 88.0)
    (line,) = narrate(event, training(event))
    assert line.startswith("wtrain: node1: not heard since ")
    assert told(training(event), silent_s=50.0) is None
    again = told(training(event))
    (heard,) = again.events
    assert heard.silent_s == 12.0
    assert narrate(heard, training(event, heard)) == ("wtrain: node1: heard again after 12 s",)
    assert told(training(event, heard)) is None


def test_every_machine_is_on_one_screen() -> None:
    """Name, host name, ranks, and since when it is not heard; the unknown one comes first."""
    state = training(census(), SILENT)
    screen = status_text(Document(state=state, live=LIVE))
    (first, second) = [line for line in screen.splitlines() if "  rank " in line and "node" in line]
    assert first.split()[:4] == ["Machines:", "node1", "n1", "rank"]
    assert "not heard since" in first
    assert second.split() == ["node0", "n0", "rank", "0", "leads"]
    (leads, silent) = status_object(Document(state=state))["job"]["machines"]
    assert (leads.name, leads.hostname, leads.ranks, leads.state) == ("node0", "n0", (0,), "leads")
    assert (silent.ranks, silent.state, silent.since) == ((1,), "silent", 1e9 + 40.0)
    page = report_page(Document(state=state))
    (section,) = [one for one in page.sections if one.title == "Machines"]
    assert [row[:2] for row in section.rows] == [("node0", "n0"), ("node1", "n1")]


def test_before_it_comes_and_after_it_is_lost() -> None:
    joined = b.fold((*began()[:2],))
    assert [one.state for one in machines_now(joined)] == ["leads", "not-come"]
    assert machine_cells(machines_now(joined)[1], now=None)[2] == "no rank seen"
    lost = training(census(), SILENT, e.MachineLost(where="node1", why=m.Why("requeued")))
    assert machines_now(lost)[1].state == "lost"
    assert machines_now(b.running()) == []


def test_processes_of_another_machine_are_not_looked_for_here() -> None:
    """Their pids mean somebody else; tasks of one machine share them."""
    state = training(census())
    assert state.hosts_here == {""}
    live = msgspec.structs.replace(LIVE, states={b.ROOT: "S"})
    assert status_text(Document(state=state, live=live)).count("10 rank") == 1
    near = msgspec.structs.replace(
        state.crew.machines[0], place=f"{state.host}/{state.boot_id}/pid:[1]"
    )
    crew = msgspec.structs.replace(state.crew, machines=(near,))
    assert msgspec.structs.replace(state, crew=crew).hosts_here == {"", "node1"}


def test_an_agent_is_no_run_of_its_own() -> None:
    """Beside its leader it has no line of `ps`; where the leader is elsewhere it is called so."""
    leader = training()
    task = msgspec.structs.replace(b.node_task(1, "tcp://n0:1"))
    agent = b.running(e.TaskJoined(task=task))
    assert (led_by(leader), led_by(agent)) == (None, task.job)
    both = runs_text([Document(state=one, live=LIVE) for one in (leader, agent)]).splitlines()
    assert len(both) == 2
    assert "agent, running" in runs_text([Document(state=agent, live=LIVE)])


HOSTS = ("", *(f"node{number}" for number in range(1, ASKED_FIRST + 4)))
ROOT = HOSTS[-1]


def everywhere(event: Any, hosts: tuple[str, ...] = HOSTS) -> tuple[e.AnyEvent, ...]:
    """The same event of each machine."""
    return tuple(msgspec.structs.replace(event, where=host) for host in hosts)


def asked(state: State, now: float = 3.0) -> tuple[str, ...]:
    """The machines whose evidence is asked for at that moment."""
    sights = tuple(a.TreeSight(sample=m.together((), at=now, host=host)) for host in HOSTS)
    seen = msgspec.structs.replace(b.observation(b.sample(now)), trees=sights)
    action = bring_home(seen, state, Policy())
    actions = action.actions if isinstance(action, a.Several) else (action,)
    return tuple(one.host for one in actions if isinstance(one, a.StartEvidence))


def launched(*more: e.AnyEvent, joined: tuple[e.AnyEvent, ...] = ()) -> State:
    """The attempt was launched on all machines."""
    root = e.AttemptLaunched(pid=b.ROOT, start=1, keeper_pid=9, keeper_start=9)
    launching = e.AttemptLaunching(token="t", plan=b.plan(), where=HOSTS)
    return b.fold((b.RUN_STARTED, *joined, launching, *everywhere(root), *more))


def hung() -> State:
    """Ranks of all machines wait in a collective, but for one, which computes."""
    joined = e.TaskJoined(task=b.node_task(0, None, tasks=len(HOSTS)))
    quiet = Verdict(kind="suspect", basis="quiet", why=m.Why("unknown"))
    suspected = e.Suspected(basis="quiet", phase="train", ranks=(), age_s=9.0, why=quiet.why)
    state = launched(suspected, joined=(joined,))
    sights = []
    for host in HOSTS:
        doing = Computing() if host == ROOT else CollectiveWait(op="barrier")
        told = msgspec.structs.replace(
            b.explained(), root=Standstill(who=Who(pid=1, role="rank", rank=1), doing=doing)
        )
        found = b.result("look", explanation=told)
        sights.append(a.TreeSight(sample=m.together((), at=1.0, host=host), look=found))
    seen = b.observation(b.sample(1.0), quiet)
    looked = watch(msgspec.structs.replace(seen, trees=tuple(sights)), state, Policy())
    assert isinstance(looked, a.Record)
    for event in (*looked.events, b.stall(), b.collecting()):
        state = evolve(state, msgspec.structs.replace(event, mono=2.0, attempt=1))
    return state


def test_the_machines_of_the_root_are_asked_first() -> None:
    """And some of the others; what the rest has not sent in time holds nothing up."""
    state = hung()
    first = asked(state)
    assert set(first) == {ROOT, *HOSTS[: ASKED_FIRST - 1]}
    for event in everywhere(b.collected(), first):
        state = evolve(state, event)
    rest = asked(state)
    assert set(rest) == set(HOSTS) - set(first)
    for event in everywhere(b.collected(), rest[:1]):
        state = evolve(state, event)
    limit_s = Policy().evidence.total_s
    assert asked(state, 1.9 + limit_s) == rest[1:]
    seen = b.observation(b.sample(2.0 + limit_s))
    late = bring_home(seen, state, Policy())
    assert isinstance(late, a.Record)
    assert [(event.host, event.captured) for event in late.events] == [(h, 0) for h in rest[1:]]
    for event in (*late.events, *everywhere(b.exited(None, signal=9)), *everywhere(e.TreeGone())):
        state = evolve(state, event)
    assert state.stalls[0].collected
    joint = explain_together(seen, state, Policy())
    assert isinstance(joint, a.StartJoint)
    assert joint.bundles[0] == state.stalls[0].dir, "whose folder gets the explanation"


def test_a_dump_is_explained_from_all_machines_and_holds_nothing_up() -> None:
    """A stall waits nevertheless: nothing is killed on the ground of a dump from before it."""
    state = launched(b.collecting(why="manual"), *everywhere(b.collected(why="manual")))
    seen = b.observation(b.sample(1.0))
    joint = explain_together(seen, state, Policy())
    assert isinstance(joint, a.StartJoint)
    busy = msgspec.structs.replace(seen, running=frozenset({"joint"}))
    assert explain_together(busy, state, Policy()) is None
    stalled = msgspec.structs.replace(state.stalls[0], id="0002", why="stall")
    both = msgspec.structs.replace(state, stalls=(*state.stalls, stalled))
    assert isinstance(explain_together(busy, both, Policy()), a.Wait)


def test_the_first_of_many_machines_speaks_for_all() -> None:
    """The log has each of them; a person reads a line, and what only one of them has."""
    state, lines = hung(), []
    why = m.Why("unknown")
    target = (m.ProcessId(1, 1),)
    kill = e.Signalling(sequence="hang", stage="kill", targets=target, signal=9, why=why)
    more = e.TreeGone(where=ROOT, shared_memory_removed=("torch_1_1_1",))
    ends = (*everywhere(e.TreeGone(), HOSTS[:-1]), more)
    for event in (*everywhere(kill), *everywhere(b.exited(None, signal=9)), *ends):
        state = evolve(state, event)
        lines += narrate(event, state)
    of_all = f" (the first of {len(HOSTS)} machines)"
    assert lines == [
        f"wtrain: killing 1 process (SIGKILL, pid 1): for an unknown reason{of_all}",
        f"wtrain: attempt 1 has ended: killed by SIGKILL{of_all}",
        f"wtrain: every process of this attempt is gone{of_all}",
        f"wtrain: {ROOT}: removed 1 shared-memory segment without an owner",
    ]


def test_the_machine_that_has_failed_is_asked_first() -> None:
    """After a crash nobody has looked before."""
    state = launched(*everywhere(b.exited(1), (ROOT,)), b.collecting(why="crash"))
    assert set(asked(state)) == {ROOT, *HOSTS[: ASKED_FIRST - 1]}
