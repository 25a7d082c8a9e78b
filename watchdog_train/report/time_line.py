"""Where the wall time of a run went: starting, steps kept, steps done twice, silence. Pure.

Goodput is productive time over wall time: the time in steps that no later attempt has done again.
Times are of the wall clock, cut so that they never overlap or run backwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from watchdog_train.core import events as e
from watchdog_train.core.model import Value
from watchdog_train.report import words
from watchdog_train.report.sections import Section
from watchdog_train.report.words import duration

SpanKind = Literal["startup", "kept", "redone", "silence", "ending", "between"]

SPAN_WORDS: dict[SpanKind, str] = {
    "kept": "steps that were kept",
    "redone": "steps that were done again",
    "startup": "start to first step",
    "silence": "no progress, in stalls",
    "ending": "evidence and ending",
    "between": "until the next attempt began",
}
"""In the order of the report."""
MOST_SAMPLES = 4000


class TimeLine(Value):
    """A run from its first event to its newest."""

    wall_s: float
    spent_s: dict[SpanKind, float]
    steps_told: bool = False
    """Whether any step is known: without one productive time is unknown."""
    steps_redone: int = 0

    @property
    def goodput(self) -> float | None:
        """Between 0 and 1; None: no step is known."""
        if not self.steps_told or self.wall_s <= 0:
            return None
        return min(1.0, self.spent_s["kept"] / self.wall_s)


class _Attempt:
    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.first: tuple[float, int] | None = None
        self.samples: list[tuple[float, int]] = []
        self.silences: list[list[float]] = []
        """Begin and end of each stall; infinite for one that was only reported and is not over."""
        self.killed: float | None = None
        """When the stall was declared for which it was killed."""
        self.end: float | None = None
        self.done_before: int | None = None
        """Steps that were done when it began; None: not known exactly."""

    @property
    def start_step(self) -> int | None:
        """Steps that it did not do itself. The first step that was sampled may be a later one."""
        if self.done_before is not None or self.first is None:
            return self.done_before
        return self.first[1] - 1

    @property
    def last_step(self) -> int:
        return max((step for _, step in self.samples), default=0)

    def step(self, t: float, step: int | None) -> None:
        moved = step is not None and step > self.last_step
        if moved and self.silences and self.silences[-1][1] == math.inf:
            self.silences[-1][1] = t
        if step is not None and len(self.samples) < MOST_SAMPLES:
            self.samples.append((t, step))

    def reached(self, step: int) -> float | None:
        """When it had done this step, between the samples before and after; None: never."""
        before: tuple[float, int] | None = None
        for t, seen in self.samples:
            if seen >= step:
                if before is None or seen == before[1]:
                    return t
                part = (step - before[1]) / (seen - before[1])
                return before[0] + part * max(0.0, t - before[0])
            before = (t, seen)
        return None


def time_line(events: Iterable[e.AnyEvent]) -> TimeLine:
    """Fold the events."""
    attempts: list[_Attempt] = []
    begin: float | None = None
    newest = 0.0
    for event in events:
        if begin is None:
            begin = newest = event.t
        newest = max(newest, event.t)
        if isinstance(event, e.AttemptLaunching):
            attempts.append(_Attempt(newest))
            if event.plan.checkpoint is None and event.plan.resume_via not in ("script", "env"):
                attempts[-1].done_before = 0
        elif isinstance(event, e.LaunchPostponed):
            del attempts[-1:]
        elif attempts:
            _attempt_event(attempts[-1], event, newest)
    begin = newest if begin is None else begin
    kept_until = _kept(attempts)
    redone = 0
    for attempt, kept in zip(attempts, kept_until, strict=True):
        if kept is not None and attempt.samples and attempt.start_step is not None:
            redone += max(0, attempt.last_step - max(kept, attempt.start_step))
    return TimeLine(
        wall_s=newest - begin,
        spent_s=_spent(attempts, kept_until, begin, newest),
        steps_told=any(attempt.samples for attempt in attempts),
        steps_redone=redone,
    )


def _attempt_event(attempt: _Attempt, event: e.AnyEvent, now: float) -> None:
    match event:
        case e.FirstStep():
            attempt.first = attempt.first or (now, event.step)
            attempt.step(now, event.step)
        case e.Progress():
            attempt.step(now, event.progress.step)
        case e.ResumeVerified():
            if event.verdict == "verified":
                attempt.done_before = event.expected_step
            elif event.verdict == "contradicted" and event.first_step is not None:
                attempt.done_before = event.first_step - 1
        case e.StallDeclared():
            begin = max(attempt.begin, now - max(0.0, event.age_s))
            attempt.silences.append([begin, now])
            attempt.killed = now
        case e.StallRecovered() | e.WouldHaveKilled() if attempt.silences:
            attempt.silences[-1][1] = now if isinstance(event, e.StallRecovered) else math.inf
            attempt.killed = None
        case e.AttemptExited():
            attempt.end = now
            attempt.step(now, event.step)


def _kept(attempts: list[_Attempt]) -> list[int | None]:
    """The last step of each attempt that no later one began before; None: all are kept."""
    kept: list[int | None] = []
    lowest: int | None = None
    for attempt in reversed(attempts):
        kept.append(lowest)
        before = attempt.start_step if attempt.first is not None else None
        if before is not None:
            lowest = before if lowest is None else min(lowest, before)
    return kept[::-1]


def _spent(
    attempts: list[_Attempt], kept_until: list[int | None], begin: float, newest: float
) -> dict[SpanKind, float]:
    spent = dict.fromkeys(SPAN_WORDS, 0.0)
    at = begin

    def pass_to(end: float, kind: SpanKind, silences: Iterable[Sequence[float]] = ()) -> None:
        nonlocal at
        for quiet, over in silences:
            pass_to(min(end, quiet), kind)
            if at >= quiet:
                pass_to(min(end, over), "silence")
        if end > at:
            spent[kind] += end - at
            at = end

    for i, (attempt, kept) in enumerate(zip(attempts, kept_until, strict=True)):
        following = attempts[i + 1].begin if i + 1 < len(attempts) else newest
        pass_to(attempt.begin, "between" if i else "startup")
        end = min(following, attempt.end if attempt.end is not None else newest)
        steps_end = min(end, attempt.killed if attempt.killed is not None else end)
        first = attempt.first[0] if attempt.first is not None else None
        if first is None and attempt.samples:
            first = attempt.samples[0][0]
        quiet = attempt.silences
        pass_to(min(steps_end, first if first is not None else steps_end), "startup", quiet)
        if first is not None:
            split: float | None = None  # all are kept
            if kept is not None and kept < attempt.last_step:
                is_before = attempt.start_step is not None and kept <= attempt.start_step
                split = first if is_before else attempt.reached(kept)
            pass_to(steps_end if split is None else min(steps_end, split), "kept", quiet)
            pass_to(steps_end, "redone", quiet)
        pass_to(end, "ending")
    if attempts:
        # After the last attempt: the report of the end, or a restart that was never made.
        pass_to(newest, "ending")
    return spent


def goodput_words(line: TimeLine) -> str:
    """`87 % of 7 h 12 min went into steps that were kept`."""
    if line.goodput is None:
        return "How much of the time was productive is unknown: no step was seen."
    kept = duration(line.spent_s["kept"])
    text = (
        f"Goodput {words.percent_text(100 * line.goodput)}: {kept} of {duration(line.wall_s)} "
        "went into steps that no later attempt did again"
    )
    if line.steps_redone:
        text += f"; {words.count(line.steps_redone, 'step')} had to be done again"
    return f"{text}."


def time_section(line: TimeLine) -> Section | None:
    """The parts of the wall time, as a table."""
    names = dict(SPAN_WORDS)
    if not line.steps_told:
        names["startup"] = "running, no step was seen"
    rows = [
        (name, duration(seconds), words.percent_text(100 * seconds / line.wall_s))
        for kind, name in names.items()
        if (seconds := line.spent_s[kind]) > 0
    ]
    if not rows:
        return None
    header = ("spent on", "time", "share")
    return Section(title="Time", paragraphs=(goodput_words(line),), header=header, rows=tuple(rows))
