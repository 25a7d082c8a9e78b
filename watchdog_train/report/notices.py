"""What a person should know that is no stall, as status shows it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Difference, Why
from watchdog_train.report.daemons_text import left_words
from watchdog_train.report.live import Live
from watchdog_train.report.pace_text import difference_words, slow_words, straggler_words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, duration

MOST_ROWS = 4
UNSAVED_S = 1800.0
"""Training without a finished save for so long is worth a word."""


def notice_rows(state: State, live: Live | None = None) -> list[tuple[str, str]]:
    """Label and words: what was noticed about the present attempt, and its slowness."""
    left = [("Left", text) for text in left_words(state)]
    if state.finished:
        return left
    said = [why_text(notice.why) for notice in state.noticed][-MOST_ROWS:]
    said += [why_text(warned.why) for warned in state.warned[-MOST_ROWS:]]
    said += [why_text(shared.why) for shared in state.shared[-MOST_ROWS:]]
    unsaved = unsaved_why(state, live)
    if unsaved is not None:
        said.append(why_text(unsaved))
    if state.gpu_held is not None:
        said.append(why_text(state.gpu_held.why))
    rows = [("Notice" if number == 0 else "", text) for number, text in enumerate(said)]
    if state.slowdown is not None:
        rows.append(("Slow", slow_words(state.slowdown)))
    if state.straggler is not None:
        rows.append(("Straggler", straggler_words(state.straggler)))
    return rows + left


def unsaved_why(state: State, live: Live | None) -> Why | None:
    """That nothing has been saved for long, while the training runs; None where that is not so."""
    attempt = state.attempt
    if live is None or live.mono is None or attempt is None or attempt.ended or state.finished:
        return None
    if any(warned.kind == "unsaved" for warned in state.warned):
        return None  # said already
    if attempt.first_step_s is None or live.supervisor_alive is False:
        return None
    trained_s = live.mono - attempt.launching_mono - attempt.first_step_s
    saved_at = live.checkpoint.saved_at if live.checkpoint is not None else None
    unsaved_s = trained_s if saved_at is None else min(trained_s, live.at - saved_at)
    if unsaved_s < UNSAVED_S:
        return None
    if live.checkpoint is None and attempt.plan.checkpoint is None:
        return Why("never-saved", seconds=unsaved_s)
    return Why("not-saved-since", seconds=unsaved_s)


def warning_over(event: e.WarningOver) -> str:
    """That what was warned of is not so any more."""
    what = {
        "disk": f"the disk of {clean(event.about, 400)} has room enough again",
        "memory": "memory is enough again",
        "gpu-shared": "nobody else is on the GPU any more",
        "unsaved": "a save has ended",
    }[event.kind]
    return f"{what}, {duration(event.seconds)} after the warning"


def notices_object(state: State, live: Live | None = None) -> list[dict[str, Any]]:
    """The same for a program."""
    found: list[dict[str, Any]] = [
        {"kind": notice.kind, "pids": list(notice.pids), "why": notice.why}
        for notice in state.noticed
    ]
    found += [{"kind": warned.kind, "pids": [], "why": warned.why} for warned in state.warned]
    found += [
        {"kind": "checkpoints", "pids": [shared.pid], "why": shared.why} for shared in state.shared
    ]
    unsaved = unsaved_why(state, live)
    if unsaved is not None:
        found.append({"kind": "unsaved", "pids": [], "why": unsaved})
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
        "changed": _difference_objects(slow.changed),
        "why": slow_words(slow),
    }


def straggler_object(state: State) -> dict[str, Any] | None:
    """None: no rank comes last in most steps, as far as is known."""
    lags = state.straggler
    if lags is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(lags)
    return {**found, "differs": _difference_objects(lags.differs), "why": straggler_words(lags)}


def _difference_objects(differences: tuple[Difference, ...]) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(one), "words": difference_words(one)} for one in differences]
