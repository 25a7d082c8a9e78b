"""Who could end whose wait: what can still move, where a chain of waits ends, what is a deadlock.

Knows no process and no kind of wait: nodes are names, and each says by whom its wait can end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from watchdog_train.core.model import Value

Node = int


class Waits(Value):
    """The wait of one node: it ends when all of `needs` and one of `any_of`, if any, have moved."""

    needs: tuple[Node, ...] = ()
    any_of: tuple[Node, ...] = ()
    complete: bool = True
    """False: an unnamed node may be needed, or may end it."""
    timed: bool = False
    """A timeout ends it, and then it usually begins again."""
    free: bool = False
    """It waits for none of the others: it computes, sleeps, or waits for something outside."""
    halted: bool = False
    """It has ended or was stopped: it moves no more by itself and waits for no node."""
    idle: bool = False
    """A server without a request, a pool thread without work: never the cause."""


class Verdict(Value):
    roots: tuple[Node, ...] = ()
    """They wait for none of the others, or no node can end their wait."""
    knots: tuple[tuple[Node, ...], ...] = ()
    """Closed sets of several: each waits for others of the set, and nothing else could end it."""
    victims: tuple[tuple[Node, tuple[Node, ...]], ...] = ()
    """Each node on the way to those, with the nodes that it waits for."""
    lost: tuple[Node, ...] = ()
    """Their wait depends on an unknown node: a chain ends here, but this is not the cause."""
    stuck: frozenset[Node] = frozenset()
    """They never move again without help from outside."""


def solve(graph: Mapping[Node, Waits], silent: Iterable[Node]) -> Verdict:
    """Follow each silent node to the end of its chain; the nodes on the way are victims."""
    stuck = frozenset(set(graph) - movable(graph))
    knot_of = _knots(graph, stuck)
    roots: dict[Node, None] = {}
    lost: dict[Node, None] = {}
    victims: dict[Node, tuple[Node, ...]] = {}
    found: dict[tuple[Node, ...], None] = {}
    seen: set[Node] = set()
    pending = [node for node in silent if node in graph]
    while pending:
        node = pending.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if node in knot_of:
            found[knot_of[node]] = None
            continue
        waits = graph[node]
        followed = None if waits.free or waits.halted else _followed(graph, node)
        if followed is None:
            roots[node] = None
            continue
        pending += followed
        if followed:
            victims[node] = tuple(followed)
        if not followed or not waits.complete:
            lost[node] = None
    if not (roots or found or lost):  # a circle of waits with timeouts
        lost = dict.fromkeys(node for node in graph if node in seen)
    return Verdict(
        roots=tuple(node for node in roots if not graph[node].idle),
        knots=tuple(found),
        victims=tuple(victims.items()),
        lost=tuple(node for node in lost if not graph[node].idle),
        stuck=stuck,
    )


def _followed(graph: Mapping[Node, Waits], node: Node) -> Sequence[Node] | None:
    """The next nodes of the chain; empty if unknown; None if no node can end the wait.

    All that are needed, or the only one that could end it. Of several that could end it, none is
    more to blame. Idle nodes are never followed.
    """
    waits = graph[node]
    needed = [other for other in waits.needs if other in graph and not graph[other].idle]
    if needed and needed != [node]:
        return [other for other in needed if other != node]
    if not waits.complete or any(other not in graph for other in (*waits.needs, *waits.any_of)):
        return ()
    able = [other for other in waits.any_of if other != node and not graph[other].idle]
    if not able:
        return None
    return able if len(able) == 1 else ()


def movable(graph: Mapping[Node, Waits]) -> set[Node]:
    """Nodes that may still move, alone or because those they wait for may."""
    moving = {node for node, waits in graph.items() if waits.free or waits.timed}
    waiters: dict[Node, list[Node]] = {}
    for node, waits in graph.items():
        for other in (*waits.needs, *waits.any_of):
            waiters.setdefault(other, []).append(node)
    pending = list(graph)
    while pending:
        node = pending.pop()
        if node not in moving and _may_move(graph, graph[node], moving):
            moving.add(node)
            pending += waiters.get(node, [])
    return moving


def _may_move(graph: Mapping[Node, Waits], waits: Waits, moving: set[Node]) -> bool:
    def can(node: Node) -> bool:
        return node in moving or node not in graph  # of a stranger nothing is known

    if waits.halted:
        return False
    if not all(can(node) for node in waits.needs):
        return False
    if any(can(node) for node in waits.any_of):
        return True
    # Without alternatives its needs decide; without either, no node can end the wait.
    return not waits.complete or (bool(waits.needs) and not waits.any_of)


def _knots(graph: Mapping[Node, Waits], stuck: frozenset[Node]) -> dict[Node, tuple[Node, ...]]:
    """Each member of a closed set of several that can never move, with its set.

    An incomplete wait may have a releaser we did not see: no deadlock is concluded from it, nor for
    its waiters. Idle nodes make no cycle: a set that is closed only by one of them would be a
    different set if that node had not been read.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    nodes = [n for n in graph if n in stuck and not graph[n].halted and not graph[n].idle]
    for members in _cycles(graph, nodes):
        inside = set(members)
        closed = all(
            graph[member].complete
            and all(
                other in inside or (other in graph and graph[other].idle)
                for other in (*graph[member].needs, *graph[member].any_of)
            )
            for member in members
        )
        if closed and len(members) > 1:
            found |= dict.fromkeys(members, tuple(members))
    return found


def _cycles(graph: Mapping[Node, Waits], nodes: Sequence[Node]) -> list[list[Node]]:
    """Sets of nodes that all reach each other (Tarjan's algorithm, without recursion)."""
    allowed = set(nodes)
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[list[Node]] = []
    for start in nodes:
        if start in index:
            continue
        work = [(start, iter((*graph[start].needs, *graph[start].any_of)))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, others = work[-1]
            for other in others:
                if other in allowed and other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter((*graph[other].needs, *graph[other].any_of))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    on_stack -= set(stack[at:])
                    del stack[at:]
    return found
