"""A stall by device wait: all that its samples must have shown since the last progress. Pure.

Many healthy programs look alike, so the rule is narrow. Stacks are judged in core.suspect.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from watchdog_train.core.detection.activity import ANSWER_CPU_S
from watchdog_train.core.detection.budgets import EARLY_STEPS
from watchdog_train.core.model import Phase, Sample, Value
from watchdog_train.core.model.gpu import DeviceLack, GpuUse
from watchdog_train.core.policy.limits import DeviceWaits

if TYPE_CHECKING:
    from watchdog_train.core.detection.track import RankTrack, Track

_replace = msgspec.structs.replace

DRAWS_KEPT = 64
SLACK_S = 1.0
"""Seconds. On a loaded machine CPU times are read up to this long after the sample's time."""


class DeviceHistory(Value):
    draws: tuple[float, ...] = ()
    """Shares of the power limits, the newest readings during the job's own steps."""
    since: float | None = None
    """Since then every sample has shown devices that may only wait."""
    runs: bool = False
    """A kernel ran in one of these."""
    lacks: frozenset[DeviceLack] = frozenset()
    """Unknown or unfit in one of these."""
    cpu: tuple[float, float | None] = (0.0, None)
    """Time, and CPU time of the complete tree, of the sample before the first of these."""


def advance(
    history: DeviceHistory, sample: Sample, limits: DeviceWaits, *, progressed: bool, steady: bool
) -> DeviceHistory:
    """With one more sample of the complete job; `steady`: past its first steps."""
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
    """Share of the power limits that the job's own steps draw; None: too few were seen."""
    return statistics.median(draws) if len(draws) >= limits.draws else None


def _computes(use: GpuUse, draws: tuple[float, ...], limits: DeviceWaits) -> bool:
    """A kernel takes enough power to be work."""
    still, own = use.still, own_draw(draws, limits)
    if still is None or not still.runs:
        return False
    hot = still.power is not None and still.power >= limits.idle_power
    return hot or (own is not None and use.draw is not None and use.draw > limits.own_power * own)


class DeviceWait(Value):
    """Since the last progress no GPU was seen to compute and only CPU time has moved."""

    since: float
    limit_s: float
    """From the last progress."""
    runs: bool
    """A kernel runs on a GPU; False: all were idle."""
    lacks: tuple[DeviceLack, ...] = ()
    """What is unknown or unfit: then the wait is only reported."""


def device_wait(
    track: Track,
    sample: Sample,
    ranks: tuple[RankTrack, ...],
    limits: DeviceWaits,
    *,
    elsewhere_quiet: bool,
) -> DeviceWait | None:
    """The device wait of a job whose judged ranks are all silent.

    None: something computes or moves, or it has no GPU.
    """
    history, activity = track.device, track.activity
    if sample.gpu is None or history.since is None or not activity.spinning_windows:
        return None
    progress_at = max(rank.changed_at for rank in ranks)
    since = max(history.since, activity.spinning_since)
    tail_s = max(limits.tail_s, *(rank.longest.get("train", 0.0) for rank in ranks))
    if since - progress_at > tail_s:
        return None
    lacks = set(history.lacks)
    if not (elsewhere_quiet and _is_whole(track, sample)):
        lacks.add("all-ranks")
    if not track.ranks or not all(rank.stepped for rank in track.ranks):
        lacks.add("steps-of-all-ranks")
    return DeviceWait(
        since=max(since, progress_at),
        limit_s=max(limit_s(rank, limits) * track.factors.get(rank.phase, 1.0) for rank in ranks),
        runs=history.runs,
        lacks=tuple(sorted(lacks)),
    )


def limit_s(rank: RankTrack, limits: DeviceWaits) -> float:
    """Seconds from the last progress, by the phase of this rank."""
    if rank.phase == "train" and rank.steps >= EARLY_STEPS:
        return max(limits.least_s, limits.steps * rank.longest.get("train", 0.0))
    seen: Iterable[Phase] = (rank.phase, "train") if rank.steps < EARLY_STEPS else (rank.phase,)
    longest_s = max(rank.longest.get(phase, 0.0) for phase in seen)
    return max(limits.seldom_least_s, limits.seldom_times * longest_s)


def _is_whole(track: Track, sample: Sample) -> bool:
    """All ranks of the world are here and alive."""
    here = {slot.rank for _, slot in sample.judged}
    return len(sample.judged) == len(here) == (track.world.size or 1) and not sample.ended
