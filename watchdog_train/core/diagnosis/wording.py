"""What a diagnosis says: explanation, lines of evidence, and what goes with "I do not know".

Pure. What comes from the training is filled in, never parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.found import NO_STACK, Culprit
from watchdog_train.core.diagnosis.idle import busiest_thread
from watchdog_train.core.diagnosis.matching import Bound, Match
from watchdog_train.core.diagnosis.scene import Scene
from watchdog_train.core.diagnosis.stacks import Frame, deciding_frame
from watchdog_train.core.model import signal_name

LINE_SHOWN = 300
SHOWN = 8
"""Ranks that are named; of more their number."""


def ending(evidence: Evidence) -> tuple[str, ...]:
    """How the training ended, if it did."""
    end = evidence.exit
    if end is None:
        return ()
    if end.signal is not None:
        return (f"the training was ended by {signal_name(end.signal)}",)
    if end.code is not None:
        return (f"the training exited with code {end.code}",)
    return ("the training is gone and left no exit status",)


def culprit_of(match: Match, scene: Scene) -> Culprit | None:
    """The process that a match points at: of the first clause, else of its line or its records."""
    if match.bound:
        bound = match.bound[0]
        process = bound.process
        return Culprit(
            rank=process.rank,
            role=process.role,
            pid=process.pid if process.pid > 0 else None,
            frame=frame_of(bound) or NO_STACK,
        )
    rank = match.hit.rank if match.hit else None
    if rank is None and match.signature.ranks is not None and scene.recorded is not None:
        rank = scene.recorded.culprit
    if rank is None and match.signature.exit_signal and scene.first_failure is not None:
        rank = scene.first_failure.rank
    if rank is None:
        return None
    owner = next((p for p in scene.evidence.processes if (p.role, p.rank) == ("rank", rank)), None)
    thread = busiest_thread(owner.threads) if owner else None
    frame = deciding_frame(thread.frames) if thread else None
    return Culprit(
        rank=rank,
        role="rank",
        pid=owner.pid if owner and owner.pid > 0 else None,
        frame=str(frame) if frame else NO_STACK,
    )


def _named(frame: Frame) -> str:
    """Its function; of one without symbols, its library."""
    return frame.short if frame.name.startswith("0x") else frame.name


def frame_of(bound: Bound) -> str | None:
    """The frame to show of a process that fits."""
    frame = deciding_frame(bound.thread.frames) if bound.thread else None
    return str(frame) if frame else None


def worded(template: str, match: Match, scene: Scene) -> str:
    """The explanation, filled in one pass."""
    bound = match.bound[0] if match.bound else None
    process = bound.process if bound else None
    end = scene.evidence.exit
    parent = next((b.process for b in match.bound[1:]), None)
    top = bound.thread.frames[0] if bound and bound.thread and bound.thread.frames else None
    culprit = culprit_of(match, scene)
    rank = culprit.rank if culprit else None
    silent = ", ".join(map(str, scene.silent_ranks[:SHOWN]))
    values = {
        "who": process.who if process else f"rank {rank}" if rank is not None else "the training",
        "rank": "?" if rank is None else str(rank),
        "pid": str(process.pid) if process and process.pid > 0 else "?",
        "frame": (frame_of(bound) if bound else None) or "an unknown frame",
        "top": _named(top) if top else "an unknown frame",
        "line": (match.hit.line.text if match.hit else "").strip()[:LINE_SHOWN],
        "signal": signal_name(end.signal) if end is not None and end.signal else "a signal",
        "parent": parent.who if parent else "its parent",
        "op": (scene.recorded.op if scene.recorded else None) or "a collective",
        "others": ", ".join(scene.evidence.host.gpu_others[:4]) or "others",
        "silent": f"rank(s) {silent}" if silent else "the ranks that printed nothing",
        "all": _with_places(match),
        "unseen": _unseen(scene),
    }
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


def _with_places(match: Match) -> str:
    """`rank 1 (pid 11) at load (train.py:3); rank 2 (pid 12) at load (train.py:3)`."""
    parts = [
        f"{bound.process.who} at {frame_of(bound) or 'an unknown frame'}"
        for bound in match.alike[:SHOWN]
    ]
    more = len(match.alike) - SHOWN
    return "; ".join(parts) + (f" and {more} more" if more > 0 else "")


def _unseen(scene: Scene) -> str:
    """A sentence on the ranks that the others miss, with a blank before it; or nothing."""
    if scene.not_come:
        return f" By what the others print, {_numbers(scene.not_come)} did not come."
    if scene.ranks_seen and scene.silent_ranks:
        return f" Of {_numbers(scene.silent_ranks)} nothing is seen here."
    return ""


def _numbers(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, at most so many of them."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > SHOWN:
        return f"ranks {', '.join(map(str, ranks[:SHOWN]))} and {len(ranks) - SHOWN} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
