"""A story about processes, told on a simulated table or on the real one, and the record beside it.

A story is a list of `Step`. The truth is kept by whoever plays it: who descends from the training.
What the record of the tree says, and whom a kill sequence signals, is held against that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tests.core import builders as b
from tests.properties.world import intent
from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.actions import CleanUp, Record, Signal, Wait
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Member, ProcessId, ProcessRow, Sample, said
from watchdog_train.core.policy import Stopping
from watchdog_train.core.recovery import kill
from watchdog_train.supervisor.hands.local import deliver
from watchdog_train.supervisor.hands.tree import ProcessTree
from watchdog_train.system.protocol import ProcessSystem

SCOPE = "host/boot/"
STOP, CONT, TERM, KILL = 19, 18, 15, 9
STOPPING = Stopping(hang_grace_s=1.0)
MOST_TURNS = 4000

Kind = Literal["spawn", "hidden", "helper", "deaf", "end", "look", "bystander", "reuse"]


@dataclass(frozen=True)
class Step:
    """One thing that happens.

    spawn, hidden (without the token: exec with a cleared environment, or setproctitle), helper (a
    resource tracker), deaf (ignores SIGTERM): a living process of ours, chosen by `which`, starts
    one. end: one of ours ends. bystander: somebody else starts a process; `how` tells which.
    reuse: a bystander gets the pid of one of ours that has ended.
    """

    kind: Kind
    which: int = 0
    how: Literal["plain", "copied-token", "spooled", "other-user"] = "plain"


class Table(Protocol):
    """Where a story is played."""

    system: Any
    """What the tree asks: a ProcessSystem, or the part of it that is asked."""
    token: str
    """Of its own: on the real table another test's tree must not be taken for this one's."""
    keeper: ProcessId
    root: ProcessId

    def spawn(self, parent: ProcessId, kind: Kind) -> ProcessId: ...
    def end(self, who: ProcessId) -> None: ...
    def bystander(self, how: str, pid: int | None = None) -> ProcessId | None:
        """None: this table cannot have such a one, or not with that pid."""

    def own_children(self) -> frozenset[int]:
        """What whoever looks has started for itself: no orphan of a dead keeper."""

    def alive(self, who: ProcessId) -> bool: ...
    def wait(self, seconds: float) -> None:
        """Time passes; what was signalled ends."""

    def now(self) -> float: ...


@dataclass
class Story:
    """Plays steps on a table, and knows the truth."""

    table: Table
    ours: list[ProcessId] = field(default_factory=list)
    others: list[ProcessId] = field(default_factory=list)
    helpers: set[ProcessId] = field(default_factory=set)
    seen: set[ProcessId] = field(default_factory=set)

    def __post_init__(self) -> None:
        table = self.table
        self.ours = [table.root]
        self.tree = ProcessTree(
            table.system, token=table.token, scope=SCOPE, helpers=table.own_children
        )
        keeper, root = table.keeper, table.root
        keeps = Member(pid=keeper.pid, start=keeper.start, role="keeper", name="keeper")
        kept = Member(pid=root.pid, start=root.start, role="other", ppid=keeper.pid)
        self.tree.seed((keeps, kept))

    def living(self) -> list[ProcessId]:
        return [who for who in self.ours if self.table.alive(who)]

    def play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            living = self.living()
            dead = [who for who in self.ours if who not in living]
            match step.kind:
                case "spawn" | "hidden" | "helper" | "deaf":
                    if living:
                        parent = living[step.which % len(living)]
                        child = self.table.spawn(parent, step.kind)
                        self.ours.append(child)
                        if step.kind == "helper":
                            self.helpers.add(child)
                case "end":
                    if living:
                        self.table.end(living[step.which % len(living)])
                case "bystander":
                    self._bystander(step, None)
                case "reuse":
                    if dead:
                        self._bystander(step, dead[step.which % len(dead)].pid)
                case "look":
                    self.look()

    def _bystander(self, step: Step, pid: int | None) -> None:
        who = self.table.bystander(step.how, pid)
        if who is not None:
            self.others.append(who)

    def look(self, *, thorough: bool = True) -> Sample:
        """A poll; whoever is recorded has to be ours."""
        now = self.table.now()
        look = self.tree.look({}, now=now, thorough=thorough)
        recorded = {sample.member.identity for sample in look.members}
        strangers = recorded & set(self.others)
        assert not strangers, f"recorded, and not ours: {strangers}"
        self.seen |= recorded
        return b.sample(
            now,
            *look.members,
            births=look.births,
            deaths=look.deaths,
            empty_looks=look.empty_looks,
            keeper_alive=look.keeper_alive,
        )

    def bring_down(self, sequence: e.KillSequence) -> list[e.SentSignal]:
        """Kill the tree as the supervisor does it; everything that was signalled, in order."""
        state = self._state()
        log: list[e.SentSignal] = []
        for _ in range(MOST_TURNS):
            sample = self.look()
            now = sample.at
            if state.kill is None:
                if not kill.live(sample) and sample.empty_looks < 2:
                    continue
                action: Any = kill.begin(sequence, state, sample, said("test"))
            else:
                action = kill.pursue(state, sample, now, STOPPING, ask_until=0.0)
            match action:
                case CleanUp():
                    return log
                case Signal():
                    state = self._signal(action, state, sample, log)
                case Wait():
                    self.table.wait(max(0.01, min(action.until - now, 0.05)))
                case Record():
                    raise AssertionError(f"something survived SIGKILL: {action}")
                case None:
                    self.table.wait(0.05)
        raise AssertionError("it does not come to an end")

    def _signal(
        self, action: Signal, state: State, sample: Sample, log: list[e.SentSignal]
    ) -> State:
        state = evolve(state, intent(action, mono=sample.at))
        if action.signal:
            roles = {m.member.identity: m.member.role for m in sample.members}
            sent = tuple(deliver(action, roles, self.table.system))
            for one in sent:
                who = ProcessId(one.pid, one.start)
                assert who not in self.others, f"signalled, and not ours: {one}"
                assert who in {*self.ours, self.table.keeper}, f"signalled, and unknown: {one}"
                if one.signal == KILL and who in self.helpers and action.stage == "kill":
                    raise AssertionError("a helper was killed before it could clean up")
            log += sent
            state = evolve(state, e.Signalled(sent=sent, mono=sample.at))
        return state

    def _state(self) -> State:
        state = b.running()
        keeper, root = self.table.keeper, self.table.root
        return records.trees(state, keeper=keeper, root=root)


# -- The simulated one ----------------------------------------------------------------------------


@dataclass
class Process:
    pid: int
    start: int
    ppid: int
    shows_token: bool
    uid: int = 1000
    kind: str = "spawn"
    state: str = "S"
    scope: str = SCOPE
    got: list[int] = field(default_factory=list)

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start)


class SimulatedTable:
    """Pids that come again, orphans, and a kernel that asks nobody whose a signal is."""

    def __init__(self, *, subreaper: bool = True) -> None:
        self.token = "0123456789abcdef"
        self._subreaper = subreaper
        self._clock = 100.0
        self._ticks = 10_000
        self._next_pid = 1000
        self.processes: dict[int, Process] = {}
        self.system = self
        self.name = "simulated"
        self.process_group = self.waits_for_input = lambda pid: None
        self.handles_signal = self.ignores_signal = lambda pid, number: None
        self.spooler = self._start(1, shows_token=False)
        self.keeper = self._start(2, shows_token=True).identity
        self.root = self._start(self.keeper.pid, shows_token=True).identity

    def _start(self, ppid: int, *, pid: int | None = None, **more: Any) -> Process:
        if pid is None:
            self._next_pid += 1
            pid = self._next_pid
        self._ticks += 1
        process = Process(pid=pid, start=self._ticks, ppid=ppid, **more)
        self.processes[pid] = process
        return process

    # -- What happens --------------------------------------------------------------------------
    def spawn(self, parent: ProcessId, kind: Kind) -> ProcessId:
        shows = kind != "hidden" and self.processes[parent.pid].shows_token
        return self._start(parent.pid, shows_token=shows, kind=kind).identity

    def end(self, who: ProcessId) -> None:
        del self.processes[who.pid]
        for process in self.processes.values():
            if process.ppid == who.pid:
                process.ppid = self._new_parent(who.pid)

    def _new_parent(self, pid: int) -> int:
        ours = self._subreaper and self.keeper.pid in self.processes and pid != self.keeper.pid
        return self.keeper.pid if ours else 1

    def bystander(self, how: str, pid: int | None = None) -> ProcessId | None:
        if pid in self.processes:
            return None
        process = self._start(
            self.spooler.pid if how == "spooled" else 1,
            pid=pid,
            shows_token=how != "plain",
            uid=1001 if how == "other-user" else 1000,
            scope="host/boot/77" if how == "copied-token" else SCOPE,
        )
        return process.identity

    def own_children(self) -> frozenset[int]:
        return frozenset()

    def alive(self, who: ProcessId) -> bool:
        found = self.processes.get(who.pid)
        return found is not None and found.start == who.start

    def wait(self, seconds: float) -> None:
        self._clock += seconds
        for process in list(self.processes.values()):
            deadly = KILL in process.got or (TERM in process.got and process.kind != "deaf")
            if deadly and process.state != "T":
                self.end(process.identity)
        mine = [p for p in self.processes.values() if p.kind == "helper"]
        for helper in mine:  # it ends by itself when nobody is left whom it could clean up after
            born = [p for p in self.processes.values() if p.ppid == self.keeper.pid]
            if all(p.kind == "helper" for p in born):
                self.end(helper.identity)
        if not any(p.ppid == self.keeper.pid for p in self.processes.values()):
            self.processes.pop(self.keeper.pid, None)

    def now(self) -> float:
        return self._clock

    # -- What the tree and the deliverer ask of a system ---------------------------------------
    def _rows(self) -> Mapping[int, ProcessRow]:
        return {
            one.pid: ProcessRow(
                pid=one.pid,
                start=one.start,
                ppid=one.ppid,
                state=one.state,
                cpu_s=0.0,
                reaped_cpu_s=0.0,
                io_bytes=0,
                name="python",
            )
            for one in self.processes.values()
        }

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        return self._rows()

    def command_line(self, pid: int) -> tuple[str, ...]:
        found = self.processes.get(pid)
        if found is not None and found.kind == "helper":
            return ("python", "-c", "from multiprocessing.resource_tracker import main")
        return ("python", "train.py")

    def user_id(self, pid: int) -> int | None:
        found = self.processes.get(pid)
        return 1000 if pid == os.getpid() else None if found is None else found.uid

    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        found = self.processes.get(pid)
        if found is None or not found.shows_token:
            return {} if found is not None else None
        return {layout.ENV_TOKEN: self.token, layout.ENV_SCOPE: found.scope}

    held = ProcessSystem.held

    def send_signal(self, who: ProcessId, number: int) -> str:
        found = self.processes.get(who.pid)
        if found is None:
            return "gone"
        if found.start != who.start:
            return "not-ours"
        if number in (STOP, CONT):
            found.state = "T" if number == STOP else "S"
        else:
            found.got.append(number)
            found.state = "S" if number == KILL else found.state
        return "sent"
