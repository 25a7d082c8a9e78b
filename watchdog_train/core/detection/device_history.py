"""What the GPUs of a job have shown since its last progress, and drawn in its own steps. Pure."""

from __future__ import annotations

import statistics

import msgspec

from watchdog_train.core.detection.activity import ANSWER_CPU_S
from watchdog_train.core.model import Sample, Value
from watchdog_train.core.model.gpu import DeviceLack, GpuUse
from watchdog_train.core.policy.limits import DeviceWaits

_replace = msgspec.structs.replace

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
    history: DeviceHistory, sample: Sample, limits: DeviceWaits, *, progressed: bool, steady: bool
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
    elif use.still is None or use.still.bytes_s > limits.bytes_s or _computes(use, draws, limits):
        return DeviceHistory(draws=draws, cpu=cpu)
    elif use.still.runs and own_draw(draws, limits) is None:
        lacks.add("power-of-own-steps")
    if history.cpu[1] is None or sample.cpu_s is None:
        lacks.add("CPU-time")
    else:
        seconds, ranks = sample.at - history.cpu[0], len(sample.judged)
        spare_s = SLACK_S + (ANSWER_CPU_S * ranks if sample.asked else 0.0)
        if sample.cpu_s - history.cpu[1] > (1 + limits.other_cpu) * ranks * seconds + spare_s:
            return DeviceHistory(draws=draws, cpu=cpu)
    return _replace(
        history,
        since=sample.at if history.since is None else history.since,
        runs=history.runs or (use is not None and use.still is not None and use.still.runs),
        lacks=history.lacks | lacks if lacks else history.lacks,
    )


def own_draw(draws: tuple[float, ...], limits: DeviceWaits) -> float | None:
    """What the job's own steps draw; None: too few were seen."""
    return statistics.median(draws) if len(draws) >= limits.draws else None


def _computes(use: GpuUse, draws: tuple[float, ...], limits: DeviceWaits) -> bool:
    """A kernel takes so much power that it may be work."""
    still, own = use.still, own_draw(draws, limits)
    if still is None or not still.runs:
        return False
    hot = still.power is not None and still.power >= limits.idle_power
    return hot or (own is not None and use.draw is not None and use.draw > limits.own_power * own)
