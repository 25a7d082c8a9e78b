"""What moved between two pieces of evidence of one job. Pure; judges nothing.

A stack that differs proves life; equal ones prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import busiest_thread
from watchdog_train.core.diagnosis.stacks import Frame, own_frames
from watchdog_train.core.model import Role, Value

What = Literal["moved", "same", "gone", "new", "unknown"]
_ORDER: dict[What, int] = {"moved": 0, "gone": 1, "new": 2, "unknown": 3, "same": 4}


class Change(Value, frozen=True, kw_only=True):
    """One process in both."""

    what: What
    who: str
    role: Role
    rank: int | None
    worker: int | None
    before_pid: int | None
    after_pid: int | None
    before: str | None
    """Its innermost own frame with the line, or why there is none."""
    after: str | None
    before_state: str | None
    after_state: str | None


def difference(before: Evidence, after: Evidence) -> tuple[Change, ...]:
    """Every process of either, those that moved first.

    The same process is the one with the same pid and start; in another attempt, the one with the
    same role, rank and worker number.
    """
    second = {(p.pid, p.start): p for p in after.processes}
    by_role = _by_role(after.processes)
    used: set[int] = set()
    changes: list[Change] = []
    for process in before.processes:
        twin = second.get((process.pid, process.start))
        if twin is None:
            twin = next((p for p in by_role.get(_key(process), ()) if id(p) not in used), None)
        if twin is not None:
            used.add(id(twin))
        changes.append(_change(process, twin))
    changes += [_change(None, p) for p in after.processes if id(p) not in used]
    return tuple(sorted(changes, key=lambda one: _ORDER[one.what]))


def _key(process: ProcessEvidence) -> tuple[Role, int | None, int | None]:
    return process.role, process.rank, process.worker


def _by_role(
    processes: Iterable[ProcessEvidence],
) -> dict[tuple[Role, int | None, int | None], list[ProcessEvidence]]:
    found: dict[tuple[Role, int | None, int | None], list[ProcessEvidence]] = {}
    for process in processes:
        found.setdefault(_key(process), []).append(process)
    return found


def _change(before: ProcessEvidence | None, after: ProcessEvidence | None) -> Change:
    one = before or after
    assert one is not None  # noqa: S101 - narrows for the type checker
    return Change(
        what=_what(before, after),
        who=one.label,
        role=one.role,
        rank=one.rank,
        worker=one.worker,
        before_pid=before.pid if before and before.pid > 0 else None,
        after_pid=after.pid if after and after.pid > 0 else None,
        before=_shown(before),
        after=_shown(after),
        before_state=before.state if before else None,
        after_state=after.state if after else None,
    )


def _what(before: ProcessEvidence | None, after: ProcessEvidence | None) -> What:
    if after is None:
        return "gone"
    if before is None:
        return "new"
    first, second = _stack(before), _stack(after)
    if not first or not second:
        return "unknown"
    return "same" if _places(first) == _places(second) else "moved"


def _stack(process: ProcessEvidence) -> tuple[Frame, ...]:
    thread = busiest_thread(process.threads)
    return own_frames(thread.frames) if thread else ()


def _places(frames: Iterable[Frame]) -> tuple[tuple[str, str, int], ...]:
    """Native frames come and go with the tool that looked."""
    return tuple((f.name, f.short, f.line) for f in frames if not f.native)


def _shown(process: ProcessEvidence | None) -> str | None:
    if process is None:
        return None
    frames = [frame for frame in _stack(process) if not frame.native]
    return " < ".join(map(str, frames[:3])) if frames else process.why_not or "no stack"
