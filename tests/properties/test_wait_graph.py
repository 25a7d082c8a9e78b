"""Chains of waits on random graphs: no victim is ever the root, and less evidence never lies."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_train.explain.graph import Verdict, Waits, solve

NODES = 8
_NODE = st.integers(0, NODES - 1)
_SOME = st.lists(_NODE, max_size=3, unique=True).map(tuple)
_WAITS = st.one_of(
    st.builds(Waits, needs=_SOME, any_of=_SOME, complete=st.booleans(), idle=st.booleans()),
    st.builds(Waits, needs=_SOME, any_of=_SOME, timed=st.booleans()),
    st.just(Waits(free=True)),
    st.just(Waits(halted=True)),
    st.just(Waits(complete=False)),
)
_GRAPH = st.dictionaries(_NODE, _WAITS, max_size=NODES)


def _ends_by_itself(graph, node):
    """Whether no other node, as far as is known, could be waited for instead."""
    waits = graph[node]
    others = {*waits.needs, *waits.any_of} - {node}
    return waits.free or waits.halted or all(n in graph and graph[n].idle for n in others)


@given(_GRAPH)
@settings(max_examples=600)
def test_no_victim_is_a_root(graph):
    """Who waits for somebody is no root; nor is a server without an order, or an unknown wait."""
    verdict = solve(graph, range(NODES))
    for root in verdict.roots:
        waits = graph[root]
        assert _ends_by_itself(graph, root)
        assert not waits.idle
        assert waits.free or waits.halted or waits.complete


@given(_GRAPH)
@settings(max_examples=600)
def test_nobody_outside_a_knot_could_end_it(graph):
    """Even if everybody else moved, no member of a knot could."""
    for knot in solve(graph, range(NODES)).knots:
        assert len(knot) > 1
        still = {*knot, *(node for node in graph if graph[node].idle)}
        for node in knot:
            waits = graph[node]
            assert waits.complete
            needed = any(other in still for other in waits.needs)
            assert needed or (waits.any_of and all(other in still for other in waits.any_of))
            assert set(waits.needs) | set(waits.any_of) <= still


@st.composite
def _with_less(draw):
    """A graph, and the same with one fact removed: what was removed is known to be unknown."""
    graph = draw(_GRAPH.filter(bool))
    node = draw(st.sampled_from(sorted(graph)))
    waits = graph[node]
    others = [*waits.needs, *waits.any_of]
    kind = draw(st.sampled_from(["process", "wait", "other", "complete"]))
    if kind == "process":
        return graph, {key: value for key, value in graph.items() if key != node}
    if kind == "wait" or not others:
        return graph, graph | {node: Waits(complete=False, idle=waits.idle)}
    gone = draw(st.sampled_from(others)) if kind == "other" else None
    less = msgspec.structs.replace(
        waits,
        needs=tuple(other for other in waits.needs if other != gone),
        any_of=tuple(other for other in waits.any_of if other != gone),
        complete=False,
    )
    return graph, graph | {node: less}


@given(_with_less())
@settings(max_examples=1500)
def test_with_a_fact_removed_the_answer_is_weaker_and_never_different(graphs):
    """No new root, no new knot, nobody newly stuck."""
    graph, less = graphs
    before, after = solve(graph, range(NODES)), solve(less, range(NODES))
    assert set(after.roots) <= set(before.roots)
    assert set(map(frozenset, after.knots)) <= set(map(frozenset, before.knots))
    assert after.stuck <= before.stuck


@given(_GRAPH)
def test_every_silent_one_gets_an_answer(graph):
    """Each chain ends at a root, in a knot, at an idle server, or is said to be lost."""
    if not any(waits.idle for waits in graph.values()):
        for node in graph:
            verdict = solve(graph, [node])
            assert verdict.roots or verdict.knots or verdict.lost


_IDLE = Waits(any_of=(0,), idle=True)


def _w(**fields):
    return Waits(**{name: tuple(value) for name, value in fields.items() if name != "complete"})


@pytest.mark.parametrize(
    ("graph", "silent", "expected"),
    [
        # One rank has not come: it computes, and the others are victims.
        ({0: _w(needs=[1]), 1: Waits(free=True)}, [0], Verdict(roots=(1,))),
        # A real deadlock of two, and a third that waits for one of them.
        (
            {0: _w(needs=[1]), 1: _w(needs=[0]), 2: _w(needs=[0])},
            [2],
            Verdict(knots=((0, 1),), stuck=frozenset({0, 1, 2})),
        ),
        # A cycle is no deadlock where somebody else could end one of the waits.
        ({0: _w(any_of=[1, 2]), 1: _w(needs=[0]), 2: Waits(free=True)}, [0], Verdict(lost=(0,))),
        # The same cycle, but not everybody could be read.
        (
            {0: Waits(any_of=(1,), complete=False), 1: _w(needs=[0])},
            [0],
            Verdict(lost=(0,)),
        ),
        # A lock that was held at a fork: nobody can end it.
        ({0: Waits(), 1: _w(needs=[0])}, [1], Verdict(roots=(0,), stuck=frozenset({0, 1}))),
        # All workers wait for orders: the one that waits for them is where the chain ends.
        (
            {0: _w(any_of=[1, 2]), 1: _IDLE, 2: _IDLE},
            [0],
            Verdict(roots=(0,), stuck=frozenset({0, 1, 2})),
        ),
        # Stopped by a signal: the chain ends there, and it is no deadlock.
        (
            {0: _w(needs=[1]), 1: Waits(halted=True)},
            [0],
            Verdict(roots=(1,), stuck=frozenset({0, 1})),
        ),
        # An idle server that nobody silent waits for is never reached.
        (
            {0: Waits(free=True), 1: Waits(idle=True)},
            [0, 1],
            Verdict(roots=(0,), stuck=frozenset({1})),
        ),
        # The idle make no cycle: it is the same deadlock, whatever else waits by way of one.
        (
            {0: _w(any_of=[0, 1, 2]), 1: Waits(needs=(1,), any_of=(5,), complete=False, idle=True),
             2: _w(any_of=[0]), 5: _w(any_of=[0])},
            [0],
            Verdict(knots=((0, 2),), stuck=frozenset({0, 1, 2, 5})),
        ),
        # A wait with a time limit is followed, and proves nothing.
        ({0: Waits(needs=(1,), timed=True), 1: _w(needs=[0])}, [0], Verdict(lost=(0, 1))),
    ],
)  # fmt: skip
def test_chains_end_where_they_should(graph, silent, expected):
    assert msgspec.structs.replace(solve(graph, silent), victims=()) == expected


def test_a_thousand_ranks_in_two_operations_take_no_time():
    graph = {rank: Waits(needs=tuple(range(rank % 2 ^ 1, 1000, 2))) for rank in range(1000)}
    (knot,) = solve(graph, range(1000)).knots
    assert len(knot) == 1000
