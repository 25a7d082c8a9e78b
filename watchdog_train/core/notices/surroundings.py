"""CPU, GPU and storage use of a training or a rank, and what differs from usual. Pure."""

from __future__ import annotations

from functools import reduce

from msgspec.structs import replace

from watchdog_train.core.model import Difference, DifferenceKind, Sample, Value
from watchdog_train.core.model.gpu import GpuUse

CLOCK_FALLS = 0.8
"""Below this share of the clock before: a GPU varies less between kernels."""
RISES = 0.2
"""Rise of the share of samples in state D, of time on a CPU, or of time waiting for one."""
HARDLY = 0.05
"""Share of samples: too few to know how often it gets a CPU."""
ALIKE = 1.5
"""Between shares of the time in line: who wants a CPU more often than others waits more often."""
BYTES_S = 1e6
"""Swapped, read and written: a machine that is only tidying up moves less."""
BYTES_FACTOR = 3.0
UTIL_FALLS = 0.6
MOST_NAMES = 8
LONGEST_POLL_S = 30.0
"""Between looks; after more nobody knows what the steps in between took."""


class Means(Value):
    """Of some time. None means unknown all the time."""

    gpu_util: float | None = None
    """Share of the time."""
    gpu_clock: float | None = None
    """Of the highest."""
    disk: float | None = None
    """Share of the looks with somebody in state D."""
    running: float | None = None
    """The same in state R."""
    cpu: float | None = None
    """CPU seconds a second."""
    io_bytes_s: float | None = None
    others: tuple[str, ...] = ()
    """Who else was seen on its GPUs."""
    slowed_by: tuple[str, ...] = ()
    """What was seen to hold the clock of its GPUs down."""
    busy: tuple[str, ...] = ()
    """Who else was seen to use the machine's CPUs."""

    @property
    def cpu_line(self) -> float | None:
        """Share of the time in line for a CPU: ready to run, and not run."""
        if self.running is None or self.cpu is None:
            return None
        return max(0.0, self.running - self.cpu)

    @property
    def line_share(self) -> float | None:
        """The same, of the time that it is ready to run; None of who hardly ever is."""
        if self.cpu_line is None or self.running is None or self.running < HARDLY:
            return None
        return self.cpu_line / self.running


NAMES = ("others", "slowed_by", "busy")
NUMBERS = tuple(name for name in Means.__struct_fields__ if name not in NAMES)


class Tally(Value):
    """Sums, to make means of: for each of NUMBERS the sum and the weight that knew it."""

    sums: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * len(NUMBERS)
    names: tuple[tuple[str, ...], ...] = ((),) * len(NAMES)


def counted_s(at: float | None, suspended_s: float | None, sample: Sample) -> float:
    """Since the look before; 0 where it is not known what happened, or the machine has slept."""
    passed_s = sample.at - at if at is not None else 0.0
    slept = abs((sample.suspended_s or 0.0) - (suspended_s or 0.0)) > 1.0
    return passed_s if 0 < passed_s <= LONGEST_POLL_S and not slept else 0.0


def rate(before: float | None, now: float | None, passed_s: float) -> float | None:
    """A second; None where a total is not known."""
    return None if before is None or now is None else (now - before) / passed_s


def seen(gpu: GpuUse | None, busy: tuple[str, ...], **of_processes: float | None) -> Means:
    """One look."""
    gpu = gpu or GpuUse()
    return Means(
        gpu_util=gpu.util / 100 if gpu.util is not None else None,
        gpu_clock=gpu.clock,
        others=gpu.other_names,
        slowed_by=gpu.slowed_by,
        busy=busy,
        **of_processes,
    )


def fold(tally: Tally, means: Means) -> Tally:
    """The sums with one more look."""
    values = (getattr(means, name) for name in NUMBERS)
    found = (getattr(means, name) for name in NAMES)
    return Tally(
        sums=tuple(
            (total, known) if value is None else (total + value, known + 1)
            for (total, known), value in zip(tally.sums, values, strict=True)
        ),
        names=tuple(
            old if not set(new) - set(old) else tuple(sorted({*old, *new}))[:MOST_NAMES]
            for old, new in zip(tally.names, found, strict=True)
        ),
    )


def means(tally: Tally) -> Means:
    """The means of these sums."""
    found = {
        name: total / known if known else None
        for name, (total, known) in zip(NUMBERS, tally.sums, strict=True)
    }
    return replace(Means(), **found, **dict(zip(NAMES, tally.names, strict=True)))


def mean(several: tuple[Means, ...]) -> Means:
    """Each signal over those that knew it."""
    return means(reduce(fold, several, Tally()))


def differences(usual: Means, now: Means) -> tuple[Difference, ...]:
    """What is different, the likeliest causes of slow steps first; no verdict on which it was."""
    found = []

    def add(kind: DifferenceKind, differs: bool, name: str = "", who: tuple[str, ...] = ()) -> None:
        if differs:
            values = (getattr(each, name) if name else None for each in (usual, now))
            old, new = (None if value is None else round(value, 3) for value in values)
            found.append(Difference(kind=kind, now=new, usual=old, who=who))

    strangers = tuple(name for name in now.others if name not in usual.others)
    held = tuple(why for why in now.slowed_by if why not in usual.slowed_by)
    clock_fell = _fell(usual.gpu_clock, now.gpu_clock, CLOCK_FALLS)
    add("gpu-shared", bool(strangers), who=strangers)
    add("gpu-clock", clock_fell, "gpu_clock", held)
    add("gpu-held", bool(held) and not clock_fell, who=held)
    in_line = _rose(usual.cpu_line, now.cpu_line, RISES) and not crowded(usual, now)
    add("cpu-line", in_line, "cpu_line", now.busy)
    add("disk", _rose(usual.disk, now.disk, RISES), "disk")
    much = max(BYTES_S, BYTES_FACTOR * (usual.io_bytes_s or 0.0))
    add("io", (now.io_bytes_s or 0.0) > much, "io_bytes_s")
    add("computes", _rose(usual.cpu, now.cpu, RISES), "cpu")
    add("gpu-util", _fell(usual.gpu_util, now.gpu_util, UTIL_FALLS), "gpu_util")
    return tuple(found)


def crowded(usual: Means, now: Means) -> bool:
    """Whether both wait for a CPU about as often as they want one: the machine has too few."""
    before, here = usual.line_share, now.line_share
    return before is not None and here is not None and here <= ALIKE * before


def _fell(usual: float | None, now: float | None, share: float) -> bool:
    return usual is not None and now is not None and now < share * usual


def _rose(usual: float | None, now: float | None, by: float) -> bool:
    return usual is not None and now is not None and now - usual > by
