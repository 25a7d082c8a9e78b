"""Dumps, process lists and tracebacks of several texts -> processes with roles and parents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core.diagnosis.facts import How, ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import Role, Value
from watchdog_train.evidence.text import roles, tables
from watchdog_train.evidence.text.reader import Dump, Raised, Reading
from watchdog_train.evidence.text.roles import Who

PROCESSES_CAP = 5000
_HOW: dict[str, How] = {"py-spy": "py-spy", "fault handler": "fault handler", "gdb": "gdb"}


class _Found(Value, frozen=True, kw_only=True):
    """A process as far as it is known."""

    who: Who
    role: Role
    threads: tuple[ThreadStack, ...] = ()
    how: How | None = None
    command: str | None = None
    state: str | None = None
    cpu_share: float | None = None
    wchan: str | None = None
    ppid: int | None = None
    kernel: tuple[str, ...] = ()
    changed: bool | None = None


class Assembly:
    """Puts together what texts tell about each process."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], _Found] = {}
        self._rows: list[tables.Row] = []
        self._named: dict[int, Who] = {}
        """Who a pid is by the name of a file that holds no stacks."""

    def add_reading(self, reading: Reading, who: Who) -> None:
        """A text's dumps, its process list and its kernel stack."""
        for at, dump in enumerate(reading.dumps):
            self.add_dump(dump, who, first=at == 0)
        rows = tables.read_processes(reading.log)
        own = [row for row in rows if row.pid is None or row.pid == who.pid]
        self._rows += [row for row in rows if row.pid is not None]
        if who.pid is not None and who.role is not None:
            self._named[who.pid] = who
        if who.role is None or (not own and not reading.kernel):
            return
        key = self._key(who, who.role)
        known = self._found.get(key) or _Found(who=who, role=who.role)
        for row in own:
            known = msgspec.structs.replace(
                known,
                state=known.state or row.state,
                wchan=known.wchan or row.wchan,
                cpu_share=row.cpu_share if known.cpu_share is None else known.cpu_share,
                ppid=known.ppid or row.ppid,
            )
        if reading.kernel:
            known = msgspec.structs.replace(known, kernel=known.kernel or reading.kernel)
        self._found[key] = known

    def add_dump(self, dump: Dump, who: Who, *, first: bool = True) -> None:
        """One process's stacks; a second dump of the same process tells whether it moved."""
        by_name = who if first else Who(rank=who.rank)
        role = by_name.role or roles.role_by_stack(dump.threads, dump.command)
        pid = dump.pid or (by_name.pid if first else None)
        rank = by_name.rank if by_name.rank is not None else dump.rank
        who = Who(role=role, rank=rank, worker=by_name.worker, pid=pid)
        key = self._key(who, role)
        known = self._found.get(key)
        if known is None and len(self._found) >= PROCESSES_CAP:
            return
        if known is not None and key[0] == "loose":  # nothing tells that it is the same process
            known, key = None, ("loose", len(self._found))
        changed = known.changed if known else None
        if known is not None and known.threads:
            changed = bool(changed) or _moved(known.threads, dump.threads)
        self._found[key] = _Found(
            who=who,
            role=role,
            threads=dump.threads,
            how=_HOW.get(dump.tool, "text"),
            command=dump.command or (known.command if known else None),
            state=dump.state or (known.state if known else None),
            cpu_share=dump.cpu_share if known is None else known.cpu_share,
            wchan=known.wchan if known else None,
            ppid=known.ppid if known else None,
            kernel=known.kernel if known else (),
            changed=changed,
        )

    def add_interrupted(self, raised: Iterable[Raised]) -> None:
        """Tracebacks of an interrupt show where a process was, if no dump does."""
        dumped = {(f.role, f.who.rank) for f in self._found.values() if f.threads}
        for item in raised:
            if not item.interrupted or item.owner == "ignored":
                continue
            thread = ThreadStack(frames=item.frames, name="MainThread", main=True)
            role = roles.role_by_stack((thread,), None)
            if item.owner and role == "rank":
                role = "other"
            if (role, item.rank) in dumped or len(self._found) >= PROCESSES_CAP:
                continue
            who = Who(role=role, rank=item.rank)
            key: tuple[object, ...] = ("interrupted", role, item.rank, len(self._found))
            if role == "rank":
                key = ("interrupted", role, item.rank)  # the last one is the innermost handler
            self._found[key] = _Found(who=who, role=role, threads=(thread,), how="traceback")

    def _key(self, who: Who, role: Role) -> tuple[object, ...]:
        if who.pid is not None:
            return ("pid", who.pid, who.rank)
        if who.rank is not None or who.worker is not None or role == "launcher":
            return (role, who.rank, who.worker)
        return ("loose", role)

    def processes(self, environment: dict[str, str]) -> tuple[ProcessEvidence, ...]:
        """Every process, ranks first; those without a pid are numbered below zero.

        Variables that the text sets somewhere are taken to be everybody's.
        """
        rows = tables.merged(self._rows)
        found = [*self._found.values(), *self._listed_only(rows)]
        order: dict[Role, int] = {"rank": 0, "worker": 1, "other": 2, "launcher": 3, "keeper": 4}
        found.sort(key=lambda f: (order[f.role], f.who.rank or 0, f.who.worker or 0))
        pids = [f.who.pid or -at for at, f in enumerate(found, start=1)]
        parents = _Parents(found, pids)
        return tuple(
            msgspec.structs.replace(
                _evidence(f, pid, parents.of(f, pid), rows.get(pid)), environment=environment
            )
            for f, pid in zip(found, pids, strict=True)
        )

    def _listed_only(self, rows: dict[int, tables.Row]) -> list[_Found]:
        """Processes of a list that nobody dumped but that may matter: dead, in D, compilers."""
        known = {f.who.pid for f in self._found.values() if f.who.pid is not None}
        found: list[_Found] = []
        for pid, row in rows.items():
            if pid in known or len(self._found) + len(found) >= PROCESSES_CAP:
                continue
            command = row.command or ""
            if row.state not in ("Z", "D") and not _matters(command):
                continue
            role: Role = "launcher" if roles.is_launcher(command) else "other"
            who = self._named.get(pid, Who(role=role, pid=pid))
            found.append(_Found(who=who, role=who.role or role, command=command))
        return found


def _matters(command: str) -> bool:
    words = ("python", "pt_data_worker", "ninja", "nvcc", "cc1plus", "cicc", "ptxas", "wandb")
    return any(word in command for word in words)


class _Parents:
    """Who started whom, where nothing says it: workers belong to their rank."""

    def __init__(self, found: Sequence[_Found], pids: Sequence[int]) -> None:
        ranks = [(f, pid) for f, pid in zip(found, pids, strict=True) if f.role == "rank"]
        self._by_rank = {f.who.rank: pid for f, pid in ranks}
        self._single = ranks[0][1] if len(ranks) == 1 else 0

    def of(self, found: _Found, pid: int) -> int:
        if found.ppid is not None:
            return found.ppid
        if found.role not in ("worker", "other"):
            return 0
        parent = self._by_rank.get(found.who.rank) if found.who.rank is not None else None
        return parent if parent not in (None, pid) else self._single


def _evidence(found: _Found, pid: int, parent: int, row: tables.Row | None) -> ProcessEvidence:
    command = found.command or (row.command if row else None) or ""
    state = found.state or (row.state if row else None)
    share = found.cpu_share
    if share is None and row is not None:
        share = row.cpu_share
    return ProcessEvidence(
        pid=pid,
        start=0,
        ppid=(row.ppid if row and row.ppid else None) or parent,
        role=found.role,
        rank=found.who.rank,
        worker=found.who.worker,
        name=(command.split() or [""])[0].rpartition("/")[2],
        command=tuple(command.split()[:100]),
        state=state,
        wchan=found.wchan or (row.wchan if row else None),
        kernel=found.kernel,
        cpu_share=share,
        threads=found.threads,
        how=found.how,
        why_not=None if found.how else "nobody dumped it",
        changed=found.changed,
    )


def _moved(before: Sequence[ThreadStack], after: Sequence[ThreadStack]) -> bool:
    """Whether any thread that is no idle helper is at another place."""
    return _places(before) != _places(after)


def _places(threads: Sequence[ThreadStack]) -> set[tuple[tuple[str, int], ...]]:
    return {
        tuple((frame.function, frame.line) for frame in thread.frames)
        for thread in threads
        if not is_idle_helper(thread)
    }
