"""The timeline of the page: one lane an attempt, as boxes in percent of the width. Pure."""

from __future__ import annotations

from datetime import tzinfo

from watchdog_train.core.model import Value
from watchdog_train.report.history import History
from watchdog_train.report.time_line import SPAN_WORDS, TimeLine
from watchdog_train.report.words import clean, clock_time, duration

MOST_LANES = 60
TICKS = 4
LEAST_WIDTH = 0.15
"""Percent: a shorter box is drawn so wide, or it could not be seen."""


class Box(Value):
    """A part of a lane."""

    style: str
    """A class of the page's style sheet."""
    left: float
    width: float
    words: str


class Lane(Value):
    """An attempt."""

    name: str
    boxes: tuple[Box, ...]
    phases: tuple[Box, ...]
    marks: tuple[Box, ...]


class Lanes(Value):
    """The whole timeline."""

    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    left_out: int
    legend: tuple[tuple[str, str], ...]
    """Style and words."""


def lanes(history: History, *, zone: tzinfo | None = None) -> Lanes | None:
    """The newest attempts; None while there is no time to show."""
    line, state = history.time_line, history.state
    if line.wall_s <= 0 or not line.spans:
        return None
    numbers = sorted({span.attempt for span in line.spans})
    shown = numbers[-MOST_LANES:]
    found = []
    for number in shown:
        marks = [
            _box(
                line,
                "mark",
                stall.at,
                stall.at,
                f"{stall.why} {clean(stall.id, 40)}, {clock_time(stall.at, zone)}",
            )
            for stall in state.stalls
            if stall.attempt == number
        ]
        found.append(
            Lane(
                name=str(number),
                boxes=tuple(
                    _box(
                        line,
                        span.kind,
                        span.begin,
                        span.end,
                        f"{SPAN_WORDS[span.kind]}: {duration(span.seconds)}",
                    )
                    for span in line.spans
                    if span.attempt == number
                ),
                phases=tuple(
                    _box(
                        line,
                        f"phase {clean(span.phase, 20)}",
                        span.begin,
                        span.end,
                        f"phase {clean(span.phase, 20)}: {duration(span.end - span.begin)}",
                    )
                    for span in line.phases
                    if span.attempt == number
                ),
                marks=tuple(marks[-MOST_LANES:]),
            )
        )
    kinds = {span.kind for span in line.spans if span.attempt in set(shown)}
    legend: list[tuple[str, str]] = [
        (kind, name) for kind, name in SPAN_WORDS.items() if kind in kinds
    ]
    phases = {span.phase for span in line.phases}
    legend += [
        (f"phase {name}", f"phase {name}")
        for name in ("eval", "checkpoint", "load", "compile", "download")
        if name in phases
    ]
    return Lanes(
        lanes=tuple(found),
        ticks=_ticks(line, zone),
        left_out=len(numbers) - len(shown),
        legend=tuple(legend),
    )


def _box(line: TimeLine, style: str, begin: float, end: float, words: str) -> Box:
    left = min(100.0, max(0.0, 100 * (begin - line.begin) / line.wall_s))
    width = max(LEAST_WIDTH, min(100.0 - left, 100 * (end - begin) / line.wall_s))
    return Box(style=style, left=round(left, 3), width=round(width, 3), words=words)


def _ticks(line: TimeLine, zone: tzinfo | None) -> tuple[tuple[float, str], ...]:
    found = []
    for i in range(TICKS):
        at = line.begin + line.wall_s * i / TICKS
        found.append((100.0 * i / TICKS, clock_time(at, zone, now=line.end)))
    return tuple(found)
