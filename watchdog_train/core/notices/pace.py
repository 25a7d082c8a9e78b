"""The recent pace of steps, from which the time left is estimated. Pure.

The steps of an attempt's beginning (imports, compilation, a cold cache) and of the attempts
before say nothing about the rest, so only recent ones count, and none until they are even.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model import Phase, Sample, SlotReading, Value

_replace = msgspec.structs.replace

SPACING_S = 2.0
"""Seconds between points: faster steps are counted together."""
MOST_POINTS = 256
"""More than eight minutes of fast steps: an occasional evaluation is part of the pace."""
LEAST_POINTS = 4
LEAST_SPAN_S = 10.0
EVEN_FACTOR = 2.0
"""Allowed difference between the halves of the first measurement; compilation exceeds it."""
FASTER_FACTOR = 4.0
"""If the newer half is this much faster, the older one was a start and is forgotten."""
SILENCE_S = 60.0
SILENCE_GAPS = 4.0
"""After both, time and number of usual gaps, without a step the pace is unknown."""

_PAUSES: tuple[Phase, ...] = ("eval", "checkpoint", "compile", "load", "download")
"""Phases in which no step is expected, and after which the pace continues."""


class Pace(Value):
    points: tuple[tuple[float, int], ...] = ()
    """Supervisor's time and step, oldest first; only where the step has changed."""
    counts: tuple[int, int | None] = (0, None)
    """Identity of the counter: which call of train() or fit(), and the step it resumed at."""
    even: bool = False
    """It has been steady once."""
    phase: Phase = "unknown"


def advance(pace: Pace, sample: Sample) -> Pace:
    stepping = [slot for _, slot in sample.judged if slot.step is not None]
    if not stepping:
        return pace
    slot = max(stepping, key=_step)
    step, counts = _step(slot), (slot.train_ordinal, slot.resumed_step)
    last = pace.points[-1] if pace.points else None
    if last is None or counts != pace.counts or step < last[1]:
        # Another training in the same process, or a checkpoint was loaded: start again.
        return Pace(points=((sample.at, step),), counts=counts, phase=slot.phase)
    pace = _replace(pace, phase=slot.phase)
    if step == last[1] or sample.at - last[0] < SPACING_S:
        return pace
    points = (*pace.points, (sample.at, step))[-MOST_POINTS:]
    early, late = _halves(points)
    if early and late > FASTER_FACTOR * early:
        points = points[len(points) // 2 :]
        early, late = _halves(points)
    enough = len(points) >= LEAST_POINTS and points[-1][0] - points[0][0] >= LEAST_SPAN_S
    even = enough and max(early, late) <= EVEN_FACTOR * min(early, late)
    return _replace(pace, points=points, even=pace.even or even)


def steps_s(pace: Pace, now: float) -> float | None:
    """Recent steps per second; None until that is known, and while no step comes."""
    if not pace.even:
        return None
    (first_at, first), (last_at, last) = pace.points[0], pace.points[-1]
    gap_s = (last_at - first_at) / (len(pace.points) - 1)
    silent = now - last_at > max(SILENCE_S, SILENCE_GAPS * gap_s)
    if silent and pace.phase not in _PAUSES:
        return None
    return (last - first) / (last_at - first_at)


def _step(slot: SlotReading) -> int:
    return slot.step if slot.step is not None else -1


def _halves(points: tuple[tuple[float, int], ...]) -> tuple[float, float]:
    """Steps per second in the older and the newer half; zeros without halves."""
    if len(points) < 3:
        return 0.0, 0.0
    middle = points[len(points) // 2]
    early = (middle[1] - points[0][1]) / (middle[0] - points[0][0])
    late = (points[-1][1] - middle[1]) / (points[-1][0] - middle[0])
    return early, late
