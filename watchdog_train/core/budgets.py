"""How long a phase may be silent: defaults, and what this run's own gaps have taught."""

from __future__ import annotations

import math

from watchdog_train.core.model import Phase, Value
from watchdog_train.core.policy import Detection, PhaseBudget

LEARNING_PHASES: tuple[Phase, ...] = ("train", "eval")
LEARN_QUICKLY = 8
"""Gaps that the first polls may count more than once; see track._learn."""
RING = 128
"""Gaps remembered per phase: old ones are forgotten, so a run that gets slower is followed."""


class Budget(Value, frozen=True, kw_only=True):
    """What applies to one rank now."""

    soft_s: float
    hard_s: float
    learnt: bool


def robust_quantile(gaps: tuple[float, ...]) -> float:
    """About the 98th percentile, never the single largest of eight or more.

    One outlier must not double the budget for the rest of the run, so the largest value counts
    only when there are too few to leave it out.
    """
    ordered = sorted(gaps)
    if len(ordered) < 8:
        return ordered[-1]
    return ordered[min(len(ordered) - 2, math.ceil(0.98 * len(ordered)) - 1)]


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
        detection: the policy.
    """
    default: PhaseBudget = getattr(detection.phases, phase if phase != "finished" else "finishing")
    if phase not in LEARNING_PHASES or len(gaps) < detection.learn_after:
        return Budget(soft_s=default.soft_s * factor, hard_s=default.hard_s * factor, learnt=False)
    typical_s = robust_quantile(gaps)
    soft_s = max(detection.learnt_soft_floor_s, detection.learnt_factor * typical_s)
    hard_s = max(detection.learnt_hard_floor_s, detection.learnt_hard_factor * typical_s)
    if fresh_phase:
        soft_s, hard_s = max(soft_s, default.soft_s), max(hard_s, default.hard_s)
    return Budget(
        soft_s=min(detection.learnt_cap_s, soft_s * factor),
        hard_s=min(detection.learnt_cap_s, hard_s * factor),
        learnt=True,
    )


def patience_s(
    *,
    steady: bool,
    may_end: bool,
    startup_s: float,
    unsaved_s: float,
    detection: Detection,
) -> float:
    """How long a suspicion that the stacks do not prove is given before it is a stall.

    Waiting about as long as a false alarm would cost is never more than twice the best choice
    in hindsight (the ski-rental bound). A run in its training steps that has gone quiet without
    a wait that could end by itself gets the floor only; an evaluation may wait for a remote
    judge and a load for a slow disk, so they never do.
    """
    if steady and not may_end:
        return detection.patience_floor_s
    cost_s = detection.patience_factor * (startup_s + unsaved_s)
    return min(detection.patience_cap_s, max(detection.patience_floor_s, cost_s))
