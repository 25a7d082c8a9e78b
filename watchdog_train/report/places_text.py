"""Milestones in words: ranks inside and past them, and the startup timeline of each rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.model import Milestone, RankPlaces
from watchdog_train.core.notices.milestones import (
    MilestoneStanding,
    milestone_standings,
    open_milestones,
)
from watchdog_train.report.words import clean, count, duration, pad, precise_clock, ranks_text

MOST_SENTENCES = 4
NAME_COLUMNS = 34
SHORTEST_S = 0.05
"""Shorter ones are shown without a time."""


def place_sentences(places: Sequence[RankPlaces], now: float) -> tuple[str, ...]:
    """`rank 1 is inside wandb.init for 312 s; rank 0 passed it after 2 s`, the longest first.

    Args:
        places: the milestones of each rank.
        now: the monotonic clock at the moment they were read.
    """
    return tuple(
        _sentence(standing) for standing in milestone_standings(places, now)[:MOST_SENTENCES]
    )


def process_sentences(evidence: Evidence) -> tuple[str, ...]:
    """The same of the processes of a bundle, as they were when it was collected."""
    told = [process for process in evidence.processes if process.milestones]
    places = [
        RankPlaces(
            rank=process.rank or 0, local_rank=None, pid=process.pid, milestones=process.milestones
        )
        for process in told
        if process.role == "rank" or len(told) == 1
    ]
    return place_sentences(places, max([p.milestones_at or 0.0 for p in told], default=0.0))


def _sentence(standing: MilestoneStanding) -> str:
    verb = "is" if len(standing.inside) == 1 else "are"
    within = f" (in {clean(standing.within, 80)})" if standing.within else ""
    who, where = ranks_text(standing.inside), f"{clean(standing.name, 80)}{within}"
    parts = [f"{who} {verb} inside {where} for {duration(standing.inside_s)}"]
    if standing.passed and standing.passed_s is not None:
        least, most = (duration(seconds) for seconds in standing.passed_s)
        after = least if least == most else f"{least} to {most}"
        parts.append(f"{ranks_text(standing.passed)} passed it after {after}")
    if standing.not_reached:
        verb = "has" if len(standing.not_reached) == 1 else "have"
        parts.append(f"{ranks_text(standing.not_reached)} {verb} not reached it")
    return "; ".join(parts)


def place_lines(places: Sequence[RankPlaces], now: float, origin: float) -> tuple[str, ...]:
    """The startup timeline of every rank, one milestone a line.

    Args:
        places: the milestones of each rank.
        now: the monotonic clock at the moment they were read.
        origin: the same clock when the attempt was launched.
    """
    lines: list[str] = []
    for each in places:
        local = "" if each.local_rank is None else f", local rank {each.local_rank}"
        lines += ["", f"rank {each.rank}{local}, pid {each.pid}"]
        for one in each.milestones:
            depth = sum(
                other.begin < one.begin and (other.end is None or other.end > one.begin)
                for other in each.milestones
            )
            at = duration(max(0.0, one.begin - origin))
            name = pad("  " * min(depth, 4) + clean(one.name, 80), NAME_COLUMNS)
            lines.append(f"{at:>12}  {name}  {_extent(one, now)}".rstrip())
    return tuple(lines[1:])


def _extent(one: Milestone, now: float) -> str:
    if one.end is None:
        text = f"inside for {duration(now - one.begin)}"
    elif one.end - one.begin < SHORTEST_S:
        text = "mark" if one.mark else ""
    else:
        text = f"took {duration(one.end - one.begin)}"
    if one.failed:
        text = f"{text} and failed" if text else "failed"
    if one.times > 1:
        text = f"{text}, {count(one.times, 'time')}".removeprefix(", ")
    return text


def milestone_lines(
    places: Sequence[RankPlaces],
    now: float,
    origin: float,
    *,
    epoch: float,
    ranks: int,
    only: int | None = None,
) -> tuple[str, ...]:
    """`[10:23:45.123][+2.456s][R0/2][LR0][PID:12345] 5 load model, took 1.2 s`, ranks by time.

    A milestone has the same number on all ranks, in the order of first arrivals.

    Args:
        places: the milestones of each rank.
        now: the monotonic clock at the moment they were read.
        origin: the same clock when the attempt was launched.
        epoch: Unix seconds at zero of that clock.
        ranks: how many there are.
        only: lines of this rank; None: of all.
    """
    arrivals = sorted(
        ((one, each) for each in places for one in each.milestones),
        key=lambda pair: (pair[0].begin, pair[1].rank, pair[1].pid),
    )
    numbers = {name: n for n, name in enumerate(dict.fromkeys(one.name for one, _ in arrivals), 1)}
    lines = []
    for one, each in arrivals:
        if only not in (None, each.rank):
            continue
        at = precise_clock(epoch + one.begin)
        local = each.local_rank if each.local_rank is not None or ranks > 1 else 0
        extent = "" if one.mark and not one.failed else _extent(one, now)
        lines.append(
            f"[{at}][+{max(0.0, one.begin - origin):.3f}s][R{each.rank}/{ranks}]"
            f"[LR{'-' if local is None else local}][PID:{each.pid}] "
            f"{numbers[one.name]} {clean(one.name, 80)}{extent and f', {extent}'}"
        )
    return tuple(lines)


def places_object(
    places: Sequence[RankPlaces], now: float, origin: float | None
) -> list[dict[str, Any]]:
    """As `status --json` has it; seconds, `at_s` since the launch of the attempt."""
    return [
        {
            "rank": each.rank,
            "local_rank": each.local_rank,
            "pid": each.pid,
            "inside": [one.name for one in open_milestones(each)],
            "milestones": [_object(one, now, origin) for one in each.milestones],
        }
        for each in places
    ]


def _object(one: Milestone, now: float, origin: float | None) -> dict[str, Any]:
    done = one.end is not None
    return {
        "name": one.name,
        "at_s": None if origin is None else round(max(0.0, one.begin - origin), 3),
        "took_s": round(one.end - one.begin, 3) if one.end is not None else None,
        "inside_s": None if done else round(max(0.0, now - one.begin), 3),
        "times": one.times,
        "failed": one.failed,
        "mark": one.mark,
    }
