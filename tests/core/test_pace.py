"""The recent pace: known when it is steady, of this attempt only, and never of a silence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import MemberSample, RunProgress, said
from watchdog_train.core.notices.pace import MOST_POINTS, Pace, advance, steps_s
from watchdog_train.core.notices.poll_events import run_progress
from watchdog_train.report.summary import progress_line


def follow(polls: Iterable[tuple[float, int]], pace: Pace | None = None, **of_slot: Any) -> Pace:
    """The memory after polls of (time, step)."""
    pace = pace or Pace()
    for at, step in polls:
        pace = advance(pace, b.sample(at, b.rank(words=step, step=step or None, **of_slot)))
    return pace


def evenly(begin: float, seconds: float, per_s: float, first: int = 1) -> list[tuple[float, int]]:
    """A poll a second."""
    return [(begin + i, first + int(i * per_s)) for i in range(int(seconds))]


def test_a_steady_pace_is_known_after_seconds() -> None:
    """Not after the first two points, which may be anything."""
    assert steps_s(follow(evenly(100, 9, 5.0)), 109.0) is None
    found = steps_s(follow(evenly(100, 16, 5.0)), 116.0)
    assert found == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("step_s", [0.01, 0.7, 3.0, 45.0, 400.0])
def test_any_length_of_a_step(step_s: float) -> None:
    seconds = max(60.0, 20 * step_s)
    polls = [(float(i), 1 + int(i / step_s)) for i in range(int(seconds))]
    found = steps_s(follow(polls), seconds)
    assert found == pytest.approx(1 / step_s, rel=0.1)


def test_compilation_is_not_the_pace() -> None:
    """Uneven steps at the beginning: nothing is said until they are even, then the right thing."""
    compiling = [(0.0, 1), (37.0, 2), (37.5, 3), (60.0, 4)]
    assert steps_s(follow(compiling), 60.0) is None
    pace = follow(evenly(61, 30, 4.0, first=6), follow(compiling))
    assert steps_s(pace, 91.0) == pytest.approx(4.0, rel=0.1)


def test_a_slow_beginning_is_soon_forgotten() -> None:
    """Even steps on a cold cache, then eighty times as fast: right again after half a minute."""
    pace = follow([(float(i), 1 + i // 20) for i in range(100)])
    assert steps_s(pace, 100.0) == pytest.approx(0.05, rel=0.1)
    pace = follow(evenly(100, 30, 4.0, first=6), pace)
    assert steps_s(pace, 130.0) == pytest.approx(4.0, rel=0.1)


def test_an_evaluation_now_and_then_is_part_of_the_pace() -> None:
    """Two minutes of steps, half a minute of evaluation, and so on: the mean of both."""
    polls, at, step = [], 0.0, 1
    for _ in range(8):
        polls += evenly(at, 120, 5.0, first=step)
        at, step = at + 150, step + 600
    assert steps_s(follow(polls), at) == pytest.approx(4.0, rel=0.1)


def test_it_follows_a_change_of_pace() -> None:
    """After a quarter of an hour at the new pace the old one is forgotten."""
    pace = follow(evenly(0, 600, 10.0))
    pace = follow(evenly(600, 900, 2.0, first=6001), pace)
    assert steps_s(pace, 1500.0) == pytest.approx(2.0, rel=0.02)
    assert len(pace.points) == MOST_POINTS


def test_a_silence_has_no_pace() -> None:
    """What stands still for a minute has no time left that anybody knows; an evaluation has."""
    pace = follow(evenly(0, 100, 5.0))
    assert steps_s(pace, 150.0) is not None
    assert steps_s(pace, 165.0) is None
    evaluating = follow([(150.0, 496)], pace, phase="eval")
    assert steps_s(evaluating, 165.0) is not None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"train_ordinal": 2}, id="another-training"),
        pytest.param({"resumed_step": 5000}, id="checkpoint-loaded"),
    ],
)
def test_another_count_begins_anew(change: dict[str, int]) -> None:
    pace = follow(evenly(0, 60, 5.0))
    pace = follow([(60.0, 5300)], pace, **change)
    assert len(pace.points) == 1
    assert steps_s(pace, 60.0) is None


def test_a_counter_that_goes_back_begins_anew() -> None:
    """A second fold counts from one again."""
    pace = follow([*evenly(0, 60, 5.0), (61.0, 2)])
    assert pace.points == ((61.0, 2),)


def test_nobody_steps() -> None:
    assert follow([(1.0, 0), (2.0, 0)]) == Pace()
    assert advance(Pace(), b.sample(1.0, b.keeper())) == Pace()


def told(step: int | None, total: int | None, per_s: float | None, *events: Any) -> RunProgress:
    members: tuple[MemberSample, ...] = (
        b.rank(words=step or 0, step=step, total_steps=total, loss=0.412),
    )
    return run_progress(b.sample(1.0, *members), b.running(*events), per_s)


def test_time_left() -> None:
    assert told(4210, 10000, 3.1).eta_s == pytest.approx(5790 / 3.1, abs=0.1)
    assert told(4210, 10000, None).eta_s is None
    assert told(4210, None, 3.1).eta_s is None
    assert told(None, 10000, 3.1).eta_s is None


def test_a_total_that_was_passed_was_wrong() -> None:
    progress = told(101, 100, 3.1)
    assert (progress.total_steps, progress.percent, progress.eta_s) == (None, None, None)
    assert told(100, 100, 3.1).percent == 100.0


def test_a_suspected_training_has_no_time_left() -> None:
    doubt = e.Suspected(basis="quiet", phase="train", ranks=(0,), age_s=30.0, why=said("silent"))
    assert told(4210, 10000, 3.1, doubt).eta_s is None
    assert told(4210, 10000, 3.1, doubt).steps_s is None


def test_the_line_of_a_person() -> None:
    line = progress_line(told(4210, 10000, 3.1))
    assert line == "step 4,210 of 10,000 (42 %), 3.1 steps/s, loss 0.412, about 31 min left"
    assert progress_line(told(4210, None, None)) == "step 4,210, loss 0.412"
    assert progress_line(told(12, None, 0.083)) == "step 12, 12 s a step, loss 0.412"
    assert progress_line(told(None, 100, None)) is None
    assert math.isclose(told(1, 10**15, 0.001).eta_s or 0, 1e18, rel_tol=1e-3)
    assert "left" in (progress_line(told(1, 10**15, 0.001)) or "")
