"""One poll of the tree as a value: processes, totals, output, GPUs. Sends nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.actions import LaunchReport
from watchdog_train.core.detection import cpu_wait
from watchdog_train.core.detection.cpu_wait import CpuLine
from watchdog_train.core.detection.gpu import job_use
from watchdog_train.core.fold.state import State, Tree
from watchdog_train.core.model import (
    Member,
    MemberSample,
    Outliving,
    ProcessId,
    ProcessRow,
    Sample,
)
from watchdog_train.core.model.gpu import GpuHold, GpuSeen, GpuUse
from watchdog_train.core.recovery.kill import HELPERS
from watchdog_train.store.run_paths import TIMES_SUFFIX
from watchdog_train.store.slots import LastWords, read_note, read_saves, read_slots
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands.daemons import NO_NAMES, Daemons, command_of
from watchdog_train.supervisor.hands.exits import Departures
from watchdog_train.supervisor.hands.gpu import GpuMemory, GpuWatch
from watchdog_train.supervisor.hands.semaphores import Semaphores
from watchdog_train.supervisor.hands.tree import ProcessTree
from watchdog_train.system import gpu
from watchdog_train.system.protocol import stranger
from watchdog_train.trusted_files import entries

CHEAP_SOCKETS = 32
"""Processes whose sockets are read at every sample."""
ASK_ON_S = 60.0
"""How long to watch waits for a CPU after an idle window: without it a starved training would
seem idle in every other window.
"""
MOST_NAMES = 64
MOST_OUTLIVING = 8
STORE_VARIABLE = "MASTER_PORT"
LEAST_PORT, MOST_PORT = 1024, 65535
"""Lower ports belong to servers that are no store."""


class Sampler:
    def __init__(self, context: Context, last_words: LastWords) -> None:
        self._context = context
        self._tree: ProcessTree | None = None
        self._departures = Departures(context.system, last_words)
        asked = gpu.is_asked(context.policy.detection.gpu)
        self._gpus: GpuMemory | None = None
        if asked:
            watch = GpuWatch(context.children, gpu.command())
            self._gpus = GpuMemory(watch, context.system, self._name)
        self._of_earlier_attempts: frozenset[ProcessId] = frozenset()
        self._names: dict[int, str] = {}
        self._asking = False
        self._line = CpuLine()
        self._line_until = 0.0
        self._store_ports: dict[int, int | None] = {}
        self._before: dict[ProcessId, tuple[float, ProcessRow]] = {}
        self._semaphores = Semaphores(context.system)
        self._attempt_dir: Path | None = None
        self._daemons = Daemons(
            context.system, context.policy.stopping, self._places, self._next_ports
        )

    def forget(self) -> None:
        self._of_earlier_attempts = self._identities_ever()
        self._tree = None
        self._line = CpuLine()
        self._departures.forget()
        self._store_ports.clear()
        self._daemons.forget()
        self._semaphores.forget()

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.watch.close()

    @property
    def gpu_trouble(self) -> str | None:
        """Why nothing will be known of the GPUs any more."""
        return self._gpus.watch.trouble if self._gpus is not None else None

    def _identities_ever(self) -> frozenset[ProcessId]:
        now = self._tree.identities_ever() if self._tree is not None else frozenset[ProcessId]()
        return self._of_earlier_attempts | now

    def gpu_hold(self, now: float) -> GpuHold | None:
        """Processes that hold GPU memory the next attempt needs; between attempts."""
        return self._gpus.held(now, self._identities_ever()) if self._gpus is not None else None

    def gpu_seen(self) -> GpuSeen:
        if self._gpus is None:
            return GpuSeen()
        return self._gpus.seen(self._context.system.monotonic(), self._identities_ever())

    def members_ever(self) -> frozenset[int]:
        """Pids of all members of the present attempt so far."""
        ever = self._tree.identities_ever() if self._tree is not None else ()
        return frozenset(who.pid for who in ever)

    @property
    def rows(self) -> Mapping[int, ProcessRow]:
        return self._tree.rows if self._tree is not None else {}

    def look(
        self,
        state: State,
        mine: Tree,
        launch: LaunchReport | None,
        now: float,
        *,
        late_s: float,
        quiet: bool,
        exited_well: bool,
    ) -> Sample:
        """See Hands.sample(). `exited_well`: the root has exited with code 0."""
        context = self._context
        number = state.attempts[-1].attempt
        tree = self._seeded_tree(state, mine, launch)
        scan = read_slots(context.slot_dir) if context.slot_dir is not None else None
        slots = {
            reading.pid: reading
            for reading in (scan.readings if scan is not None else ())
            if reading.attempt == number
        }
        ours = bool(context.tasks.running & {"look", "evidence"})
        asked, self._asking = ours or self._asking, ours
        self._attempt_dir = context.directory.attempt(number)
        look = tree.look(
            slots,
            now=now,
            thorough=mine.kill is not None or mine.ended,
            left=self._daemons.left,
        )
        self._semaphores.look((s.member.identity for s in look.members), now)
        daemons = self._daemons.look(
            look.members,
            tree.rows,
            mine.root if mine.launched else None,
            now,
            urgent=mine.kill is None
            and (state.suspicion is not None or state.stop is not None or mine.ended),
        )
        gpu, members = self._gpu_use(look, now)
        ends = context.ends
        return msgspec.structs.replace(
            look,
            members=members,
            tcp_bytes=self._tcp_bytes(look, quiet=quiet),
            log_bytes=_log_bytes(self._attempt_dir),
            daemons=daemons,
            outliving=self._outliving(look, now) if exited_well else (),
            suspended_s=context.system.suspended_s(),
            late_s=late_s,
            ended=self._departures.look(look.members, now),
            vanished=self._departures.vanished,
            gpu=gpu,
            cpu_wait_s=self._cpu_wait_s(look, now, quiet=quiet),
            asked=asked,
            held_back=ends is not None and context.display.holds_back and ends.are_waiting(),
        )

    def _outliving(self, look: Sample, now: float) -> tuple[Outliving, ...]:
        """What processes that outlive a success do now; daemons that may stay are left out."""
        found: list[Outliving] = []
        before, self._before = self._before, {}
        for one in look.members:
            member = one.member
            if one.state in ("Z", "X") or member.role == "keeper" or member.name in HELPERS:
                continue
            if member.identity in self._daemons.left or len(found) >= MOST_OUTLIVING:
                continue
            row = self.rows[member.pid]
            at, last = before.get(member.identity, (now, row))
            self._before[member.identity] = (now, row)
            files = self._context.system.open_files(member.pid) or ()
            written = {file.name for file in files if file.writes and file.name.startswith("/")}
            found.append(
                Outliving(
                    pid=member.pid,
                    command=command_of(self._context.system, member.pid) or member.name,
                    cpu_share=_rate(row.cpu_s, last.cpu_s, now - at),
                    io_bytes_s=_rate(row.io_bytes, last.io_bytes, now - at),
                    files=tuple(sorted(n for n in written if not n.startswith(NO_NAMES)))[:8],
                )
            )
        return tuple(found)

    def _cpu_wait_s(self, look: Sample, now: float, *, quiet: bool) -> float | None:
        """Only if all else is idle: it takes 10 microseconds a thread."""
        if quiet:
            self._line_until = now + ASK_ON_S
        waits = None
        if now < self._line_until:
            ours = [member for member in look.members if member.member.role != "keeper"]
            ours.sort(key=lambda member: member.member.role != "rank")
            waits = self._context.system.cpu_waits(member.member.pid for member in ours)
        if waits is None:
            self._line = cpu_wait.unasked(self._line)
            return None
        self._line = cpu_wait.advance(self._line, ours, waits, now)
        return self._line.waited_s

    def _gpu_use(self, look: Sample, now: float) -> tuple[GpuUse | None, tuple[MemberSample, ...]]:
        """GPU use of the job, and the members with that of each rank.

        Not read before something trains: most commands need no GPU.
        """
        members = look.members
        if self._gpus is None or not any(m.slot is not None for m in members):
            return None, members
        pids = {member.member.pid for member in members}
        reading = self._gpus.watch.reading(now)
        if reading is None:
            return None, members
        self._gpus.follow(reading, pids)
        ranks = sum(m.member.role == "rank" for m in members)
        return self._named(job_use(reading, pids, ranks=ranks)), tuple(
            msgspec.structs.replace(m, gpu=self._named(job_use(reading, pids, m.member.pid)))
            if m.member.role == "rank"
            else m
            for m in members
        )

    def _named(self, use: GpuUse | None) -> GpuUse | None:
        if use is None or not use.others:
            return use
        return msgspec.structs.replace(use, other_names=tuple(map(self._name, use.others)))

    def _name(self, pid: int) -> str:
        """`pid 4242 (python train.py, user alice)`, if the system shows them."""
        if pid not in self._names:
            if len(self._names) > MOST_NAMES:
                self._names.clear()
            self._names[pid] = stranger(self._context.system, pid)
        return self._names[pid]

    def _tcp_bytes(self, look: Sample, *, quiet: bool) -> int | None:
        """Reading every socket of 320 processes takes 20 ms: only if all else is idle.

        A torchrun agent talks to its own store all the time (1.3 to 2.2 kB/s measured), and a rank
        that waits in a rendezvous to the agent's or rank 0's store (7 to 9), here or on another
        machine: none of that is a sign of life.
        """
        launchers = [s.member.pid for s in look.members if s.member.role in ("launcher", "keeper")]
        ranks = [s.member.pid for s in look.members if s.member.role == "rank"]
        pids = [s.member.pid for s in look.members if s.member.pid not in launchers]
        if len(pids) > CHEAP_SOCKETS and not quiet:
            return None
        stores = {port for pid in ranks if (port := self._store_port(pid)) is not None}
        return self._context.system.tcp_bytes(pids, (*launchers, *ranks), stores)

    def _store_port(self, pid: int) -> int | None:
        """The port of this rank's job store, which may be on another machine.

        Then its WORLD_SIZE exceeds this machine, and the job is killed for its silence only if all
        other machines are known to be silent, too.
        """
        if pid not in self._store_ports:
            found = self._context.system.environment(pid, (STORE_VARIABLE,)) or {}
            self._store_ports[pid] = _port(found)
        return self._store_ports[pid]

    def _next_ports(self) -> frozenset[int]:
        """Ports that the next attempt binds, by ranks and environment."""
        named = {*self._store_ports.values(), _port(self._context.environment)}
        return frozenset(port for port in named if port is not None)

    def _places(self) -> tuple[str, ...]:
        """Where this attempt saves, by its notes and finished saves."""
        context = self._context
        found = set(context.policy.recovery.checkpoints)
        if self._attempt_dir is not None:
            saves = read_saves(self._attempt_dir)
            found.update(os.path.dirname(save.path) for save in saves)
        for member in self._tree.members() if self._tree is not None else ():
            note = read_note(context.slot_dir, member.pid) if context.slot_dir else None
            found.update(note.output_dirs if note is not None else ())
        return tuple(os.path.abspath(os.path.join(context.cwd, place)) for place in found)

    def _seeded_tree(self, state: State, mine: Tree, launch: LaunchReport | None) -> ProcessTree:
        """The record of the tree, with keeper and root as soon as they are known.

        A keeper that never reports must be found and killed, too.
        """
        context = self._context
        if self._tree is None:
            self._tree = ProcessTree(
                context.system,
                token=state.attempts[-1].token,
                scope=context.scope,
                helpers=context.children.pids,
            )
            members = [one for one in state.members if one.host == mine.host]
            self._tree.seed(members)
            self._departures.seed(end for end in state.rank_ends if end.identity.host == mine.host)
            self._daemons.seed(
                [one for one in state.daemons if one.process.host == mine.host], members
            )
        keeper = root = None
        if launch is not None:
            keeper, root = launch.keeper, launch.root
        elif mine.launched:
            keeper, root = mine.keeper, mine.root
        elif context.keeper is not None:
            keeper = context.keeper.child.identity
        if keeper is not None:
            named = Member(pid=keeper.pid, start=keeper.start, role="keeper", name="keeper")
            self._tree.seed((named,))
        if root is not None:
            ppid = keeper.pid if keeper is not None else 0
            self._tree.seed((Member(pid=root.pid, start=root.start, role="other", ppid=ppid),))
        return self._tree


def _port(environment: Mapping[str, str]) -> int | None:
    text = environment.get(STORE_VARIABLE, "")
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return port if LEAST_PORT <= port <= MOST_PORT else None


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    return None if now is None or before is None or seconds <= 0 else (now - before) / seconds


def _log_bytes(attempt_dir: Path) -> int:
    """Size of all captured output, rotated files included."""
    total = 0
    with suppress(OSError), entries(attempt_dir) as found:
        for entry in found:
            if ".log" in entry.name and not entry.name.endswith(TIMES_SUFFIX):
                total += entry.stat().st_size
    return total
