"""Output as progress: of a loop in which nothing moves that a hook could count. Pure."""

from __future__ import annotations

import msgspec

from watchdog_train.core.detection.budgets import robust_quantile
from watchdog_train.core.detection.track import RankTrack, Track
from watchdog_train.core.model import Phase
from watchdog_train.core.policy import Detection

LEAST_S = 15.0
"""Several lines in the first seconds are a program that starts, not yet a loop."""
EVEN_FACTOR = 3.0
"""Between the lines of a loop there is about the same time."""
BEFORE_STEPS: tuple[Phase, ...] = ("unknown", "startup", "first_step")


def is_regular(gaps: tuple[float, ...], detection: Detection) -> bool:
    """Whether the newest seconds between output are those of a loop."""
    if len(gaps) < detection.learn_after or sum(gaps) < LEAST_S:
        return False
    return robust_quantile(gaps) <= EVEN_FACTOR * sorted(gaps)[len(gaps) // 2]


def by_output(rank: RankTrack, track: Track, detection: Detection) -> RankTrack:
    """The rank, with regular output as its steps; as it is where the output is not regular."""
    if rank.phase not in BEFORE_STEPS or not is_regular(track.log_gaps, detection):
        return rank
    return msgspec.structs.replace(
        rank,
        words=(len(track.log_gaps),),
        changed_at=max(rank.changed_at, track.log_at),
        phase="unknown",
        fresh_phase=False,
        stepped=True,
        gaps={"unknown": track.log_gaps},
    )
