"""Ranks of several supervisors agree on a step: all act at one step, or none does.

Simulated ranks take their part (client.agreement.Talk) at a store, one key after another; threads,
connections and time limits of calls are not in this.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchdog_train.client import agreement

MOST_TURNS = 4000
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Store:
    """What torch's store does for two of its calls."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}

    def add(self, key: str, number: int) -> int:
        value = int(self.keys.get(key, b"0")) + number
        self.keys[key] = str(value).encode()
        return value

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        found = self.keys.get(key)
        if found is None:
            if expected == "":
                self.keys[key] = desired.encode()
                return desired.encode()
            return expected.encode()
        if found == expected.encode():
            self.keys[key] = desired.encode()
        return self.keys[key]


class GoneError(Exception):
    """The connection of one rank is gone."""


@dataclass
class Rank:
    """One rank: it computes a step, meets the others in a collective, and looks."""

    number: int
    store: Any
    world: int
    asked_at: int
    """The turn from which on it has the request; -1: never."""
    offset: int = 0
    """What it counts as steps is more by this."""
    steps: int = 0
    """Collectives that are behind it."""
    talk: agreement.Talk | None = None
    waits: bool = False
    acted: int | None = None
    """Collectives behind it when it acted."""
    refused: bool = False

    @property
    def entered(self) -> int:
        """Collectives that it has begun: after a look it goes into the next one at once."""
        stands = self.waits or self.acted is not None
        return self.steps if stands else self.steps + 1

    def look(self, turn: int, now: float) -> None:
        if self.acted is not None or self.refused or not 0 <= self.asked_at <= turn:
            return
        if self.talk is None:
            self.talk = agreement.Talk(self.store, "save/1", self.world, now)
        try:
            answer = self.talk.look(self.steps + self.offset, now)
        except GoneError:
            answer = agreement.REFUSE
        self.waits = answer == agreement.WAIT
        if answer == agreement.ACT:
            self.acted = self.steps
        self.refused = answer == agreement.REFUSE


def play(
    ranks: list[Rank], order: Any, *, lead: int = 0, turn_s: float = 0.01, turns: int = MOST_TURNS
) -> None:
    """Let the ranks go on, one a turn, as the order says.

    Args:
        ranks: of one world.
        order: gives the number of the rank whose turn it is, or None for any.
        lead: how many steps a rank may be ahead of the slowest; 0: a collective in each step.
        turn_s: seconds of the simulated clock that a turn takes.
        turns: at most.
    """
    for turn in range(turns):
        if all(rank.acted is not None or rank.refused for rank in ranks):
            return
        rank = ranks[order() % len(ranks)]
        if rank.waits:
            rank.look(turn, turn * turn_s)
            continue
        if rank.acted is not None:
            continue  # in the save, whose collective needs all
        if rank.steps < min(one.entered for one in ranks) + lead:
            rank.steps += 1
            rank.look(turn, turn * turn_s)


def outcome(ranks: list[Rank]) -> set[int | None]:
    return {rank.acted for rank in ranks}


@FEW
@given(data=st.data())
def test_ranks_in_lockstep_act_at_one_step(data: st.DataObject) -> None:
    """Whenever the request reaches them, and whoever is quicker: all act, after as many steps."""
    world = data.draw(st.integers(2, 6), label="world")
    store = Store()
    delays = data.draw(st.lists(st.integers(0, 60), min_size=world, max_size=world), label="asked")
    ranks = [Rank(n, store, world, asked_at=delay) for n, delay in enumerate(delays)]
    random = Random(data.draw(st.integers(0, 2**32), label="order"))
    play(ranks, lambda: random.randrange(world))
    assert None not in outcome(ranks), "it did not come to an end"
    assert len(outcome(ranks)) == 1, "not all at one step"


@FEW
@given(data=st.data())
def test_all_or_none(data: st.DataObject) -> None:
    """A guard of the one below."""
    all_or_none(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_all_or_none_whatever_the_ranks_do(data: st.DataObject) -> None:
    """Steps without a collective, counts that differ, ranks that never hear of it, long waits."""
    all_or_none(data)


def all_or_none(data: st.DataObject) -> None:
    world = data.draw(st.integers(2, 5), label="world")
    store = Store()
    delay = st.one_of(st.integers(0, 200), st.just(-1))
    drawn = [
        (data.draw(delay, label="asked"), data.draw(st.integers(0, 3), label="offset"))
        for _ in range(world)
    ]
    ranks = [Rank(n, store, world, asked, offset) for n, (asked, offset) in enumerate(drawn)]
    random = Random(data.draw(st.integers(0, 2**32), label="order"))
    lead = data.draw(st.integers(0, 40), label="lead")
    turn_s = data.draw(st.sampled_from([0.001, 0.05, 2.0]), label="a turn takes")
    play(ranks, lambda: random.randrange(world), lead=lead, turn_s=turn_s, turns=1500)
    acted = [rank for rank in ranks if rank.acted is not None]
    assert not any(rank.refused for rank in ranks) or not acted, "some act and some refuse"
    if len(acted) < world:
        # Only those that still wait to be told "go" may be missing.
        assert all(rank.waits for rank in ranks if rank.acted is None) or not acted
    if lead == 0:
        assert len(outcome(acted)) <= 1, "between two collectives that are not the same"


def test_a_rank_that_hears_of_it_too_late_stops_all() -> None:
    """Two tries more, further ahead: one that is never in step ends it for everybody."""
    store = Store()
    talks = [agreement.Talk(store, "stop/0", 2, 0.0) for _ in range(2)]
    refused: list[int] = []
    for step in range(0, 2000, 100):  # so long steps that each chosen one is behind it
        for number in {0, 1} - set(refused):
            answer = talks[number].look(step + 50 * number, 1.0)
            assert answer != agreement.ACT
            if answer == agreement.REFUSE:
                refused.append(number)
    assert sorted(refused) == [0, 1]
    assert [key.split("/")[2] for key in store.keys if key.endswith("all")] == ["0", "1", "2"]


def test_nobody_waits_longer_than_it_may() -> None:
    """One rank is at the step and the other does not come: it goes on, and the other learns it."""
    store = Store()
    first, second = (agreement.Talk(store, "save/1", 2, 0.0) for _ in range(2))
    assert first.look(1, 0.0) == agreement.GO_ON
    assert second.look(1, 0.0) == agreement.GO_ON
    assert second.chosen == 3
    assert first.look(2, 0.1) == agreement.GO_ON
    assert first.look(3, 0.2) == agreement.WAIT
    assert first.look(3, 0.2 + agreement.WAIT_S) == agreement.GO_ON
    assert second.look(3, 9.0) == agreement.GO_ON
    assert store.keys["save/1/0/all"] == b"no"


@pytest.mark.parametrize("lost", ["asked", "step", "here", "all"])
def test_a_connection_that_breaks_ends_it(lost: str) -> None:
    """The others give it up in their time; only whoever is told nothing after it has arrived is
    not sure, and does not act."""
    whole = Store()

    class Broken(Store):
        def add(self, key: str, number: int) -> int:
            if key.endswith(lost):
                raise GoneError
            return whole.add(key, number)

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            if key.endswith(lost):
                raise GoneError
            return whole.compare_set(key, expected, desired)

    ranks = [Rank(0, Broken(), 3, asked_at=0), *(Rank(n, whole, 3, asked_at=0) for n in (1, 2))]
    turn = iter(range(10**9))
    play(ranks, lambda: next(turn), turn_s=1.0, turns=3000)
    assert ranks[0].acted is None
    assert ranks[0].refused
    if lost != "all":
        assert outcome(ranks) == {None}
        assert all(rank.refused for rank in ranks)
