"""The verdict of a run in a sentence or two, for whoever shows only that: a kubelet. Pure."""

from __future__ import annotations

from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.report.explanation_text import sentences
from watchdog_train.report.facts import what_ended
from watchdog_train.report.summary import outcome_line
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, cut_bytes

CAP_BYTES = 4096
"""Kubernetes shows no more of a container's termination message."""
_WHY = 700


def verdict_text(state: State) -> str:
    """How the run ended, or what is known while it lives, then what was caught last and where.

    At most CAP_BYTES in UTF-8, a line each, with a newline at the end.
    """
    lines = [f"wtrain: {outcome_line(state) if state.finished else _so_far(state)}"]
    caught = state.last_stall
    if caught is not None and state.outcome != "succeeded":
        lines.append(_caught(caught))
        if caught.dir is not None:
            lines.append(f"evidence: {clean(caught.dir)}")
    return cut_bytes("\n".join(lines), CAP_BYTES - 1) + "\n"


def _so_far(state: State) -> str:
    words = f"{state.state}, attempt {state.attempt.attempt if state.attempt is not None else 0}"
    return f"given up: {why_text(state.given_up)}" if state.given_up is not None else words


def _caught(caught: StallRecord) -> str:
    text = f"{caught.why} {clean(caught.id, 40)} of attempt {caught.attempt}"
    if caught.why == "stall":
        text += f": {why_text(caught.verdict)}"
    if caught.crash is not None:
        text += f": {what_ended(caught.crash)}"
    if caught.explanation is None:
        return f"{text}."
    return f"{text}. {clean(' '.join(sentences(caught.explanation)), _WHY)}"
