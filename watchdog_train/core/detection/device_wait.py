"""A stall by device wait: all that its samples must have shown since the last progress. Pure.

Many healthy programs look alike, so the rule is narrow. Stacks are judged in core.suspect.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.core.detection.track import EARLY_STEPS, RankTrack, Track
from watchdog_train.core.model import Phase, Sample, Value
from watchdog_train.core.model.gpu import DeviceLack
from watchdog_train.core.policy.limits import DeviceWaits


class DeviceWait(Value):
    """Since the last progress no GPU was seen to compute, and nothing but CPU time has moved."""

    since: float
    limit_s: float
    """From the last progress."""
    runs: bool
    """A kernel runs on a GPU; False: all were idle."""
    lacks: tuple[DeviceLack, ...] = ()
    """What is unknown or unfit: then it is only said."""


def device_wait(
    track: Track,
    sample: Sample,
    ranks: tuple[RankTrack, ...],
    limits: DeviceWaits,
    *,
    elsewhere_quiet: bool,
) -> DeviceWait | None:
    """What this moment shows of the job, whose judged ranks are all silent.

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
    """Seconds from the last progress, by where this rank is."""
    if rank.phase == "train" and rank.steps >= EARLY_STEPS:
        return max(limits.least_s, limits.steps * rank.longest.get("train", 0.0))
    seen: Iterable[Phase] = (rank.phase, "train") if rank.steps < EARLY_STEPS else (rank.phase,)
    longest_s = max(rank.longest.get(phase, 0.0) for phase in seen)
    return max(limits.seldom_least_s, limits.seldom_times * longest_s)


def _is_whole(track: Track, sample: Sample) -> bool:
    """Every rank of the world is here and lives."""
    here = {slot.rank for _, slot in sample.judged}
    return len(sample.judged) == len(here) == (track.world.size or 1) and not sample.ended
