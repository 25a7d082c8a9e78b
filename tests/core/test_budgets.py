"""How long a phase may be silent, as a table."""

from __future__ import annotations

import pytest

from watchdog_train.core.detection.budgets import RING, budget_for, robust_quantile
from watchdog_train.core.model import Phase
from watchdog_train.core.policy import Detection

DETECTION = Detection()
SOFT_S, HARD_S = DETECTION.silence_s, DETECTION.busy_s


def soft_hard(
    phase: Phase, gaps: tuple[float, ...], *, fresh: bool = False, factor: float = 1.0
) -> tuple[float, float]:
    budget = budget_for(phase, gaps, fresh_phase=fresh, factor=factor, detection=DETECTION)
    return budget.soft_s, budget.hard_s


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((), (SOFT_S, HARD_S)),
        ((1.0,) * 7, (SOFT_S, HARD_S)),  # too few
        ((60.0, 70.0), (350.0, HARD_S)),  # few, but they tell of slow steps
        ((0.1,) * 8, (12.0, 120.0)),  # the floors
        ((30.0,) * 8, (75.0, 900.0)),  # sleeps 30 s between steps
        ((1.0,) * 30 + (600.0,), (12.0, 120.0)),  # one outlier moves nothing
        ((10.0,) * 7 + (600.0,), (25.0, 300.0)),
        ((5000.0,) * 8, (7200.0, 7200.0)),  # the cap
    ],
)
def test_train_budget(gaps: tuple[float, ...], expected: tuple[float, float]) -> None:
    """2.5 and thirty times a robust quantile, within floors and a cap, once enough is known."""
    assert soft_hard("train", gaps) == pytest.approx(expected)


def test_a_fresh_phase_has_at_least_its_default() -> None:
    """Workers start at the seam of an epoch: learnt gaps do not hold that."""
    assert soft_hard("train", (0.1,) * 50, fresh=True) == (SOFT_S, HARD_S)
    assert soft_hard("train", (100.0,) * 50, fresh=True) == pytest.approx((250.0, 3000.0))


@pytest.mark.parametrize(
    ("phase", "times"),
    [
        ("startup", 1),
        ("load", 2),
        ("checkpoint", 2),
        ("finishing", 2),
        ("finished", 2),
        ("download", 4),
        ("compile", 4),
        ("unknown", 8),
    ],
)
def test_other_phases_may_be_busy_for_longer(phase: Phase, times: int) -> None:
    """However regular they were: a compilation takes as long as it takes."""
    assert soft_hard(phase, (0.1,) * 50) == (SOFT_S, times * HARD_S)


def test_a_factor_lengthens_both() -> None:
    assert soft_hard("train", (), factor=2.0)[0] == 2 * SOFT_S
    assert soft_hard("train", (30.0,) * 8, factor=2.0) == pytest.approx((150.0, 1800.0))


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((3.0,), 3.0),
        ((1.0, 9.0), 9.0),  # too few to leave one out
        ((1.0,) * 7 + (9.0,), 1.0),
        (tuple(float(gap) for gap in range(1, 101)), 98.0),
        (tuple(float(gap) for gap in range(1, RING + 1)), 126.0),
    ],
)
def test_robust_quantile(gaps: tuple[float, ...], expected: float) -> None:
    """About the 98th percentile, never the single largest of eight or more."""
    assert robust_quantile(gaps) == expected
