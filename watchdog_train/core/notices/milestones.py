"""Milestones of the ranks: which are logged, and how the ranks compare. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Milestone, RankPlaces, Value, said

MOST_HOOKS = 32
MOST_RANKS = 32
MOST_MILESTONES = 32
"""Of one rank in the log: the newest."""


class MilestoneStanding(Value):
    """One open milestone: the ranks inside it, past it, and before it."""

    name: str
    within: str | None
    inside: tuple[int, ...]
    inside_s: float
    """The longest."""
    passed: tuple[int, ...]
    passed_s: tuple[float, float] | None
    """The shortest and the longest time that ranks past it spent inside."""
    not_reached: tuple[int, ...]


def open_milestones(places: RankPlaces) -> tuple[Milestone, ...]:
    """The milestones that the rank is inside of, the innermost last."""
    return tuple(one for one in places.milestones if one.end is None)


def milestone_standings(places: Sequence[RankPlaces], now: float) -> tuple[MilestoneStanding, ...]:
    """The innermost open milestones, longest first, each with the state of the other ranks."""
    innermost: dict[str, list[tuple[RankPlaces, tuple[Milestone, ...]]]] = {}
    for each in places:
        opened = open_milestones(each)
        if opened:
            innermost.setdefault(opened[-1].name, []).append((each, opened))
    found = [
        _standing(
            name, inside, [each for each in places if all(each is not i for i, _ in inside)], now
        )
        for name, inside in innermost.items()
    ]
    return tuple(sorted(found, key=lambda standing: -standing.inside_s))


def _standing(
    name: str,
    inside: Sequence[tuple[RankPlaces, tuple[Milestone, ...]]],
    others: Iterable[RankPlaces],
    now: float,
) -> MilestoneStanding:
    passed: dict[int, float] = {}
    not_reached = []
    for other in others:
        last = next((one for one in reversed(other.milestones) if one.name == name), None)
        if last is None:
            not_reached.append(other.rank)
        elif last.end is not None:
            passed[other.rank] = last.end - last.begin
    around = {opened[-2].name for _, opened in inside if len(opened) > 1}
    return MilestoneStanding(
        name=name,
        within=around.pop() if len(around) == 1 else None,
        inside=tuple(sorted(each.rank for each, _ in inside)),
        inside_s=max(0.0, *(now - opened[-1].begin for _, opened in inside)),
        passed=tuple(sorted(passed)),
        passed_s=(min(passed.values()), max(passed.values())) if passed else None,
        not_reached=tuple(sorted(not_reached)),
    )


def bounded(places: Sequence[RankPlaces]) -> tuple[RankPlaces, ...]:
    """At most as many ranks as a line of the log takes, ranks inside a milestone first."""
    first = sorted(places, key=lambda each: (not open_milestones(each), each.rank))
    return tuple(
        msgspec.structs.replace(each, milestones=each.milestones[-MOST_MILESTONES:])
        for each in sorted(first[:MOST_RANKS], key=lambda each: (each.rank, each.pid))
    )


def hook_events(observation: Observation, state: State) -> tuple[e.AnyEvent, ...]:
    known = {hook.hook for hook in state.hooks}
    new = {report.hook: report for report in observation.hooks if report.hook not in known}
    return tuple(
        e.HookNotArmed(hook=report.hook, status=report.status, pid=report.pid, why=said(report.why))
        for report in list(new.values())[: max(0, MOST_HOOKS - len(known))]
    )


def milestones_event(observation: Observation, state: State) -> tuple[e.AnyEvent, ...]:
    """The milestones so far, if there is something new since they were last recorded."""
    places = bounded(observation.places)
    options = observation.resume_options
    if places == state.places and options in ((), state.resume_options):
        return ()
    return (e.Milestones(ranks=places, resume_options=options),) if places else ()
