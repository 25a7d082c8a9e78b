"""Slow steps: a jump that stays is said once; noise, evaluations, sleeps and creeping are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import Difference, HostLoad, Sample, Slow
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.notices.news import news
from watchdog_train.core.notices.slowdown import Slowness, advance, resumed
from watchdog_train.core.policy import Policy
from watchdog_train.report.notices import slow_words

Around = Callable[[float], dict[str, object]]


def nothing(at: float) -> dict[str, object]:
    return {}


def polls(steps: Iterable[float], *, around: Around = nothing, poll_s: float = 1.0) -> list[Sample]:
    """One sample a second while steps of these lengths are made, all in training."""
    ends, at = [], 0.0
    for step_s in steps:
        at += step_s
        ends.append(at)
    found, done, now = [], 0, 0.0
    while now < at:
        now += poll_s
        while done < len(ends) and ends[done] <= now:
            done += 1
        found.append(b.sample(now, b.rank(words=done + 1), **around(now)))
    return found


def episodes(samples: Iterable[Sample], memory: Slowness | None = None) -> list[Slow]:
    """Each slow stretch that was opened."""
    found: list[Slow] = []
    memory = memory or Slowness()
    for sample in samples:
        before = memory.open
        memory = advance(memory, sample)
        if memory.open is not None and before is None:
            found.append(memory.open)
    return found


@settings(max_examples=12, deadline=None)
@given(
    step_s=st.floats(0.2, 90.0),
    factor=st.floats(4.0, 20.0),
    noise=st.lists(st.floats(0.9, 1.1), min_size=7, max_size=7),
)
def test_a_jump_that_stays_is_said_once(step_s: float, factor: float, noise: list[float]) -> None:
    """Whatever the length of the steps."""
    usual = [step_s * noise[n % 7] for n in range(int(1200 / step_s) + 12)]
    slow_s = step_s * factor
    slow = [slow_s * noise[n % 7] for n in range(int(1200 / slow_s) + 12)]
    (found,) = episodes(polls(usual + slow, poll_s=5.0))
    assert found.usual_s == pytest.approx(step_s, rel=0.35)
    assert found.factor >= 3.0


@settings(max_examples=12, deadline=None)
@given(
    step_s=st.floats(0.2, 30.0),
    lengths=st.lists(st.floats(0.5, 2.0), min_size=50, max_size=120),
    outlier=st.floats(1.0, 1500.0),
)
def test_noise_and_one_long_gap_are_no_slowness(
    step_s: float, lengths: list[float], outlier: float
) -> None:
    """An evaluation that no phase tells of looks like one very long step."""
    count = int(3000 / step_s)
    steps = [step_s * lengths[n % len(lengths)] for n in range(count)]
    steps.insert(count // 2, outlier)
    steps.insert(count // 2 + 5, outlier)
    assert episodes(polls(steps, poll_s=5.0)) == []


def test_a_pace_that_creeps_is_followed() -> None:
    """Sequences that grow to four times their length over hours."""
    steps = [1.0 + 3.0 * n / 8000 for n in range(8000)]
    assert episodes(polls(steps, poll_s=5.0)) == []


def test_it_ends_when_it_is_over_and_may_come_again() -> None:
    """Two episodes, each said once."""
    usual, slow = [1.0] * 1200, [5.0] * 180
    assert len(episodes(polls(usual + slow + usual + slow))) == 2


def test_nine_minutes_are_no_episode() -> None:
    """Slow for a while is nothing yet."""
    assert episodes(polls([1.0] * 900 + [5.0] * 106 + [1.0] * 300)) == []


def test_other_phases_sleeps_and_stops_do_not_count() -> None:
    """Half of the time is an evaluation, a suspend or a debugger: steps are as fast as ever."""
    memory, at, step = Slowness(), 0.0, 0
    for minute in range(60):
        for second in range(60):
            at += 1.0
            away = minute >= 20 and second >= 12
            step += 0 if away else 1
            phase = "eval" if away and minute % 3 == 0 else "train"
            state = "T" if away and minute % 3 == 1 else "S"
            suspended_s = at if away and minute % 3 == 2 else 0.0
            member = b.rank(words=step + 1, phase=phase, state=state)
            memory = advance(memory, b.sample(at, member, suspended_s=suspended_s))
    assert memory.open is None


def test_another_training_begins_anew() -> None:
    """What the last fold needed says nothing about the next model."""
    first = polls([0.5] * 2400)
    second = [
        b.sample(
            first[-1].at + sample.at,
            b.rank(words=(sample.members[0].slot.step or 0), train_ordinal=2),  # type: ignore[union-attr]
        )
        for sample in polls([5.0] * 300)
    ]
    assert episodes(first + second) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"gpu": GpuUse(util=90.0, clock=0.95)},
            {"gpu": GpuUse(others=(7,), other_names=("pid 7 (python, user bob)",), clock=0.95)},
            "the GPU is shared with pid 7 (python, user bob)",
        ),
        (
            {"gpu": GpuUse(util=90.0, clock=0.95)},
            {"gpu": GpuUse(util=90.0, clock=0.3, slowed_by=("heat",))},
            "the GPU's clock is at 30 % instead of 95 % (heat)",
        ),
        (
            {"host": HostLoad(io_pressure=1.0)},
            {"host": HostLoad(io_pressure=80.0)},
            "processes of this machine wait for storage 80 % of the time instead of 1 %",
        ),
        ({}, {}, "nothing that we can see has changed"),
    ],
)
def test_what_changed_is_named(
    before: dict[str, object], after: dict[str, object], said: str
) -> None:
    """As far as anything tells; no more."""
    samples = polls([1.0] * 900 + [4.0] * 200, around=lambda at: before if at <= 900 else after)
    (found,) = episodes(samples)
    assert said in slow_words(found)


def test_swapping_is_named() -> None:
    """By the bytes, not by the size of the swap."""

    def around(at: float) -> dict[str, object]:
        return {"host": HostLoad(swap_bytes=int(max(0.0, at - 900) * 20e6))}

    (found,) = episodes(polls([1.0] * 900 + [4.0] * 200, around=around))
    assert "the machine swaps, 20 MB/s" in slow_words(found)


def test_it_is_said_once_and_its_end_too() -> None:
    """Events follow the memory; an adopting supervisor does not take slow for usual."""
    swaps = Difference(kind="swap", now=2e7, usual=0.0)
    slow = Slow(since=1000.0, usual_s=1.0, step_s=4.0, changed=(swaps,))
    poll = b.sample(2000.0, b.rank(words=9))
    state = b.running()
    said = [x for x in news(b.observation(poll, slow=slow), state, Policy()) if _about(x)]
    assert [type(x) for x in said] == [e.Slowdown]
    assert isinstance(said[0], e.Slowdown)
    assert "4.0 times as long" in slow_words(said[0].slow)
    state = b.running(said[0])
    assert state.slowdown is not None
    assert [x for x in news(b.observation(poll, slow=slow), state, Policy()) if _about(x)] == []
    (ended,) = [x for x in news(b.observation(poll), state, Policy()) if _about(x)]
    assert ended == e.Slowdown(slow=None)
    assert b.running(said[0], ended).slowdown is None
    memory = resumed(slow)
    for sample in polls([4.0] * 300):
        memory = advance(memory, sample)
    assert memory.open is not None
    for sample in polls([1.1] * 600):
        memory = advance(memory, b.sample(1200.0 + sample.at, *sample.members))
    assert memory.open is None


def _about(event: e.AnyEvent) -> bool:
    return isinstance(event, e.Slowdown)


def test_a_machine_that_slept_long_ago_is_judged() -> None:
    """Its two clocks are read one after the other: what they differ by is never quite the same."""
    samples = polls(
        [1.0] * 900 + [5.0] * 180, around=lambda at: {"suspended_s": 3600.0 + 1e-6 * (at % 7)}
    )
    assert len(episodes(samples)) == 1
