"""What left the training's session, read while the training lives: with it go pipes and sockets.

A rank, a worker, a launcher and what a launcher has started belong to the training in whatever
session they are. All others outside of those sessions are read: few, and seldom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath

import msgspec

from watchdog_train.core.diagnosis.stacks import printable
from watchdog_train.core.model import (
    Daemon,
    DaemonFacts,
    Ground,
    Hold,
    Member,
    MemberSample,
    ProcessId,
    ProcessRow,
)
from watchdog_train.core.policy import Stopping
from watchdog_train.core.recovery.daemons import judge, matching
from watchdog_train.core.recovery.kill import HELPERS
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.system.protocol import MASTER, Connections, OpenFile, ProcessSystem

EVERY_S = 10.0
NEW_EVERY_S = 0.2
SHARE, NEW_SHARE = 100, 5
"""Minimum wait between two readings, as a multiple of the time that one takes."""
SETTLED_S = 0.5
"""A younger copy of a member may be about to exec another program."""
MOST_MEMBERS = 128
"""Whose files are compared, workers last: 100 files each take some 60 ms together."""
GPU_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd")
"""Open in every process with a CUDA or ROCm context, and in no monitor."""
NO_NAMES = ("/dev/", "/memfd:")
"""Files with such names may differ in each process, or are no files of the training."""
MOST_MAPS = 64
"""Members whose mapped memory is compared."""
LAST_OF_ITS_OWN = 2
"""A daemon's own output may lie next to the checkpoints: `> runs/tensorboard.log`."""
COMMAND_CHARS = 200


class Daemons:
    def __init__(
        self,
        system: ProcessSystem,
        stopping: Stopping,
        places: Callable[[], tuple[str, ...]],
        ports: Callable[[], frozenset[int]],
    ) -> None:
        """`places`: where the training saves. `ports`: of the next attempt."""
        self._system = system
        self._stopping = stopping
        self._places = places
        self._ports = ports
        self.forget()

    def forget(self) -> None:
        self._sessions: set[int] = set()
        self._commands: dict[str, ProcessId] = {}
        """Of every confirmed member of the training, exited ones included."""
        self._certain: set[ProcessId] = set()
        self._judged: dict[ProcessId, Daemon] = {}
        self._seen: dict[ProcessId, float] = {}
        self._next = self._next_new = 0.0

    def seed(self, daemons: Iterable[Daemon], members: Iterable[Member]) -> None:
        """By the log: judged daemons, and confirmed members."""
        self._judged = {daemon.process: daemon for daemon in daemons}
        self._certain = {member.identity for member in members} - self._judged.keys()

    @property
    def left(self) -> frozenset[ProcessId]:
        """Processes that wtrain does not kill."""
        return frozenset(who for who, daemon in self._judged.items() if daemon.is_left)

    def look(
        self,
        samples: Iterable[MemberSample],
        rows: Mapping[int, ProcessRow],
        root: ProcessId | None,
        now: float,
        *,
        urgent: bool,
    ) -> tuple[Daemon, ...]:
        """The judgement of each that lives; without a root no session is known.

        `urgent`: the next decision may be to kill.
        """
        alive = [s for s in samples if s.state not in ("Z", "X") and s.member.pid in rows]
        inside, outside = self._split(alive, rows, root)
        strays = {one.member.identity for one in outside}
        self._judged = {who: one for who, one in self._judged.items() if who in strays}
        soon = now >= self._next_new and (urgent or bool(strays - self._judged.keys()))
        if strays and (soon or now >= self._next):
            began = self._system.monotonic()
            self._read(alive, inside, outside, rows, now)
            took_s = self._system.monotonic() - began
            self._next = now + max(EVERY_S, SHARE * took_s)
            self._next_new = now + max(NEW_EVERY_S, NEW_SHARE * took_s)
        return tuple(self._judged.values())

    def _split(
        self,
        alive: list[MemberSample],
        rows: Mapping[int, ProcessRow],
        root: ProcessId | None,
    ) -> tuple[list[MemberSample], list[MemberSample]]:
        """Confirmed members, and processes that are judged."""
        if root is None:
            return alive, []
        self._sessions.add(root.pid)  # it leads one, dead or alive
        launchers = {s.member.pid for s in alive if _launches(s)}
        certain = []
        rest = []
        for one in alive:
            member = one.member
            if member.role == "keeper":
                continue
            ours = member.identity == root or member.role in ("rank", "worker", "launcher")
            ours = ours or member.identity in self._certain
            ours = ours or member.name in HELPERS  # torch_shm_manager calls setsid()
            if ours or member.ppid in launchers:
                certain.append(one)
                session = rows[member.pid].session
                if session is not None:
                    self._sessions.add(session)
            else:
                rest.append(one)
        outside = []
        for one in rest:
            session = rows[one.member.pid].session
            is_out = session is not None and session not in self._sessions
            if is_out or self._is_named(one.member.pid):
                outside.append(one)
            else:
                certain.append(one)
        return certain, outside

    def _is_named(self, pid: int) -> bool:
        """Matches a pattern of the user's: then it may stay, though it never left the session."""
        command = self._command(pid) if self._stopping.leave else ""
        return command not in self._commands and bool(matching(command, self._stopping.leave))

    def _command(self, pid: int) -> str:
        return " ".join(self._system.command_line(pid) or ())

    def _read(
        self,
        alive: list[MemberSample],
        inside: list[MemberSample],
        outside: list[MemberSample],
        rows: Mapping[int, ProcessRow],
        now: float,
    ) -> None:
        inside.sort(key=lambda one: one.member.role == "worker")
        members = [one.member.identity for one in inside[:MOST_MEMBERS]]
        for who in members:
            command = self._command(who.pid)
            if command:
                self._commands.setdefault(command, who)
        pumps = [one.member.identity for one in alive if one.member.role == "keeper"]
        pumps += [me for me in (self._system.identity(os.getpid()),) if me is not None]
        strays = [one.member.identity for one in outside]
        table = _Table(
            self._system,
            members=members,
            pumps=pumps,
            strays=strays,
            places=self._places(),
            ports=self._ports(),
        )
        living = {one.member.identity for one in alive}
        facts = (self._facts(who, rows, table, living, now) for who in strays)
        self._judged = {one.process: one for one in judge(filter(None, facts))}

    def _facts(
        self,
        who: ProcessId,
        rows: Mapping[int, ProcessRow],
        table: _Table,
        living: set[ProcessId],
        now: float,
    ) -> DaemonFacts | None:
        row = rows[who.pid]
        command = self._command(who.pid)
        is_copy = command in self._commands
        first = self._seen.setdefault(who, now)
        stays = row.session in (None, *self._sessions)
        if is_copy and (stays or now - first < SETTLED_S):
            return None
        facts = DaemonFacts(
            process=who,
            # What never left the session is judged alone, and only by its name.
            session=-who.pid if stays or row.session is None else row.session,
            command=command_of(self._system, who.pid),
            leave=matching(command, self._stopping.leave),
        )
        if stays:
            return facts
        holds = [Hold(ground="fork", member=self._commands[command])] if is_copy else []
        holds += table.holds(who)
        before = self._judged.get(who)
        if before is not None and before.hold.member not in (None, *living):
            holds.append(before.hold)  # its other end has died, and cannot be seen any more
        above = rows.get(row.ppid)
        return msgspec.structs.replace(
            facts,
            parent_session=above.session if above is not None else None,
            take=matching(command, self._stopping.take),
            own_terminal=bool(row.terminal) and row.terminal not in table.terminals,
            client=table.client(who),
            holds=tuple(holds),
        )


class _Table:
    """What each process has open, at one moment."""

    def __init__(
        self,
        system: ProcessSystem,
        *,
        members: list[ProcessId],
        pumps: list[ProcessId],
        strays: list[ProcessId],
        places: tuple[str, ...],
        ports: frozenset[int],
    ) -> None:
        """Read the open files of these processes; pumps (keeper, supervisor) read the output."""
        self._system = system
        self._members, self._pumps = members, pumps
        self._places, self._ports = places, ports
        self._files = {who: system.open_files(who.pid) or () for who in strays}
        self._theirs: dict[str, list[tuple[ProcessId, OpenFile]]] = {}
        for who in (*pumps, *members):
            for file in system.open_files(who.pid) or ():
                self._theirs.setdefault(file.name, []).append((who, file))
        self.terminals = {
            name.removeprefix(MASTER) for name in self._theirs if name.startswith(MASTER)
        }
        self._sockets = system.connections() or Connections({}, {}, {})
        self._ends = {ends: inode for inode, ends in self._sockets.tcp.items()}
        strays_files = (file for files in self._files.values() for file in files)
        self._known = {*self._theirs, *(file.name for file in strays_files)}
        self._memory: dict[ProcessId, frozenset[str]] = {}

    def holds(self, who: ProcessId) -> Iterator[Hold]:
        for file in self._files[who]:
            yield from self._hold(file)
        mine = _private(self._system.shared_mappings(who.pid))
        for member in self._members[:MOST_MAPS] if mine else ():
            if member not in self._memory:
                self._memory[member] = _private(self._system.shared_mappings(member.pid))
            if both := mine & self._memory[member]:
                yield Hold(ground="memory", what=printable(min(both)), member=member)

    def _hold(self, file: OpenFile) -> Iterator[Hold]:
        name = file.name
        theirs = self._theirs.get(name, [])
        if name.startswith("pipe:"):
            yield from self._tie(
                "pipe",
                (
                    who
                    for who, other in theirs
                    if (file.writes and other.reads) or (file.reads and other.writes)
                ),
            )
        elif name.startswith("/dev/pts/") and file.writes:
            yield from self._tie(
                "terminal", (who for who, _ in self._theirs.get(f"{MASTER}{name}", []))
            )
        elif name.startswith("socket:"):
            inode = _inode(name)
            port = self._sockets.ports.get(inode)
            if port is not None and (port in self._ports or theirs):
                yield Hold(ground="port", what=str(port))
            peer = self._sockets.unix.get(inode)
            if peer is not None and peer.peer:
                ends = self._theirs.get(f"socket:[{peer.peer}]", [])
                yield from self._tie("socket", (who for who, _ in ends))
        elif name.startswith(GPU_DEVICES):
            yield Hold(ground="gpu", what=name)
        elif file.writes and name.startswith("/") and not name.startswith(NO_NAMES):
            shared = [who for who, other in theirs if other.writes]
            inside = any(PurePath(name).is_relative_to(place) for place in self._places)
            if shared or (inside and file.number > LAST_OF_ITS_OWN):
                member = shared[0] if shared else None
                yield Hold(ground="file", what=printable(name), member=member)

    def _tie(self, ground: Ground, ends: Iterable[ProcessId]) -> Iterator[Hold]:
        for who in ends:
            output = who in self._pumps
            yield Hold(ground="output" if output else ground, what=f"pid {who.pid}", member=who)

    def client(self, who: ProcessId) -> str | None:
        """An address with a client that is neither of the training nor judged with it."""
        inodes = [_inode(file.name) for file in self._files[who] if file.name.startswith("socket:")]
        listening = {self._sockets.ports[inode] for inode in inodes if inode in self._sockets.ports}
        for inode in inodes:
            ends = self._sockets.tcp.get(inode)
            if ends is not None and ends[0][1] in listening - self._ports:
                other = self._ends.get((ends[1], ends[0]))
                if f"socket:[{other}]" not in self._known:
                    return f"port {ends[0][1]}"
            unix = self._sockets.unix.get(inode)
            if unix is None or not (unix.name and unix.peer):
                continue
            if f"socket:[{unix.peer}]" not in self._known:
                return printable(unix.name.decode("utf-8", "replace").strip("\0"))
        return None


def command_of(system: ProcessSystem, pid: int) -> str:
    """Its command line without secrets, COMMAND_CHARS at most; empty if unknown."""
    arguments = (system.command_line(pid) or ())[:COMMAND_CHARS]  # of thousands of files
    return printable(" ".join(redact_argv(arguments))[:COMMAND_CHARS])


def _launches(one: MemberSample) -> bool:
    """A plain launcher, unlike a script that has called spawn() and may have started anything."""
    return one.member.role == "launcher" and (one.slot is None or one.slot.role == "launcher")


def _inode(name: str) -> int:
    return int(name.removeprefix("socket:[").removesuffix("]"))


def _private(mappings: frozenset[str] | None) -> frozenset[str]:
    """Unnamed memory: only processes that inherited it, or were handed it, have it."""
    return frozenset(each for each in mappings or () if each.endswith("(deleted)"))
