"""The rank that comes last: named when it always does, never by chance."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from random import Random

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import MemberSample, Sample, Straggler
from watchdog_train.core.notices.poll_events import news
from watchdog_train.core.notices.straggler import Standing, advance
from watchdog_train.core.policy import Policy

replace = msgspec.structs.replace
Parts = tuple[float, float, float]
"""Of a step of one rank: until it has its batch, until its backward pass begins, that pass."""
Work = Callable[[int, int], Parts]
"""Rank and step to its parts; then all ranks meet."""


class Job:
    """Ranks that meet in each step, at the end of the backward pass or after it."""

    def __init__(self, work: Work, steps: int, *, ranks: int = 2, inside: bool = True) -> None:
        self._stamps: list[tuple[list[float], ...]] = [([], [], [], []) for _ in range(ranks)]
        met = [100.0] * ranks
        for step in range(steps):
            parts = [work(rank, step) for rank in range(ranks)]
            times = [
                list(accumulate(mine, initial=at))[1:] for mine, at in zip(parts, met, strict=True)
            ]
            last = max(each[2] for each in times)
            met = [last + 0.001] * ranks
            for stamps, each, done in zip(self._stamps, times, met, strict=True):
                ended = last if inside else each[2]
                for column, at in zip(stamps, (each[0], each[1], ended, done), strict=True):
                    column.append(at)
        self.ranks = ranks
        self.end = min(met)

    def member(self, rank: int, at: float) -> MemberSample:
        """What is seen of a rank."""
        mine = self._stamps[rank]
        counts = [bisect(column, at) for column in mine]
        batch, begun, ended = (
            int(1e9 * mine[n][counts[n] - 1]) if counts[n] else 0 for n in range(3)
        )
        return b.rank(
            10 + rank,
            rank,
            words=(0, counts[3], 0, counts[2], counts[0], 0, 0, 0),
            world_size=self.ranks,
            batch_ns=batch,
            backward_ns=begun,
            backward_end_ns=ended,
        )

    def look(self, at: float) -> Sample:
        """One poll."""
        return b.sample(at, *(self.member(rank, at) for rank in range(self.ranks)))


def watch(
    job: Job,
    *,
    poll_s: float = 1.0,
    memory: Standing | None = None,
    seen: Callable[[Sample], Sample] = lambda sample: sample,
) -> list[Straggler | None]:
    """What is said, one after the other."""
    memory = memory or Standing()
    said: list[Straggler | None] = [memory.open]
    at = 101.0
    while at < job.end:
        memory = advance(memory, seen(job.look(at)))
        if memory.open != said[-1]:
            said.append(memory.open)
        at += poll_s
    return said


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_are_equal_have_no_straggler(seed: int) -> None:
    """However uneven their steps are."""
    chance = Random(seed)
    ranks, step_s, noise = chance.randint(2, 8), chance.uniform(0.3, 6.0), chance.uniform(0.1, 1.5)

    def work(rank: int, step: int) -> Parts:
        batch, forward, backward = (step_s / 3 * chance.lognormvariate(0.0, noise) for _ in "123")
        return batch, forward, backward

    job = Job(work, 400, ranks=ranks, inside=bool(seed % 2))
    assert watch(job, poll_s=1.1) == [None]


@pytest.mark.parametrize("seed", range(12))
def test_a_slow_rank_is_named_within_some_hundred_steps(seed: int) -> None:
    """Wherever in the step it is slow, once, with about the time that it costs.

    A slow backward pass shows only where ranks do not meet inside of it, as in DDP they do.
    """
    chance = Random(seed)
    ranks, step_s = chance.randint(2, 6), chance.uniform(0.3, 4.0)
    later, part = chance.uniform(0.5, 9.0), seed % 3

    def work(rank: int, step: int) -> Parts:
        parts = [step_s / 3 * chance.uniform(0.9, 1.1) for _ in "123"]
        if rank == 1:
            parts[part] += later * step_s
        return parts[0], parts[1], parts[2]

    none, found = watch(Job(work, 300, ranks=ranks, inside=part < 2 and seed % 2 == 0))
    assert none is None
    assert (found.rank, found.pid) == (1, 11)
    assert found.place == ("batch", "backward", "backward-end")[part]
    assert found.lost == pytest.approx(later / (1 + later), abs=0.15)
    assert found.share > 0.95


@pytest.mark.parametrize(
    ("late_s", "steps", "poll_s", "named"),
    [
        (lambda step: 0.08, 600, 1.0, False),
        (lambda step: 0.16, 600, 1.0, True),
        (lambda step: 300.0 * (step % 100 == 50), 400, 1.0, False),
        (lambda step: 5000.0 * (step == 20), 22, 2.0, False),
    ],
    ids=["less than a tenth of a step", "more than a tenth", "a long pause now and then", "a hang"],
)
def test_a_rank_is_named_that_loses_a_tenth_of_most_steps(
    late_s: Callable[[int], float], steps: int, poll_s: float, named: bool
) -> None:
    """A step that does not end is one step, however often it is looked at."""
    job = Job(lambda rank, step: (0.4 + late_s(step) * (rank == 0), 0.4, 0.2), steps)
    assert len(watch(job, poll_s=poll_s)) == 1 + named


def test_another_rank_and_the_end_are_said() -> None:
    """Each once."""

    def work(rank: int, step: int) -> Parts:
        slow = (rank == 0 and step < 400) or (rank == 2 and 400 <= step < 1400)
        return 0.5 * (1 + slow), 0.2, 0.2

    said = watch(Job(work, 3200, ranks=3), poll_s=1.37)
    assert [each.rank if each else None for each in said] == [None, 0, None, 2, None]


def each(change: Callable[[MemberSample], MemberSample]) -> Callable[[Sample], Sample]:
    """A sample with each of its members changed."""
    return lambda sample: replace(sample, members=tuple(map(change, sample.members)))


@pytest.mark.parametrize(
    "seen",
    [
        each(lambda one: replace(one, slot=replace(one.slot, phase="eval"))),
        each(lambda one: replace(one, member=replace(one.member, rank=0))),
        lambda sample: replace(sample, members=sample.members[:1]),
        each(lambda one: replace(one, state="T")),
        lambda sample: replace(sample, suspended_s=2.0 * sample.at),
    ],
    ids=["evaluation", "two trainings", "one rank", "stopped", "asleep"],
)
def test_where_ranks_cannot_be_compared_nothing_is_said(seen: Callable[[Sample], Sample]) -> None:
    """A slow one among them or not."""
    job = Job(lambda rank, _: (0.3 + 0.5 * rank, 0.1, 0.1), 300)
    assert watch(job, seen=seen) == [None]


SLOW = Job(lambda rank, _: (0.3 + 0.5 * (rank == 1), 0.1, 0.1), 400)


@pytest.mark.parametrize(
    ("cpu", "asked", "named"),
    [(0.15, 1.0, False), (0.15, 0.0, True), (0.5, 1.0, True)],
    ids=["all wait for a CPU", "it alone waits", "it computes most of the time"],
)
def test_who_waits_longest_on_a_full_machine_is_no_straggler(
    cpu: float, asked: float, named: bool
) -> None:
    """The others wait for a CPU, too, as often as they want one: chance may have chosen it."""

    def seen(sample: Sample) -> Sample:
        first, second = sample.members
        ready = asked and int(sample.at) % 3 == 0
        first = replace(first, state="R" if ready else "S", cpu_s=0.05 * asked * sample.at)
        second = replace(second, state="R", cpu_s=cpu * sample.at)
        return replace(sample, members=(first, second))

    assert len(watch(SLOW, seen=seen)) == 1 + named


def test_it_is_an_event_when_it_changes() -> None:
    """Said once; a supervisor that takes over goes on from what was said."""
    poll = SLOW.look(150.0)
    lags = watch(SLOW)[-1]
    assert lags is not None
    (said,) = _about(b.observation(poll, straggler=lags), b.running())
    assert said == e.Straggling(straggler=lags)
    state = b.running(said)
    assert state.straggler == lags
    assert _about(b.observation(poll, straggler=lags), state) == []
    (over,) = _about(b.observation(poll), state)
    assert b.running(said, over).straggler is None
    taken_over = Standing(open=lags)
    assert watch(SLOW, memory=taken_over) == [lags]
    equal = Job(lambda rank, _: (0.3, 0.1, 0.1), 400)
    assert watch(equal, memory=taken_over) == [lags, None]


def test_a_rank_that_ends_first_changes_nothing() -> None:
    """The others are not judged any more; what was said stays."""
    job = Job(lambda rank, _: (0.3 + 0.5 * (rank == 1), 0.1, 0.1), 400, ranks=3)

    def seen(sample: Sample) -> Sample:
        left = sample.members[: 3 if sample.at < 300 else 2]
        return replace(sample, members=left)

    assert [each.rank if each else None for each in watch(job, seen=seen)] == [None, 1]


def _about(observation: b.Observation, state: object) -> list[e.AnyEvent]:
    found = news(observation, state, Policy())  # type: ignore[arg-type]
    return [event for event in found if isinstance(event, e.Straggling)]
