"""What the GPUs of a job have shown since its last progress, and drawn in its own steps. Pure."""

from __future__ import annotations

import statistics

import msgspec

from watchdog_train.core.detection.activity import ANSWER_CPU_S
from watchdog_train.core.model import Sample, Value
from watchdog_train.core.model.gpu import IDLE_POWER_SHARE, DeviceLack, GpuUse

_replace = msgspec.structs.replace


class DeviceLimits(Value):
    """When ranks that wait for their GPUs are called a stall."""

    least_s: float = 300.0
    """From the last progress: collectives over a slow network take seconds, kernels that run long
    at low power (eigenvalues, scans) minutes."""
    steps: float = 10.0
    """Times the longest step of this attempt, where that is more."""
    seldom_least_s: float = 3600.0
    """In an evaluation, a save and before the third step: generation and a search for the fastest
    kernel (88 and 100 s measured) are long, and no step has shown how long."""
    seldom_times: float = 3.0
    """Times the longest evaluation, save or step seen, where that is more."""
    samples: int = 5
    """Stack samples in a row that show the same."""
    every_s: float = 60.0
    """Between two of them: each stops the process for up to 0.4 s (measured on an H100)."""
    tail_s: float = 10.0
    """After the last progress, or the longest step: kernels that were queued still run then, and a
    reading of a GPU is up to 7 s old."""
    idle_power: float = IDLE_POWER_SHARE
    own_power: float = 0.7
    """Of the median of the job's own steps: clearly below. 127 W in a wait against 500 to 690 W in
    training; what is nearer is noise, or the same work."""
    draws: int = 8
    """Readings in steady training before their median is known."""
    bytes_s: float = 8e6
    """Over PCIe or InfiniBand. Assumed: an idle device shows up to some MB/s of the driver's own,
    an all-reduce over 1 Gbit/s shows 100 MB/s."""
    other_cpu: float = 0.02
    """Of a core for each rank, by threads that do not wait for a GPU: NCCL's watchdog and ours look
    around some times a second; hung trees used 1.3 %, work at least 26 % (measured)."""

    @property
    def first_sample_s(self) -> float:
        """After the last progress, so that the last of the samples is due at the shortest limit."""
        return 0.98 * self.least_s - (self.samples - 1) * self.every_s


LIMITS = DeviceLimits()
DRAWS_KEPT = 64
SLACK_S = 1.0
"""On a loaded machine a sample's CPU times are read so much later than its own time says."""


class DeviceHistory(Value):
    """Of one attempt."""

    draws: tuple[float, ...] = ()
    """Shares of the power limits, the newest readings of the job's own steps."""
    since: float | None = None
    """From here on every sample has shown devices that may only wait."""
    runs: bool = False
    """In one of these a kernel ran."""
    lacks: frozenset[DeviceLack] = frozenset()
    """Unknown or unfit in one of these."""
    cpu: tuple[float, float | None] = (0.0, None)
    """Time and CPU time of the whole tree, of the sample before the first of these."""


def advance(
    history: DeviceHistory, sample: Sample, *, progressed: bool, steady: bool
) -> DeviceHistory:
    """With one more sample of the whole job.

    `steady`: it makes steps, and no longer the first ones.
    """
    use, draws = sample.gpu, history.draws
    if use is None and not draws and history.since is None:
        return history  # no GPU, or it was never seen
    cpu = (sample.at, sample.cpu_s)
    if progressed or not history.cpu[0]:
        if steady and use is not None and use.draw is not None and use.util:
            draws = (*draws, use.draw)[-DRAWS_KEPT:]
        return DeviceHistory(draws=draws, cpu=cpu)
    lacks = set[DeviceLack](use.still.lacks if use is not None and use.still is not None else ())
    if use is None:
        lacks.add("GPU-readings")
    elif use.still is None or use.still.bytes_s > LIMITS.bytes_s or _computes(use, draws):
        return DeviceHistory(draws=draws, cpu=cpu)
    elif use.still.runs and own_draw(draws) is None:
        lacks.add("power-of-own-steps")
    if history.cpu[1] is None or sample.cpu_s is None:
        lacks.add("CPU-time")
    else:
        seconds, ranks = sample.at - history.cpu[0], len(sample.judged)
        spare_s = SLACK_S + (ANSWER_CPU_S * ranks if sample.asked else 0.0)
        if sample.cpu_s - history.cpu[1] > (1 + LIMITS.other_cpu) * ranks * seconds + spare_s:
            return DeviceHistory(draws=draws, cpu=cpu)
    return _replace(
        history,
        since=sample.at if history.since is None else history.since,
        runs=history.runs or (use is not None and use.still is not None and use.still.runs),
        lacks=history.lacks | lacks if lacks else history.lacks,
    )


def own_draw(draws: tuple[float, ...]) -> float | None:
    """What the job's own steps draw; None: too few were seen."""
    return statistics.median(draws) if len(draws) >= LIMITS.draws else None


def _computes(use: GpuUse, draws: tuple[float, ...]) -> bool:
    """A kernel takes so much power that it may be work."""
    still, own = use.still, own_draw(draws)
    if still is None or not still.runs:
        return False
    hot = still.power is not None and still.power >= LIMITS.idle_power
    return hot or (own is not None and use.draw is not None and use.draw > LIMITS.own_power * own)
