"""How an attempt's root exited, and its ranks while it continues.

Only the parent of a process can ask for its status, and we are not the parent. The sources are the
keeper's file and message, what the kernel shows to other processes, and the last state of a slot.
A silence proves nothing before its timeout. Unknown is a valid answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.core.detection.rank_gone import NOT_CAUSED_BY_PEERS, has_failed, unanswered
from watchdog_train.core.model import (
    ExitStatus,
    Member,
    MemberSample,
    ProcessId,
    RankEnd,
    SlotReading,
    Value,
)
from watchdog_train.core.starting.command_line import SHELLS, python_target
from watchdog_train.store.slots import LastWords
from watchdog_train.supervisor.context import Context
from watchdog_train.system.protocol import ExitWatch, ProcessSystem
from watchdog_train.whole_files import read_json

RECORD_CAP_BYTES = 64 * 1024


class _Failure(Value):
    message: str


class _Exit(Value):
    code: int | None = None
    signal: int | None = None


class KeeperRecord(Value):
    """A keeper's record of itself and of the training it started, or failed to start."""

    keeper_pid: int
    keeper_start: int | None
    """None where only psutil has start times: ask the system for the identity."""
    pid: int | None
    start: int | None
    failure: _Failure | None = msgspec.field(name="error")
    runs: bool
    """False: forked, and waits for the keeper's go-ahead before it becomes the training."""

    def keeper(self, system: ProcessSystem) -> ProcessId:
        return _identity(system, self.keeper_pid, self.keeper_start)

    @property
    def error(self) -> str | None:
        """Why no training could be started; None if one was."""
        return self.failure.message if self.failure is not None else None

    def root(self, system: ProcessSystem) -> ProcessId | None:
        """The training's root process; None if none could be started."""
        return None if self.pid is None else _identity(system, self.pid, self.start)


def read_keeper(attempt_dir: Path) -> KeeperRecord | None:
    """The keeper's record, None before there is one."""
    return read_json(attempt_dir / "keeper.json", KeeperRecord, cap_bytes=RECORD_CAP_BYTES)


def read_exit(attempt_dir: Path) -> ExitStatus | None:
    """How the training's root exited, None until that is recorded."""
    keeper = read_keeper(attempt_dir)
    if keeper is not None and keeper.error is not None:
        return ExitStatus(code=None, signal=None, how_known="not-started", error=keeper.error)
    found = read_json(attempt_dir / "exit.json", _Exit, cap_bytes=RECORD_CAP_BYTES)
    if found is None:
        return None
    return ExitStatus(code=found.code, signal=found.signal, how_known="keeper-file")


def _identity(system: ProcessSystem, pid: int, start: int | None) -> ProcessId:
    if start is not None:
        return ProcessId(pid, start)
    return system.identity(pid) or ProcessId(pid, 0)


FILE_WITHIN_S = 0.5
"""Wait for exit.json after the keeper's message: the file has more detail."""
SILENT_KEEPER_S = 30.0
"""A keeper silent for this long after the root's exit will send or write nothing any more."""


class Ending:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._told_at: float | None = None
        self._rootless_since: float | None = None
        self._root: ProcessId | None = None
        self._watch: ExitWatch | None = None
        self.status: ExitStatus | None = None
        self.known_at = 0.0
        """When `status` became known, monotonic seconds; 0 before."""

    def follow(self, root: ProcessId | None) -> None:
        """Follow the root while it lives: its keeper may die before it."""
        if root is not None and self._root is None:
            self._root = root
            self._watch = self._context.system.watch_exit(root)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def read(self, attempt_dir: Path, now: float) -> bool:
        """Ask the file, and the keeper; whether there is a new answer."""
        if self.status is not None:
            return False
        self.status = read_exit(attempt_dir) or self._told(now)
        if self.status is not None:
            self.known_at = now
        return self.status is not None

    def behind(self, end: RankEnd | None) -> None:
        """This failure is behind the root's exit code 0: it is how the attempt ended."""
        if end is not None and self.status is not None:
            code = end.code or (1 if end.signal is None else None)
            signal = end.signal if code is None else None
            self.status = msgspec.structs.replace(self.status, code=code, signal=signal, behind=end)

    def settle(
        self, attempt_dir: Path, now: float, *, root_alive: bool, keeper_alive: bool
    ) -> bool:
        """After a sample: stop waiting when nothing is left to answer; whether it did."""
        if self.status is not None:
            return False
        if root_alive:
            self._rootless_since = None
            return False
        if self._rootless_since is None:
            self._rootless_since = now
        if keeper_alive and now - self._rootless_since < SILENT_KEEPER_S:
            return False
        keeper = self._context.keeper
        if keeper is not None:
            keeper.clear_wake()
        told = keeper.exit if keeper is not None else None
        gone = ExitStatus(code=None, signal=None, how_known="gone")
        # Read once more: the keeper may have written it since.
        self.status = read_exit(attempt_dir) or told or self._seen() or gone
        self.known_at = now
        return True

    def _seen(self) -> ExitStatus | None:
        """What the system shows of a root whose keeper is gone, or does not answer."""
        if self._root is None:
            return None
        # We adopt orphans: its parent is this supervisor, if this one has started the keeper.
        how, status = "parent", self._context.children.adopted_status(self._root)
        if status is None and self._watch is not None:
            how, status = "kernel", self._watch.status()
        if status is None:
            return None
        code, signal = (status, None) if status >= 0 else (None, -status)
        return ExitStatus(code=code, signal=signal, how_known=how)

    def _told(self, now: float) -> ExitStatus | None:
        """The keeper's message, once exit.json had its time to appear."""
        keeper = self._context.keeper
        if keeper is None or keeper.exit is None:
            return None
        if self._told_at is None:
            self._told_at = now
        return keeper.exit if now - self._told_at >= FILE_WITHIN_S else None


MOST_WATCHED = 128
"""More ranks than this on one machine are followed without a descriptor each."""
MOST_ENDS = 1024
MOST_VANISHED = 16
_ASKED_TO_END = (1, 2, 15)
_TIMEOUT = "timeout"
"""coreutils: the script itself has set this limit to its training."""
_STARTERS = ("srun", "mpirun", "mpiexec", "orterun", "prterun")


class Departures:
    """The ranks and launchers of one attempt, and which of them have exited."""

    def __init__(self, system: ProcessSystem, last_words: LastWords) -> None:
        self._system = system
        self._last_words = last_words
        self._alive: dict[ProcessId, MemberSample] = {}
        self._watches: dict[ProcessId, ExitWatch] = {}
        self._scripts: dict[ProcessId, str] = {}
        self._ends: dict[ProcessId, RankEnd] = {}
        self._launching: dict[ProcessId, str] = {}
        self._launchers: dict[ProcessId, RankEnd] = {}
        self.vanished: tuple[RankEnd, ...] = ()
        """Helpers that failed, and scripts whose exit status is unknown, the newest last."""
        self._first_seen: dict[int, Member] = {}
        """By pid, with the parent that an orphan had at first."""

    def seed(self, ends: Iterable[RankEnd]) -> None:
        for end in ends:
            self._ends.setdefault(ProcessId(end.pid, end.start), end)

    def look(self, members: Iterable[MemberSample], now: float) -> tuple[RankEnd, ...]:
        """All ranks that have exited so far, oldest first."""
        present = {sample.member.identity: sample for sample in members}
        for identity, sample in present.items():
            known, member = self._first_seen.get(identity.pid), sample.member
            if known is None or known.identity != identity:
                self._first_seen[identity.pid] = member
            elif known.name != member.name:  # as after an exec
                self._first_seen[identity.pid] = msgspec.structs.replace(known, name=member.name)
            if _answers(sample):
                self._launching[identity] = sample.member.name
            if sample.member.role != "keeper" and sample.state not in ("Z", "X"):
                self._follow(identity, sample)
        for identity, sample in list(self._alive.items()):
            state = present[identity].state if identity in present else None
            # A zombie whose other threads still run has no status yet: a dying rank for 0.1 s.
            zombie = state in ("Z", "X") and not self._system.is_alive(identity)
            if zombie or state is None:
                self._bury(identity, sample, now)
        for identity, end in self._ends.items():
            unnoticed = identity in present
            if unnoticed != end.unnoticed:
                self._ends[identity] = msgspec.structs.replace(end, unnoticed=unnoticed)
        return tuple(self._ends.values())

    def hidden_failure(self, now: float) -> RankEnd | None:
        """After the root's exit code 0: the failure behind it that no launcher reported."""
        for identity, sample in list(self._alive.items()):
            if self._system.is_alive(identity) is False:
                self._bury(identity, sample, now)
        led: dict[ProcessId | None, list[RankEnd]] = {}
        for end in self._ends.values():
            led.setdefault(self._launcher_of(end), []).append(end)
        ends = led.pop(None, [])
        for launcher, ranks in led.items():
            step = max((end.step for end in ranks if end.step is not None), default=None)
            if launcher in self._launchers:
                ends.append(msgspec.structs.replace(self._launchers[launcher], step=step))
        found = unanswered(map(self._as_meant, ends))
        failed = [end for end in led.get(found.identity if found else None, ()) if has_failed(end)]
        return min(failed, key=lambda end: end.at, default=found)

    def _launcher_of(self, end: RankEnd) -> ProcessId | None:
        """The launcher that reports this rank by its own exit code."""
        above = self._parent(end.pid)
        while above is not None and above.role != "keeper":
            if above.identity in self._launching:
                return above.identity
            above = self._parent(above.pid)
        # Slurm's daemon starts the tasks of srun, outside of our tree.
        slurm = (who for who, name in self._launching.items() if name == "srun")
        return next(slurm, None) if above is None else None

    def _parent(self, pid: int) -> Member | None:
        return self._first_seen.get(self._first_seen[pid].ppid) if pid in self._first_seen else None

    def _as_meant(self, end: RankEnd) -> RankEnd:
        """Without a signal that the script itself has sent, if its parent shows it."""
        above = self._parent(end.pid)
        polite = end.signal in _ASKED_TO_END and above is not None and above.name not in SHELLS
        if polite or (above is not None and above.name == _TIMEOUT):
            return msgspec.structs.replace(end, signal=None)
        return end

    def forget(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        for known in (self._alive, self._ends, self._launching, self._launchers, self._first_seen,
                      self._scripts):  # fmt: skip
            known.clear()
        self.vanished = ()

    def _bury(self, identity: ProcessId, sample: MemberSample, now: float) -> None:
        end = self._end(sample, now)
        del self._alive[identity]
        if identity in self._launching:
            self._launchers[identity] = end
        elif end.helper is None:
            if len(self._ends) < MOST_ENDS:
                self._ends[identity] = end
        elif (
            end.signal in NOT_CAUSED_BY_PEERS
            or end.said == "exception"
            or (end.script and end.code != 0 and end.signal is None)
        ):
            self.vanished = (*self.vanished, end)[-MOST_VANISHED:]

    def _follow(self, identity: ProcessId, sample: MemberSample) -> None:
        new, self._alive[identity] = identity not in self._alive, sample
        if new and sample.member.role == "other":
            target = python_target(self._system.command_line(identity.pid) or ())
            self._scripts[identity] = target.name if target is not None else ""
        if identity in self._launching:
            self._last_words.follow((identity.pid,))
        most = MOST_WATCHED if sample.member.role == "rank" else MOST_WATCHED // 2
        if identity not in self._watches and len(self._watches) < most:
            watch = self._system.watch_exit(identity)
            if watch is not None:
                self._watches[identity] = watch

    def _end(self, sample: MemberSample, now: float) -> RankEnd:
        member = sample.member
        watch = self._watches.pop(member.identity, None)
        status = watch.status() if watch is not None else None
        if watch is not None:
            watch.close()
        slot = self._last_words.of(member.pid) or sample.slot
        if slot is not None and slot.start not in (0, member.start):
            slot = sample.slot
        return RankEnd(
            pid=member.pid,
            start=member.start,
            rank=member.rank or 0,
            world_size=slot.world_size if slot is not None else None,
            step=slot.step if slot is not None else None,
            total_steps=slot.total_steps if slot is not None else None,
            beat_ns=slot.last_beat_ns if slot is not None else 0,
            helper=None if member.role == "rank" else member,
            script=self._scripts.pop(member.identity, ""),
            phase=slot.phase if slot is not None else "unknown",
            at=now,
            code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            said=_said(slot),
        )


def _answers(sample: MemberSample) -> bool:
    """A launcher that reports by its exit code how its ranks ended; no script that forks."""
    ours = sample.slot is None or sample.slot.role == "launcher"
    return sample.member.name in _STARTERS or (sample.member.role == "launcher" and ours)


def _said(slot: SlotReading | None) -> Literal["quiet", "exception"] | None:
    if slot is None or not slot.exiting:
        return None
    return "exception" if slot.failed else "quiet"
