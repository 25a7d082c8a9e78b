"""What is being waited for, and until when wtrain waits; the only place that says it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Explanation, Patience, PatienceRow
from watchdog_train.core.model.waits import SleepWait
from watchdog_train.report.explanation_text import what_happened
from watchdog_train.report.words import clean, duration

EXPECT_FACTOR = 1.5
"""An announced pause should be this many times as long as the one that was seen."""
_ROWS: dict[PatienceRow, str] = {
    "sleep": "wtrain waits until it wakes",
    "service": "wtrain waits until it has a task",
    "input": "wtrain waits until a person types",
    "stopped": "wtrain waits until it is continued",
}


def waiting(state: State, mono: float) -> str | None:
    """`Rank 0 has been reading 10.0.0.1:80 for 41 s in ask (train.py:9). A stall at 10 min.`

    Args:
        state: of a run with a suspicion.
        mono: now, by the clock of its events.
    """
    look = state.look
    if state.suspicion is None or look is None:
        return None
    silent_s = max(0.0, mono - state.silent_since)
    found = what(look.patience, silent_s)
    told = [found[:1].upper() + found[1:], until_words(look)]
    if look.patience.row == "stopped":  # ends with a command
        told.reverse()
    return " ".join(filter(None, told))


def waiting_object(state: State, mono: float | None) -> dict[str, Any] | None:
    if state.suspicion is None or state.look is None:
        return None
    mono = state.mono if mono is None else mono
    return {
        **msgspec.to_builtins(state.look.patience),
        "limit_s": state.look.limit_s,
        "silent_s": round(max(0.0, mono - state.silent_since), 1),
        "text": waiting(state, mono),
    }


def until_words(look: e.Looked) -> str:
    if look.limit_s is not None:
        return f"A stall at {duration(look.limit_s)}."
    return f"{_ROWS[look.patience.row]}." if look.patience.row in _ROWS else ""


def what(patience: Patience, silent_s: float | None = None) -> str:
    root = patience.root
    if root is None:
        return "What it waits for is unknown."
    doing = root.doing
    if silent_s is None and isinstance(doing, SleepWait):  # it is over
        doing = msgspec.structs.replace(doing, left_s=None)
    root = msgspec.structs.replace(root, since_s=silent_s, doing=doing)
    text = what_happened(Explanation(kind="hang", root=root))
    line = patience.line
    if line is None or root.own is not None:
        return text
    return f"{text} Asked for at {clean(line.file, 200)}:{line.line}."


def pause_sentence(event: e.SuspicionEnded) -> str | None:
    """A pause that ended before a stall was declared; one message for each line of code."""
    if not event.paused_s or event.said or event.patience is None:
        return None
    text = f"paused for {duration(event.paused_s)} and then continued: {what(event.patience)}"
    if event.at is None:
        return text
    announced = 10 * max(1, round(EXPECT_FACTOR * event.paused_s / 10))
    where = f"{clean(event.at.own.file, 200)}:{event.at.own.line}"
    return f"{text} To announce such a pause: wt.expect({announced}) before {where}"
