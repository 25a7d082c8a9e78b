"""Where the processes of a piece of evidence are: together, the root's, and as a fingerprint."""

from __future__ import annotations

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import Group, busiest_thread, group, is_idle_worker
from watchdog_train.core.diagnosis.stacks import fingerprint, place
from watchdog_train.core.model import CrashFact, Explanation


def groups(evidence: Evidence, found: Explanation | None = None) -> tuple[Group, ...]:
    """Stacks of the whole tree, the same ones together, the root's first, then the odd ones."""
    together = group((p.label, p.identity, p.role, p.threads) for p in evidence.processes)
    root = root_process(evidence, found)
    identity = root.identity if root else None
    return tuple(sorted(together, key=lambda one: identity not in one.identities))


def root_process(evidence: Evidence, found: Explanation | None) -> ProcessEvidence | None:
    """The process that the explanation is about, where it is among the evidence.

    Its rank and role count as well as its pid: on another machine that may be anybody's. None
    where two machines have one that fits.
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
    """The same for the same hang or crash in two attempts."""
    places: list[tuple[str, tuple[str, ...]]] = []
    for process in evidence.processes:
        if process.role not in ("rank", "worker") or is_idle_worker(process.threads):
            continue
        thread = busiest_thread(process.threads)
        if thread is not None:
            places.append((process.role, place(thread.frames)))
    if crash is not None:
        places.append(("crash", crash.key))
    return fingerprint(family, places)
