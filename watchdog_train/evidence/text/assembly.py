"""Dumps and tracebacks of several texts -> processes with roles and parents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core.diagnosis.facts import How, ProcessEvidence
from watchdog_train.core.diagnosis.idle import places_at_work
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import Role
from watchdog_train.evidence.text import roles
from watchdog_train.evidence.text.reader import Dump, Raised
from watchdog_train.evidence.text.roles import Who

PROCESSES_CAP = 5000
_HOW: dict[str, How] = {"py-spy": "py-spy", "fault handler": "fault handler"}
_ORDER: dict[Role, int] = {"rank": 0, "worker": 1, "other": 2, "launcher": 3, "keeper": 4}
_replace = msgspec.structs.replace


class Assembly:
    """Puts together what texts tell about each process; a pid or parent of 0 is not known."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], ProcessEvidence] = {}

    def add_dump(self, dump: Dump, who: Who, *, first: bool = True) -> None:
        """One process's stacks; a second dump of the same process tells whether it moved."""
        by_name = who if first else Who(rank=who.rank)
        role = by_name.role or roles.role_by_stack(dump.threads, dump.command)
        pid = dump.pid or (by_name.pid if first else None)
        rank = by_name.rank if by_name.rank is not None else dump.rank
        who = Who(role=role, rank=rank, worker=by_name.worker, pid=pid)
        how = _HOW.get(dump.tool, "text")
        key = self._key(who, role)
        if key[0] == "loose" and self._found:
            only, one = next(iter(self._found.items()))
            if len(self._found) == 1 and one.role == role and one.how != how:
                key = only  # one process by two tools
            elif key in self._found:  # nothing tells that it is the same process
                key = ("loose", len(self._found))
        known = self._found.get(key)
        if known is None and len(self._found) >= PROCESSES_CAP:
            return
        known = known or _replace(_process(who, role), cpu_share=dump.cpu_share)
        changed, threads = known.changed, dump.threads
        if known.threads and how != known.how:  # two tools, one look: neither is a movement
            threads, how = (*known.threads, *threads), known.how or how
        elif known.threads:
            changed = changed or _moved(known.threads, threads)
        command = tuple((dump.command or "").split()[:100]) or known.command
        self._found[key] = _replace(
            known,
            threads=threads,
            how=how,
            command=command,
            name=(command or ("",))[0].rpartition("/")[2],
            state=dump.state or known.state,
            changed=changed,
        )

    def add_interrupted(self, raised: Iterable[Raised]) -> None:
        """Tracebacks of an interrupt show where a process was, if no dump does."""
        dumped = {(one.role, one.rank) for one in self._found.values() if one.threads}
        for item in raised:
            if not item.interrupted or item.owner == "ignored":
                continue
            thread = ThreadStack(frames=item.frames, name="MainThread", main=True)
            role = roles.role_by_stack((thread,), None)
            if item.owner and role == "rank":
                role = "other"
            if (role, item.rank) in dumped or len(self._found) >= PROCESSES_CAP:
                continue
            # a rank's last one is its innermost handler
            key = ("interrupted", role, item.rank, role != "rank" and len(self._found))
            found = _process(Who(rank=item.rank), role)
            self._found[key] = _replace(found, threads=(thread,), how="traceback")

    def _key(self, who: Who, role: Role) -> tuple[object, ...]:
        if who.pid is not None:
            same = (key for key in self._found if who.rank is None and key[:2] == ("pid", who.pid))
            return next(same, ("pid", who.pid, who.rank))
        if who.rank is not None or who.worker is not None or role == "launcher":
            return (role, who.rank, who.worker)
        return ("loose", role)

    def processes(self) -> tuple[ProcessEvidence, ...]:
        """Every process, ranks first; those without a pid are numbered below zero."""
        found = sorted(
            self._found.values(),
            key=lambda one: (_ORDER[one.role], one.rank or 0, one.worker or 0),
        )
        found = [_replace(one, pid=one.pid or -at) for at, one in enumerate(found, start=1)]
        seen = Counter[int]()
        for at, one in enumerate(found):  # ranks of several containers may all have the pid 1
            found[at] = _replace(one, part=seen[one.pid])
            seen[one.pid] += 1
        ranks = [one for one in found if one.role == "rank"]
        by_rank = {one.rank: one.pid for one in ranks}
        single = ranks[0].pid if len(ranks) == 1 else 0
        return tuple(_replace(one, ppid=one.ppid or _parent(one, by_rank, single)) for one in found)


def _process(who: Who, role: Role) -> ProcessEvidence:
    return ProcessEvidence(
        pid=who.pid or 0, start=0, ppid=0, role=role, rank=who.rank, worker=who.worker
    )


def _parent(one: ProcessEvidence, by_rank: dict[int | None, int], single: int) -> int:
    """Who started it, where nothing says it: workers belong to their rank."""
    if one.role not in ("worker", "other"):
        return 0
    parent = by_rank.get(one.rank, one.pid) if one.rank is not None else one.pid
    return parent if parent != one.pid else single


def _moved(before: Sequence[ThreadStack], after: Sequence[ThreadStack]) -> bool:
    """Whether any thread that is no idle helper is at another place."""
    return places_at_work(before) != places_at_work(after)
