"""How long a phase may be silent: defaults, and what this run's own gaps have taught."""

from __future__ import annotations

import math

from watchdog_train.core.model import Phase, Value
from watchdog_train.core.policy import Detection

LEARNING_PHASES: tuple[Phase, ...] = ("train", "eval", "unknown", "startup", "first_step")
"""The last three are for loops without counted steps: bars, batches, output."""
EARLY_STEPS = 3
"""Before this many steps little is known of what the job compiles, loads and starts."""
LEARN_QUICKLY = 8
"""Gaps that the first polls may count more than once; see track._learn."""
RING = 128
"""Gaps remembered per phase; old ones are forgotten, so a run that slows down is followed."""
FEW_GAPS_FACTOR = 5.0
"""Factor on the longest of too few gaps to learn from: the first steps vary most."""
_BUSY_TIMES: dict[Phase, int] = {
    "unknown": 8,
    "idle": 8,
    "download": 4,
    "compile": 4,
    "eval": 4,
    "load": 2,
    "first_step": 2,
    "checkpoint": 2,
    "finishing": 2,
    "finished": 2,
}
"""Factor on `detection.busy_s`: phases that may be busy for long without progress."""


class Budget(Value):
    """The limits of one rank now."""

    soft_s: float
    hard_s: float
    learnt: bool


def robust_quantile(gaps: tuple[float, ...]) -> float:
    """About the 98th percentile, never the single largest of eight or more.

    One outlier must not double the budget for the rest of the run; the largest value counts
    only if there are too few to leave it out.
    """
    ordered = sorted(gaps)
    if len(ordered) < 8:
        return ordered[-1]
    return ordered[min(len(ordered) - 2, math.ceil(0.98 * len(ordered)) - 1)]


def busy_s(phase: Phase, detection: Detection) -> float:
    """How long a phase may be busy without progress while nothing is learnt."""
    return detection.busy_s * _BUSY_TIMES.get(phase, 1)


def budget_for(
    phase: Phase,
    gaps: tuple[float, ...],
    *,
    fresh_phase: bool,
    factor: float,
    detection: Detection,
) -> Budget:
    """The budget of a rank.

    Args:
        phase: where the rank is.
        gaps: seconds between changes of its progress words in this phase so far.
        fresh_phase: nothing has progressed since the phase was entered: worker start-up and
            warm-up are not in the learnt gaps, so the default applies as well.
        factor: lengthening earned by an earlier stall that recovered by itself.
        detection: the limits.
    """
    soft_s, hard_s = detection.silence_s, busy_s(phase, detection)
    learnt = phase in LEARNING_PHASES and len(gaps) >= detection.learn_after
    if learnt:
        typical_s = robust_quantile(gaps)
        soft_s = max(soft_s, detection.learnt_factor * typical_s)
        learnt_hard_s = max(detection.learnt_hard_floor_s, detection.learnt_hard_factor * typical_s)
        # Batches of an evaluation come fast; the metric after them does not. Nor does what
        # follows the bars of a start.
        longer_only = fresh_phase or phase != "train"
        hard_s = max(hard_s, learnt_hard_s) if longer_only else learnt_hard_s
    elif gaps and phase == "train":
        soft_s = max(soft_s, FEW_GAPS_FACTOR * max(gaps))
        hard_s = max(hard_s, 2 * soft_s)
    if phase in LEARNING_PHASES and gaps:
        soft_s = min(detection.learnt_cap_s, soft_s * factor)
        hard_s = min(detection.learnt_cap_s, hard_s * factor)
    else:
        soft_s, hard_s = soft_s * factor, hard_s * factor
    return Budget(soft_s=soft_s, hard_s=max(soft_s, hard_s), learnt=learnt)
