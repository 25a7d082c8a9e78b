"""A trace as a few hundred points for each attempt: steps, step times, GPU and CPU. Pure.

Every line is untrusted. Memory is bounded: a series that grows too long loses every second point.
"""

from __future__ import annotations

import math

from watchdog_train.core.model import Value
from watchdog_train.core.traces.trace_lines import TraceLine, count_of, decode

MOST_POINTS = 600
MOST_STEP_TIMES = 600
MOST_ATTEMPTS = 64
LONGEST_S = 1e9


class Point(Value):
    """One sample; null is unknown."""

    t: float
    """Seconds since the run began."""
    step: float | None
    gpu_util: float | None
    """Percent."""
    cpu_cores: float | None
    """Cores in use since the sample before."""


class AttemptSeries(Value):
    """One attempt."""

    attempt: int
    points: tuple[Point, ...]
    step_times_s: tuple[float, ...]
    """Seconds of a step, in order; several steps between two samples count with their mean."""
    longest_step_s: float | None
    steps: int
    """How many steps the times were taken from."""

    def quantile(self, part: float) -> float | None:
        """Of the step times; None without any."""
        ordered = sorted(self.step_times_s)
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class _Thinned:
    """Keeps at most so many values, evenly: the stride doubles when it is full."""

    def __init__(self, most: int) -> None:
        self.kept: list[object] = []
        self._most = most
        self._stride = 1
        self._seen = 0

    def add(self, value: object) -> None:
        if self._seen % self._stride == 0:
            self.kept.append(value)
            if len(self.kept) > self._most:
                self.kept = self.kept[::2]
                self._stride *= 2
        self._seen += 1


class _Attempt:
    def __init__(self) -> None:
        self.points = _Thinned(MOST_POINTS)
        self.times = _Thinned(MOST_STEP_TIMES)
        self.longest: float | None = None
        self.steps = 0
        self.step: float | None = None
        self.step_t = 0.0
        self.cpu: tuple[float, float] | None = None
        self.processes = 0


class SeriesReader:
    """Takes the lines of a trace in order; `series` is what is left of them."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Attempt] = {}
        self.samples = 0

    def read(self, line: bytes) -> None:
        """Take one line; what is no sample is passed over."""
        found, _ = decode(line)
        if found is None or found.kind is not None or found.t is None:
            return
        if not math.isfinite(found.t) or not 0 <= found.t < LONGEST_S:
            return
        number = found.attempt or 1
        attempt = self._attempts.get(number)
        if attempt is None:
            if len(self._attempts) >= MOST_ATTEMPTS:
                return
            attempt = self._attempts[number] = _Attempt()
        self.samples += 1
        self._sample(attempt, found, found.t)

    @property
    def series(self) -> tuple[AttemptSeries, ...]:
        """By attempt."""
        return tuple(
            AttemptSeries(
                attempt=number,
                points=tuple(point for point in each.points.kept if isinstance(point, Point)),
                step_times_s=tuple(time for time in each.times.kept if isinstance(time, float)),
                longest_step_s=each.longest,
                steps=each.steps,
            )
            for number, each in sorted(self._attempts.items())
        )

    def _sample(self, attempt: _Attempt, found: TraceLine, t: float) -> None:
        step = _step(found)
        if step is not None:
            if attempt.step is not None and step > attempt.step and t > attempt.step_t:
                done = step - attempt.step
                each_s = (t - attempt.step_t) / done
                attempt.times.add(round(each_s, 6))
                attempt.steps += int(done)
                attempt.longest = max(attempt.longest or 0.0, each_s)
            if attempt.step is None or step != attempt.step:
                attempt.step, attempt.step_t = step, t
        cores = None
        cpu_s = count_of(found.cpu_s)
        if cpu_s is not None:
            # Whoever has ended is counted once more, by its parent that has waited for it.
            fewer = (found.processes or 0) < attempt.processes
            later = attempt.cpu is not None and t > attempt.cpu[0]
            if attempt.cpu is not None and later and not fewer and cpu_s >= attempt.cpu[1]:
                cores = round((cpu_s - attempt.cpu[1]) / (t - attempt.cpu[0]), 3)
            attempt.cpu, attempt.processes = (t, cpu_s), found.processes or 0
        attempt.points.add(
            Point(
                t=t,
                step=step,
                gpu_util=count_of(found.gpu_util),
                cpu_cores=cores,
            )
        )


def _step(found: TraceLine) -> float | None:
    """The step that every rank has reached."""
    steps = [
        rank.step
        for rank in (found.ranks or {}).values()
        if rank is not None and count_of(rank.step) is not None and rank.step is not None
    ]
    return min(steps) if steps else None
