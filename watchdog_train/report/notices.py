"""What a person should know that is no stall, as status shows it. Pure."""

from __future__ import annotations

from typing import Any

from watchdog_train.core.state import State
from watchdog_train.report.words import clean

MOST_ROWS = 4


def notice_rows(state: State) -> list[tuple[str, str]]:
    """Label and words: what was noticed about the present attempt, and its slowness."""
    if state.finished:
        return []
    said = [clean(notice.why, 400) for notice in state.noticed][-MOST_ROWS:]
    said += [clean(shared.why, 600) for shared in state.shared[-MOST_ROWS:]]
    if state.gpu_held is not None:
        said.append(clean(state.gpu_held.why, 600))
    rows = [("Notice" if number == 0 else "", text) for number, text in enumerate(said)]
    if state.slowdown is not None:
        rows.append(("Slow", clean(state.slowdown.why, 600)))
    return rows


def notices_object(state: State) -> list[dict[str, Any]]:
    """The same for a program."""
    found = [
        {"kind": notice.kind, "pids": list(notice.pids), "why": notice.why}
        for notice in state.noticed
    ]
    found += [
        {"kind": "checkpoints", "pids": [shared.pid], "why": shared.why} for shared in state.shared
    ]
    held = state.gpu_held
    if held is not None:
        pids = [holder.pid for holder in (*held.ours, *held.others)]
        found.append({"kind": "gpu-memory", "pids": pids, "why": held.why})
    return found


def slowdown_object(state: State) -> dict[str, Any] | None:
    """None: steps take their usual time, as far as is known."""
    slow = state.slowdown
    if slow is None:
        return None
    return {
        "usual_s": slow.usual_s,
        "step_s": slow.step_s,
        "factor": slow.factor,
        "changed": list(slow.changed),
        "why": slow.why,
    }
