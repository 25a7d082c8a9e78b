"""What a leader and its agents tell each other: lost, late, twice, or nonsense."""

from __future__ import annotations

import random
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.support import wait_until
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.decide import decide
from watchdog_train.core.detection.detect import Signs, Verdict
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import Crew, Machine, State
from watchdog_train.core.job.machines import gather, world_elsewhere
from watchdog_train.core.model.gpu import GpuHold, GpuHolder
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.choice import choose_checkpoint
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.report.why_text import why_text
from watchdog_train.store.log_reading import last_word
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.agent import Sought
from watchdog_train.supervisor.hands import agent_messages as messages
from watchdog_train.supervisor.hands.agent_messages import Inbox, Parcels
from watchdog_train.supervisor.hands.remote import Machines

TASK = JobTask(job="j", source="wtrain", task=0, tasks=2, here=2)
HERE = Machine(host="", hostname="h", place="p", run_dir="/r", agent=m.ProcessId(1, 1))
NEW = msgspec.structs.replace(HERE, run_dir="/new", agent=m.ProcessId(8, 8))


class Link:
    """In memory; what is sent lies in `sent`, what comes is put into `come`."""

    refusal = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.come: list[tuple[str, bytes]] = []

    def send(self, to: str, message: bytes) -> bool:
        self.sent.append(message)
        return True

    def receive(self) -> list[tuple[str, bytes]]:
        come, self.come = self.come, []
        return come

    def fileno(self) -> int:
        return -1

    def words(self) -> list[messages.Orders]:
        found = [messages.decode(messages.DOWN, data) for data in self.sent]
        self.sent.clear()
        return [word for word in found if isinstance(word, messages.Orders)]


class System:
    """A clock, and processes that live."""

    now = 100.0
    dead: frozenset[m.ProcessId] = frozenset()

    def monotonic(self) -> float:
        return self.now

    def is_alive(self, who: m.ProcessId) -> bool:
        return who not in self.dead

    def boot_id(self) -> str:
        return "b"


@pytest.fixture
def leader(tmp_path: Path) -> Any:
    context: Any = SimpleNamespace(system=System(), directory=RunDirectory(tmp_path))
    machines = Machines(context, TASK, Link())  # type: ignore[arg-type]
    hear(machines, report(machines))
    return machines


def report(
    machines: Any, *, done: int = 0, attempt: int = 0, lives: bool = False, **sight: Any
) -> messages.Report:
    """Of an agent that has heard this leader."""
    now, (hands,) = machines.context.system.now, machines.hands
    seen = a.TreeSight(sample=sight.pop("sample", m.together((), at=now)), **sight)
    me = msgspec.structs.replace(HERE, agent=m.ProcessId(7, 7), place=machines.place)
    return messages.Report(
        agent=me, epoch=hands.epoch, done=done, attempt=attempt, lives=lives, now=now, sight=seen
    )


def hear(machines: Any, message: Any, state: State | None = None) -> None:
    machines.link.come.append(("task1", messages.encode(message)))
    machines.poll(state or State(), machines.context.system.now)


def test_what_another_machine_lacks_is_known_and_named(leader: Any) -> None:
    """By the leader's clock; the machine that holds GPU memory is the one that is left out."""
    (hands,) = leader.hands
    state = State(attempts=(b.running().attempts[0],))
    held = GpuHold(others=(GpuHolder(device=0, pid=42),), asked_at=90.0)
    lacks = a.Told(gpu_hold=held, gpu_trouble="it does not answer", short="no file")
    hear(leader, report(leader, attempt=1, told=lacks), state)
    hands.hear(state, 100.0)
    found = hands.gpu_hold(100.0)
    assert (found.host, found.asked_at) == ("task1", 90.0)
    assert found.others[0].name == "task1: pid 42"
    assert (hands.sight.told.gpu_trouble, hands.sight.told.short) == (
        "it does not answer",
        "no file",
    )


def test_orders_are_carried_out_once() -> None:
    """Words are lost, doubled and late; a dead agent's successor knows what was begun."""
    for seed in range(200):
        chance = random.Random(seed)
        crew, inbox, carried = Crew(task=TASK), Inbox(), []
        orders = tuple(
            messages.Order(number=n, work=a.CleanUp(host=""))
            for n in range(1, chance.randint(2, 6))
        )
        said = []
        for _ in range(60):
            left = tuple(one for one in orders if one.number > crew.done)
            said.append(messages.Orders(epoch=3, leader=HERE, orders=left))
            for word in chance.sample(said, min(len(said), chance.randint(0, 2))):
                inbox.take(word, crew)
            if inbox:
                order = inbox.next()
                crew = msgspec.structs.replace(crew, epoch=3, done=order.number)
                carried.append(order.number)
            if chance.random() < 0.1:
                inbox = Inbox()  # the agent dies, and its successor reads the log
        assert carried == [one.number for one in orders]


def test_an_older_leader_is_refused() -> None:
    inbox = Inbox()
    crew = Crew(task=TASK, epoch=5, done=2)
    order = messages.Order(number=3, work=a.CleanUp(host=""))
    old = messages.Orders(epoch=4, leader=HERE, orders=(order,))
    assert not inbox.take(old, crew)
    assert not inbox
    new = messages.Orders(epoch=6, leader=HERE, orders=(order,))
    assert inbox.take(new, crew)
    assert not inbox, "the first order of a leader is number 1"
    first = messages.Orders(
        epoch=6, leader=HERE, orders=(messages.Order(number=1, work=a.CleanUp(host="")),)
    )
    assert inbox.take(first, crew)
    assert not inbox.take(msgspec.structs.replace(old, epoch=5), crew)
    assert inbox.next().number == 1


def test_an_order_is_said_until_it_is_begun(leader: Any) -> None:
    (hands,) = leader.hands
    leader.link.sent.clear()
    state = State(supervisor=m.ProcessId(2, 2))
    target = m.ProcessId(9, 9, "task1")
    signal = a.Signal(
        host="task1", sequence="hang", stage="kill", targets=(target,), signal=9, why=m.Why("now")
    )
    told = list(hands.signal(signal))
    assert [(one.pid, one.result) for one in told] == [(9, "ordered")]
    for _ in range(3):
        leader.context.system.now += 1.1
        leader.poll(state, leader.context.system.now)
    words = leader.link.words()
    assert len(words) == 3
    assert {word.epoch for word in words} == {1}
    (order,) = words[-1].orders
    assert order.work.targets == (m.ProcessId(9, 9),)
    assert order.work.host == ""
    hear(leader, report(leader, done=1), state)
    leader.context.system.now += 1.1
    leader.poll(state, leader.context.system.now)
    assert leader.link.words()[-1].orders == ()


def test_what_was_sent_counts_from_the_agents_answer(leader: Any) -> None:
    (hands,) = leader.hands
    why = m.Why("unknown")
    kill = a.Signal(host="task1", sequence="hang", stage="kill", targets=(), signal=9, why=why)
    assert list(hands.signal(kill)) == []
    hear(leader, report(leader))
    assert hands.sight.obeyed_at == inf
    leader.context.system.now += 30.0
    hear(leader, report(leader, done=1))
    assert hands.sight.obeyed_at == 130.0


@pytest.mark.parametrize("heard", [False, True], ids=["speaks first", "has heard us"])
def test_an_agent_made_anew_begins_with_the_first_order(leader: Any, heard: bool) -> None:
    """It has not taken up the run of the one before it: of the present attempt nothing is left."""
    (hands,) = leader.hands
    hands._present = 1
    hands.ask(a.AskStop(can_be_asked=True, why=m.Why("now"), step=None, expects_save=False))
    hear(leader, report(leader, done=1, attempt=1, lives=True))
    hands.clean_up(State())
    assert hands.sight.exit is None
    new = msgspec.structs.replace(report(leader), agent=NEW, epoch=hands.epoch if heard else 0)
    hear(leader, new)
    assert not hands.sight.is_heard, "it has not heard of us"
    hear(leader, msgspec.structs.replace(new, epoch=hands.epoch))
    sight = hands.sight
    assert (hands.epoch, sight.is_heard, sight.agent.agent) == (2, True, NEW.agent)
    assert sight.exit.how_known == "gone"
    assert sight.sample.empty_looks == 2
    hands.clean_up(State())
    leader.link.sent.clear()
    leader.context.system.now += 1.1
    leader.poll(State(), leader.context.system.now)
    (word,) = leader.link.words()
    assert [order.number for order in word.orders] == [1]
    inbox = Inbox()
    assert inbox.take(word, Crew(task=TASK))
    assert inbox.next().number == 1


def test_a_launch_that_is_not_begun_is_not_gone(leader: Any) -> None:
    (hands,) = leader.hands
    hands._present = 1
    hands.launch(b.plan(), "t", State())
    hear(leader, report(leader))
    assert hands.sight.exit is None
    hear(leader, report(leader, done=1))
    assert hands.sight.exit is not None


@pytest.mark.parametrize("lives", [True, False], ids=["it lives", "it has ended"])
def test_a_leader_made_anew_is_later_than_the_one_before(leader: Any, lives: bool) -> None:
    """Its agents have an attempt that it never made: they hear it, and it has them end it.

    It counts on from there: agents refuse a number that they have used.
    """
    (hands,) = leader.hands
    hands.epoch, hands._report = 0, None
    old = msgspec.structs.replace(report(leader, attempt=4, lives=lives), epoch=7)
    hear(leader, old)
    assert hands.epoch == 8
    assert not hands.sight.is_heard
    assert not hands.sight.other
    hear(leader, msgspec.structs.replace(old, epoch=8))
    sight = hands.sight
    assert (sight.is_heard, sight.other) == (True, 4)

    joined = e.TaskJoined(task=TASK)
    state = b.fold((b.RUN_STARTED, joined))
    here = a.TreeSight(sample=m.together((), at=100.0))
    observation = b.observation(here.sample, trees=(here, sight))
    action = decide(observation, state, Policy(), {})
    heard = b.fold((b.RUN_STARTED, joined, *action.events))
    action = decide(observation, heard, Policy(), {})
    assert isinstance(action, a.Record)
    for event in action.events:
        heard = evolve(heard, event)
    trees = [(tree.host, tree.ended) for tree in heard.attempt.trees]
    assert (heard.attempt.attempt, trees) == (4, [("", True), ("task1", False)])
    hands._present = 4
    assert hands.sight.other == 0


SHAPES = {
    # ranks here, largest world, step of any rank, seconds since the launch: said
    "a rank of eight has made a step": (1, 8, 3, 5.0, True),
    "the same before its first step": (1, 8, None, 5.0, False),
    "the same for half a minute": (1, 8, None, 30.0, True),
    "torchrun of a sweep starts its eight ranks": (1, 8, None, 1.0, False),
    "a training of a sweep on eight GPUs": (8, 8, 3, 60.0, False),
    "a training of a sweep on one": (1, 1, 3, 60.0, False),
    "tasks in pairs": (1, 2, 3, 60.0, False),
    "a program that names a world and has no rank": (0, 8, None, 60.0, False),
    "nothing is known": (0, None, None, 60.0, False),
}


@pytest.mark.parametrize(("ranks", "world", "step", "at", "told"), SHAPES.values(), ids=SHAPES)
def test_a_task_without_a_leader_is_told_what_is_missing(
    ranks: int, world: int | None, step: int | None, at: float, told: bool
) -> None:
    """Only a task that is seen to train a part of one world with all of them, and once."""
    task = JobTask(job="slurm:1.0", source="slurm", task=1, tasks=8, here=8)
    state = b.running()
    observation = b.observation(b.sample(at), signs=Signs(ranks=ranks, world=world, step=step))
    noticed = world_elsewhere(task, observation, state)
    assert (noticed is not None) == told
    if noticed is not None:
        (event,) = noticed.events
        assert isinstance(event, e.Noticed)
        assert "--nodes auto" in why_text(event.why)
        assert world_elsewhere(task, observation, evolve(state, event)) is None


def test_a_checkpoint_that_a_machine_does_not_see_is_passed_over(leader: Any) -> None:
    """Each is asked before the launch; an older one is taken, with that reason."""
    (hands,) = leader.hands
    used = m.CheckpointRef(path="/out/2", format="torch", step=2, how_checked="recorded")
    plan = msgspec.structs.replace(b.plan(2), checkpoint=used)
    joined = e.TaskJoined(task=TASK)
    state = b.running(joined, b.exited(1), e.TreeGone(shared_memory_removed=(), left=()))
    state = evolve(state, msgspec.structs.replace(e.PlanMade(plan=plan), mono=1.0))

    def asked(**said: Any) -> Any:
        heard = msgspec.structs.replace(report(leader), **said)
        leader.context.system.now += 1.1
        hear(leader, heard, state)
        here = a.TreeSight(sample=m.together((), at=100.0))
        observation = b.observation(here.sample, trees=(here, hands.sight))
        return gather(observation, state, Policy())

    assert isinstance(asked(), a.Wait), "of another checkpoint it says nothing"
    assert leader.link.words()[-1].checkpoint == "/out/2"
    seen = a.TreeSight(sample=m.together((), at=100.0))
    assert asked(checkpoint="/out/2", sight=seen) is None
    unseen = msgspec.structs.replace(seen, sees=False)
    rejected = asked(checkpoint="/out/2", sight=unseen).events[0]
    assert rejected.path == "/out/2"
    assert rejected.why == m.Why("unseen", who="task1")
    state = evolve(state, rejected)
    assert state.next_plan is None
    found = [
        m.CheckpointFinding(
            path=f"/out/{n}", format="torch", step=n, whole=True, said="", how_checked="recorded"
        )
        for n in (2, 1)
    ]
    choice = choose_checkpoint(state, m.Survey(findings=tuple(found), directories=("/out",)))
    assert choice.chosen.path == "/out/1"
    assert choice.rejected[0].why == rejected.why


def test_a_checkpoint_is_looked_for(tmp_path: Path) -> None:
    late, never = Sought(str(tmp_path / "late.pt")), Sought(str(tmp_path / "never.pt"))
    assert late.sees is never.sees is None
    never._until = 0.0
    assert never.sees is False
    (tmp_path / "late.pt").touch()
    wait_until(lambda: late.sees, 30, "a file that comes late is seen")
    assert Sought("").sees


def test_a_dead_leaders_last_word_is_read_in_its_log(tmp_path: Path) -> None:
    """It was killed between its last event and its last word: nobody can take its run over."""
    assert last_word(str(tmp_path)) is None
    over = e.RunFinished(outcome="stopped", exit_code=130, warning=None, why=m.Why("asked"), seq=2)
    events = [msgspec.structs.replace(b.RUN_STARTED, seq=1), over]
    for many, found in ((1, None), (2, over)):
        lines = [msgspec.json.encode(event) for event in events[:many]]
        RunDirectory(tmp_path).events.write_bytes(b"\n".join([*lines, b""]))
        assert last_word(str(tmp_path)) == found


def test_what_an_agent_sees_gets_its_machines_name(leader: Any) -> None:
    (hands,) = leader.hands
    hands._present = 1
    sample = m.together((), at=100.0)
    member = m.Member(pid=9, start=9, role="rank", rank=1)
    members = (m.MemberSample(member=member, state="S", cpu_s=0.0, slot=None),)
    exit_ = m.ExitStatus(code=3, signal=None, how_known="keeper-file")
    sample = msgspec.structs.replace(sample, members=members)
    hear(leader, report(leader, attempt=1, sample=sample, exit=exit_))
    sight = hands.sight
    assert sight.host == "task1"
    assert sight.is_heard
    assert sight.sample.members[0].member.identity == m.ProcessId(9, 9, "task1")
    assert sight.agent == msgspec.structs.replace(sight.agent, host="task1")
    hands._present = 2
    assert hands.sight.exit.code is None, "of an earlier attempt"
    leader.context.system.now += 11.0
    assert not hands.sight.is_heard


def test_clocks_of_machines_differ(leader: Any) -> None:
    (hands,) = leader.hands
    hands._present = 1
    far = msgspec.structs.replace(report(leader, attempt=1), now=5000.0)
    far = msgspec.structs.replace(far, sight=a.TreeSight(sample=m.together((), at=4990.0)))
    hear(leader, far)
    assert hands.sight.sample.at == pytest.approx(90.0)


def test_an_answer_that_was_used_is_not_seen_again(leader: Any) -> None:
    (hands,) = leader.hands
    hands._present = 1
    look = a.StartLook(host="task1", verdict=Verdict(kind="suspect"))
    hands.collect(look, State())
    assert hands.sight.running == {"look"}
    hear(leader, report(leader, attempt=1))
    assert hands.sight.running == {"look"}, "not begun yet"


def test_files_arrive_whole_and_only_where_they_belong(leader: Any, tmp_path: Path) -> None:
    source = tmp_path / "agent"
    bundle = source / "stalls" / "0001" / "stacks"
    bundle.mkdir(parents=True)
    (bundle / "1.txt").write_bytes(b"a" * (3 * messages.PARCEL_BYTES + 5))
    (source / "stalls" / "0001" / "verdict.json").write_text("{}")
    outbox, chance, now = Parcels(source), random.Random(1), 0.0
    outbox.send_folder(source / "stalls" / "0001")
    outbox.ask(a.Request(kind="stop", by="SIGTERM"))
    (hands,) = leader.hands
    for _ in range(200):
        now += 1.0
        parcel = outbox.due(now)
        if parcel is not None and chance.random() < 0.6:  # the others are lost
            hear(leader, parcel)
        outbox.taken(hands._taken)
        if outbox.is_empty:
            break
    assert outbox.is_empty
    kept = tmp_path / "stalls" / "0001" / "machines" / "task1"
    assert (kept / "stacks" / "1.txt").read_bytes() == (bundle / "1.txt").read_bytes()
    assert (kept / "verdict.json").read_text() == "{}"
    assert [one.by for one in leader.requests] == ["task1: SIGTERM"]
    for path in ("../x", "stalls/../../x", "events.jsonl", "stalls/1", "/etc/x", "attempts/1/../x"):
        evil = messages.Chunk(path=path, offset=0, data=b"x")
        hear(leader, messages.Parcel(number=hands._taken + 1, requests=(), chunks=(evil,)))
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "stalls"}


def test_nonsense_says_nothing(leader: Any) -> None:
    big = messages.PACKED + b"\x78\x9c" + b"\0" * 50
    for data in (b"", b"m", b"z", b"m\xff", big, b"m" + msgspec.msgpack.encode({"type": "Report"})):
        leader.link.come.append(("task1", data))
        leader.link.come.append(("task9", data))
    leader.context.system.now = 111.0
    leader.poll(State(), 111.0)
    (hands,) = leader.hands
    assert not hands.sight.is_heard


def test_many_processes_fit_into_one_message() -> None:
    member = m.Member(pid=1, start=1, role="worker", rank=1, name="pt_data_worker")
    one = m.MemberSample(member=member, state="S", cpu_s=1.0, slot=None)
    sample = msgspec.structs.replace(m.together((), at=1.0), members=(one,) * 20_000)
    full = messages.Report(
        agent=HERE, epoch=1, done=0, attempt=1, now=1.0, sight=a.TreeSight(sample=sample)
    )
    data = messages.encode(full)
    assert len(data) < 1 << 20
    assert messages.decode(messages.UP, data) == full
