"""A small part of scripts/bench/detector: healthy is left alone, hung is called in time."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts" / "bench"))

import simulated_cases as cases
import simulated_gpus
from simulated_training import HANGS

from watchdog_train.core.model import PatienceRow, Phase
from watchdog_train.core.policy import Policy
from watchdog_train.explain.patience import Silence
from watchdog_train.explain.patience import limit_s as limit_of

POLLS_S = 2.5
"""The poll that saw the last progress, and the one that finds the limit over, with their jitter."""


def simulate(**sizes: Any) -> tuple[list[cases.Result], dict[str, Any]]:
    results = [cases.run(task) for task in cases.plan(**sizes)]
    return results, cases.summary(results)


def false_alarms(results: list[cases.Result]) -> list[str]:
    return [f"{result.name}: {alarm}" for result in results for alarm in result.alarms["ours"]]


@pytest.mark.parametrize("where", ["train", "checkpoint", "eval"])
@pytest.mark.parametrize("row", sorted(set(HANGS)))
def test_each_wait_is_called_at_its_limit(row: PatienceRow, where: Phase) -> None:
    """After its limit and a poll: no poll, sample or moment of doubt comes on top of another."""
    limits = Policy().patience
    limit_s = limit_of(row, Silence(phase=where), limits)
    assert limit_s is not None
    costly = row == "unknown" and where != "train"  # also what a false alarm would cost
    most_s = limits.cost_most_s if costly else limit_s
    for seed in range(3):
        result = cases.hang_in(row, where, seed)
        assert result.alarms["ours"] == []
        delay_s = result.delays["ours"]
        assert delay_s is not None
        assert limit_s - POLLS_S <= delay_s <= most_s + POLLS_S, result.name


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
    assert fast["proven"]["median_s"] <= 20
    assert delays["steps of 20 to 60 s"]["detectors"]["ours"]["median_s"] <= 300
    for result in results:
        if result.limit_s is not None and "steps of up to 2 s" in result.groups:
            delay_s = result.delays["ours"]
            assert delay_s is not None, result.name
            assert delay_s <= result.limit_s + POLLS_S, (result.name, result.groups)


@pytest.mark.parametrize("seed", range(4))
def test_low_power_on_a_gpu_is_no_device_wait(seed: int) -> None:
    """Small batches, and data that comes late, with stacks that are often the same."""
    assert simulated_gpus.alarms(seed, hours=1.0) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_hours_at_low_power_on_gpus() -> None:
    """The same, over trainings of all kinds."""
    found = [simulated_gpus.alarms(seed, hours=4.0) for seed in range(25)]
    assert [alarm for one in found for alarm in one] == []
