"""Where the wall time of a run went: starting, steps kept, steps done twice, silence. Pure.

Goodput is productive time over wall time: the time in steps that no later attempt has done again.
Times are of the wall clock, cut so that they never overlap or run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from watchdog_train.core import events as e
from watchdog_train.core.model import RankStatus, Value

SpanKind = Literal["startup", "kept", "redone", "silence", "ending", "between"]

SPAN_WORDS: dict[SpanKind, str] = {
    "kept": "steps that were kept",
    "redone": "steps that were done again",
    "startup": "start to first step",
    "silence": "silence until a stall was called",
    "ending": "evidence and ending",
    "between": "until the next attempt began",
}
"""In the order in which they are told."""
MOST_PHASES = 300
MOST_SAMPLES = 4000


class Span(Value):
    """A part of the run; Unix seconds."""

    kind: SpanKind
    attempt: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


class PhaseSpan(Value):
    """A phase of the lowest rank, as far as it was recorded; Unix seconds."""

    phase: str
    attempt: int
    begin: float
    end: float


class TimeLine(Value):
    """A run from its first event to its newest."""

    begin: float = 0.0
    end: float = 0.0
    spans: tuple[Span, ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    steps_told: bool = False
    """Whether any attempt told a step: without one productive time is not known."""
    steps_redone: int = 0

    @property
    def wall_s(self) -> float:
        """Seconds from the first event to the newest."""
        return max(0.0, self.end - self.begin)

    def seconds(self, kind: SpanKind) -> float:
        """All spans of a kind together."""
        return sum(span.seconds for span in self.spans if span.kind == kind)

    @property
    def goodput(self) -> float | None:
        """Between 0 and 1; None where no step was told."""
        if not self.steps_told or self.wall_s <= 0:
            return None
        return min(1.0, self.seconds("kept") / self.wall_s)


class _Attempt:
    def __init__(self, number: int, begin: float) -> None:
        self.number = number
        self.begin = begin
        self.first: tuple[float, int] | None = None
        self.samples: list[tuple[float, int]] = []
        self.silent: float | None = None
        self.declared: tuple[str, float] | None = None
        self.end: float | None = None
        self.lowest_rank: int | None = None
        self.phase: tuple[str, float] | None = None

    def step(self, t: float, step: int | None) -> None:
        if step is not None and len(self.samples) < MOST_SAMPLES:
            self.samples.append((t, step))

    def reached(self, step: int) -> float | None:
        """When it had done this step, between the samples before and after; None: not at all."""
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
    phases: list[PhaseSpan] = []
    begin: float | None = None
    newest = 0.0
    for event in events:
        if begin is None:
            begin = newest = event.t
        newest = max(newest, event.t)
        if isinstance(event, e.AttemptLaunching):
            _end_phase(attempts, phases, newest)
            attempts.append(_Attempt(event.plan.attempt, newest))
        elif isinstance(event, e.LaunchPostponed):
            del attempts[-1:]
        elif attempts:
            _attempt_event(attempts[-1], event, newest, phases)
    _end_phase(attempts, phases, newest)
    if begin is None:
        return TimeLine()
    kept_until = _kept(attempts)
    spans = _spans(attempts, kept_until, begin, newest)
    redone = 0
    for attempt, kept in zip(attempts, kept_until, strict=True):
        if kept is not None and attempt.samples and attempt.first is not None:
            most = max(step for _, step in attempt.samples)
            redone += max(0, most - max(kept, attempt.first[1] - 1))
    return TimeLine(
        begin=begin,
        end=newest,
        spans=spans,
        phases=_fewer(phases, newest - begin),
        steps_told=any(attempt.samples for attempt in attempts),
        steps_redone=redone,
    )


def _attempt_event(
    attempt: _Attempt, event: e.AnyEvent, now: float, phases: list[PhaseSpan]
) -> None:
    match event:
        case e.FirstStep():
            attempt.first = attempt.first or (now, event.step)
            attempt.step(now, event.step)
        case e.Progress():
            attempt.step(now, event.progress.step)
            _settle_phase(attempt, event.ranks, now, phases)
        case e.StallDeclared():
            attempt.declared = (event.stall_id, now)
            attempt.silent = max(attempt.begin, now - max(0.0, event.age_s))
        case e.StallRecovered() | e.WouldHaveKilled():
            if attempt.declared is not None and attempt.declared[0] == event.stall_id:
                attempt.declared = attempt.silent = None
        case e.AttemptExited():
            attempt.end = now
            attempt.step(now, event.step)
        case e.PhaseChanged():
            if attempt.lowest_rank is None or event.rank < attempt.lowest_rank:
                attempt.lowest_rank = event.rank
            if event.rank == attempt.lowest_rank:
                _end_phase([attempt], phases, now)
                attempt.phase = (event.phase, now)


def _settle_phase(
    attempt: _Attempt, ranks: tuple[RankStatus, ...], now: float, phases: list[PhaseSpan]
) -> None:
    """Phase changes are sampled: the end of a short one may be told by a progress event alone."""
    if attempt.phase is None:
        return
    told = next((one.phase for one in ranks if one.rank == attempt.lowest_rank), None)
    if told is not None and told != attempt.phase[0]:
        _end_phase([attempt], phases, now)
        attempt.phase = (told, now)


def _end_phase(attempts: list[_Attempt], phases: list[PhaseSpan], now: float) -> None:
    """Note the phase that ends here, at the latest with its attempt."""
    if not attempts or attempts[-1].phase is None:
        return
    attempt = attempts[-1]
    name, begin = attempt.phase or ("unknown", now)
    end = min(now, attempt.end if attempt.end is not None else now)
    attempt.phase = None
    if end > begin:
        phases.append(PhaseSpan(phase=name, attempt=attempt.number, begin=begin, end=end))


def _fewer(phases: list[PhaseSpan], wall_s: float) -> tuple[PhaseSpan, ...]:
    """The longest ones where there are too many to draw."""
    if len(phases) <= MOST_PHASES:
        return tuple(phases)
    least = sorted((span.end - span.begin for span in phases), reverse=True)[MOST_PHASES - 1]
    least = max(least, wall_s / 2000)
    return tuple([span for span in phases if span.end - span.begin >= least][:MOST_PHASES])


def _kept(attempts: list[_Attempt]) -> list[int | None]:
    """The last step of each attempt that no later one began before; None: all are kept."""
    kept: list[int | None] = []
    lowest: int | None = None
    for attempt in reversed(attempts):
        kept.append(lowest)
        if attempt.first is not None:
            before = attempt.first[1] - 1
            lowest = before if lowest is None else min(lowest, before)
    return kept[::-1]


def _spans(
    attempts: list[_Attempt], kept_until: list[int | None], begin: float, newest: float
) -> tuple[Span, ...]:
    spans: list[Span] = []
    at = begin

    def pass_to(end: float, kind: SpanKind, number: int) -> None:
        nonlocal at
        if end > at:
            spans.append(Span(kind=kind, attempt=number, begin=at, end=end))
            at = end

    for i, (attempt, kept) in enumerate(zip(attempts, kept_until, strict=True)):
        number = attempt.number
        following = attempts[i + 1].begin if i + 1 < len(attempts) else newest
        pass_to(attempt.begin, "between" if i else "startup", number - 1 if i else number)
        end = min(following, attempt.end if attempt.end is not None else newest)
        steps_end = min(end, attempt.silent if attempt.silent is not None else end)
        first = attempt.first[0] if attempt.first is not None else None
        if first is None and attempt.samples:
            first = attempt.samples[0][0]
        pass_to(min(steps_end, first if first is not None else steps_end), "startup", number)
        if first is not None:
            split: float | None = steps_end
            if kept is not None and attempt.first is not None:
                split = first if kept < attempt.first[1] else attempt.reached(kept)
            pass_to(min(steps_end, steps_end if split is None else split), "kept", number)
            pass_to(steps_end, "redone", number)
        if attempt.declared is not None:
            pass_to(min(end, attempt.declared[1]), "silence", number)
        pass_to(end, "ending", number)
    if attempts:
        # After the last attempt: the report of the end, or a restart that was never made.
        pass_to(newest, "ending", attempts[-1].number)
    return tuple(spans)
