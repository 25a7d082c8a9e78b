"""Where the time went, and how long steps took, as sections of the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value
from watchdog_train.report import words
from watchdog_train.report.sections import Section
from watchdog_train.report.series import AttemptSeries
from watchdog_train.report.time_line import SPAN_WORDS, TimeLine
from watchdog_train.report.words import clean, duration

ENOUGH_STEP_TIMES = 5
"""Fewer than this tell nothing about a setting's cost."""


class Found(Value):
    """What lies beside the event log of a run."""

    series: tuple[AttemptSeries, ...] = ()
    """From the trace; empty: there is none, or it cannot be read."""
    stacks: Mapping[str, tuple[str, ...]] = {}
    """Stall id -> the grouped stacks of its bundle, in lines."""


NOTHING_FOUND = Found()


def goodput_words(line: TimeLine) -> str | None:
    """`87 % of 7 h 12 min went into steps that were kept`; None while there is no time."""
    if line.wall_s <= 0:
        return None
    if line.goodput is None:
        return "How much of the time was productive is not known: the training told no step."
    kept = duration(line.seconds("kept"))
    text = (
        f"Goodput {words.percent_text(100 * line.goodput)}: {kept} of {duration(line.wall_s)} "
        "went into steps that no later attempt did again"
    )
    if line.steps_redone:
        text += f"; {words.count(line.steps_redone, 'step')} had to be done again"
    return f"{text}."


def time_section(line: TimeLine) -> Section | None:
    """Every part of the wall time, in order of what it is."""
    told = goodput_words(line)
    if told is None or not line.spans:
        return None
    rows = []
    for kind, name in SPAN_WORDS.items():
        seconds = line.seconds(kind)
        if seconds > 0:
            share = words.percent_text(100 * seconds / line.wall_s)
            rows.append((name if line.steps_told else _plain(name), duration(seconds), share))
    return Section(
        title="Time", paragraphs=(told,), header=("spent on", "time", "share"), rows=tuple(rows)
    )


def _plain(name: str) -> str:
    return "running, no step was told" if name == SPAN_WORDS["startup"] else name


def steps_section(series: Sequence[AttemptSeries]) -> Section | None:
    """How long a step took in each attempt."""
    rows = []
    for each in series:
        middle = each.quantile(0.5)
        if middle is None:
            continue
        rows.append(
            (
                str(each.attempt),
                words.number(each.steps),
                step_time(middle),
                step_time(each.quantile(0.95)),
                step_time(each.longest_step_s),
            )
        )
    if not rows:
        return None
    told = (
        "From the samples of trace.jsonl: where steps are faster than samples, a time is the mean "
        "of the steps between two of them, and the longest one may hold an evaluation or a save."
    )
    return Section(
        title="Step times",
        header=("attempt", "steps seen", "median", "95 of 100", "longest"),
        rows=tuple(rows),
        paragraphs=(told,),
    )


def cost_words(state: State, series: Sequence[AttemptSeries]) -> tuple[str, ...]:
    """What the settings of each attempt cost in time for a step, as far as it was measured."""
    by_attempt = {each.attempt: each for each in series}
    told = []
    for before, after in pairwise(state.attempts):
        known = {use.id for use in before.plan.remedies}
        new = [clean(use.id, 60) for use in after.plan.remedies if use.id not in known]
        if not new:
            continue
        name = words.listed(new)
        old_s, new_s = (_median(by_attempt.get(each.attempt)) for each in (before, after))
        if old_s is None or new_s is None:
            told.append(f"Cost of {name}: not measured, too few steps before or after.")
            continue
        told.append(
            f"Cost of {name}: a step takes {step_time(new_s)} in attempt {after.attempt}, "
            f"{step_time(old_s)} in attempt {before.attempt} ({_times(new_s / old_s)})."
        )
    return tuple(told)


def _median(series: AttemptSeries | None) -> float | None:
    if series is None or len(series.step_times_s) < ENOUGH_STEP_TIMES:
        return None
    middle = series.quantile(0.5)
    return middle or None


def _times(factor: float) -> str:
    if 0.95 <= factor <= 1.05:
        return "about the same"
    percent = words.percent_text(100 * abs(factor - 1))
    return (
        f"{percent} {'longer' if factor > 1 else 'shorter'}"
        if factor < 2
        else (f"{words.number(round(factor, 1))} times as long")
    )


def step_time(seconds: float | None) -> str:
    """`38 ms`, `0.42 s`, `12 s`."""
    if seconds is None:
        return "-"
    if seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else duration(seconds)
