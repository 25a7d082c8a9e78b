"""A small part of scripts/bench/detector: healthy is left alone, hung is called in time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts" / "bench"))

import simulated_cases as cases


def simulate(**sizes: Any) -> tuple[list[cases.Result], dict[str, Any]]:
    results = [cases.run(task) for task in cases.plan(**sizes)]
    return results, cases.summary(results)


def false_alarms(results: list[cases.Result]) -> list[str]:
    return [f"{result.name}: {alarm}" for result in results for alarm in result.alarms["ours"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.SINGLE)
def test_long_but_healthy_is_left_alone(name: str) -> None:
    """However long it takes: work, bytes, or a judge elsewhere."""
    result = cases.run(cases.Task(name, 11))
    assert result.healthy_s > 800
    assert result.alarms["ours"] == []


@pytest.mark.slow
def test_hangs_before_the_third_step_are_called_within_minutes() -> None:
    """Where nothing has been learnt, and most hangs are."""
    results, told = simulate(hours=0.0, hangs=0, early=15, seed=5, single=0)
    assert false_alarms(results) == []
    early = told["delays"]["before the third step"]["detectors"]["ours"]
    assert early["median_s"] <= 180


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_few_hundred_hours() -> None:
    """No false alarm, and the delays that are promised."""
    results, told = simulate(hours=200.0, hangs=160, early=60, seed=77)
    assert told["hours"] >= 200
    assert false_alarms(results) == []
    delays = told["delays"]
    assert delays["before the third step"]["detectors"]["ours"]["median_s"] <= 180
    fast = delays["steps of up to 2 s"]["detectors"]
    assert fast["ours"]["median_s"] <= 120  # a wait of unknown kind gets 75 s
    assert fast["proven"]["median_s"] <= 20
    assert delays["steps of 20 to 60 s"]["detectors"]["ours"]["median_s"] <= 300
