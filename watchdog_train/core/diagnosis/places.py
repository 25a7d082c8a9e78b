"""Where the processes of a piece of evidence are: together, the root's, and as a fingerprint."""

from __future__ import annotations

import hashlib

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import busiest_thread, is_idle_worker
from watchdog_train.core.diagnosis.stacks import Frame, own_frames, place
from watchdog_train.core.model import CrashFact, Explanation, Role, Value

_ORDER: dict[Role, int] = {"rank": 0, "worker": 0, "other": 1, "launcher": 2, "keeper": 3}


class Group(Value):
    processes: tuple[ProcessEvidence, ...]
    frames: tuple[Frame, ...]
    idle: bool


def groups(evidence: Evidence, found: Explanation | None = None) -> tuple[Group, ...]:
    """Equal stacks of the tree together: the root's first, then the smallest groups.

    Idle workers are last whatever their number: they wait for the others.
    """
    same: dict[object, tuple[tuple[Frame, ...], list[ProcessEvidence]]] = {}
    for process in evidence.processes:
        thread = busiest_thread(process.threads)
        if thread is not None:
            key = process.role, place(thread.frames)
            same.setdefault(key, (own_frames(thread.frames), []))[1].append(process)
    together = [
        Group(
            processes=tuple(members),
            frames=frames,
            idle=all(one.role == "worker" and is_idle_worker(one.threads) for one in members),
        )
        for frames, members in same.values()
    ]
    root = root_process(evidence, found)

    def order(group: Group) -> tuple[bool, bool, int, int]:
        members = group.processes
        return root not in members, group.idle, _ORDER[members[0].role], len(members)

    return tuple(sorted(together, key=order))


def root_process(evidence: Evidence, found: Explanation | None) -> ProcessEvidence | None:
    """The process that the explanation is about, if it is in the evidence.

    Rank and role must match too: a pid may belong to any process of another machine. None if
    several machines have a match.
    """
    if found is None or found.root is None:
        return None
    who = found.root.who
    same = [p for p in evidence.processes if (p.rank, p.role) == (who.rank, who.role)]
    if who.pid is None:
        return next((p for p in same if p.pid <= 0), None)
    fitting = [p for p in same if p.pid == who.pid]
    return fitting[0] if len(fitting) == 1 else None


def evidence_fingerprint(
    evidence: Evidence, family: str | None, crash: CrashFact | None = None
) -> str:
    """Equal for the same hang or crash in two attempts."""
    places: set[tuple[str, ...]] = set()
    for process in evidence.processes:
        if process.role not in ("rank", "worker") or is_idle_worker(process.threads):
            continue
        thread = busiest_thread(process.threads)
        if thread is not None:
            places.add((process.role, *place(thread.frames)))
    if crash is not None:
        places.add(("crash", *crash.key))
    return hashlib.sha256(f"{family}\n{sorted(places)}".encode("utf-8", "replace")).hexdigest()[:16]
