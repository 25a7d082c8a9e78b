"""What the detector benchmark runs: healthy trainings that end in a hang, and single cases."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import simulated_training as world
from simulated_training import Hang, Job, Piece, Polls

from watchdog_train.core.detection.detect import SURVIVED_FACTOR, Verdict
from watchdog_train.core.model import EvidenceResult, Patience, PatienceRow, Phase
from watchdog_train.core.policy import Policy
from watchdog_train.core.replay import Replay, unseen
from watchdog_train.explain import patience
from watchdog_train.explain.patience import Silence
from watchdog_train.report.why_text import why_text

HANG_S = 2400.0
"""A hang is watched for so long; what has not been called by then is missed."""
LOOK_S = 2.0
"""From a suspicion to the answer of the look at the stacks."""
EARLY: tuple[Phase, ...] = ("startup", "download", "load", "first_step", "train")
DETECTORS = ("ours", "10 min", "5 x longest", "20 x median")


@dataclass(frozen=True, slots=True)
class Task:
    """One simulated training; everything else follows from its seed."""

    kind: str
    """training, early, or the name of a single case."""
    seed: int
    seconds: float = 0.0
    where: Phase | None = None


@dataclass(slots=True)
class Result:
    """What the detectors said about one training."""

    name: str
    healthy_s: float
    alarms: dict[str, list[str]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    """Of its hang; none: it did not hang."""
    delays: dict[str, float | None] = field(default_factory=dict)
    """Per detector; "suspected" and "proven" of ours, too. None: missed."""
    limit_s: float | None = None
    """Of ours, where it hangs quietly and sends heartbeats: the patience with its wait, or as long
    as its longest pause so far has earned, or until it is suspected."""


def plan(*, hours: float, hangs: int, early: int, seed: int, single: int = 3) -> list[Task]:
    """Everything to be run; long trainings first, so that several processes end together.

    Args:
        hours: of healthy training, before the hangs.
        hangs: trainings that end in one, after a share of the hours.
        early: starts that end in one before the third step.
        seed: of everything.
        single: how often each of the single cases is run.
    """
    random = Random(f"plan {seed}")
    shares = [random.uniform(0.3, 1.7) for _ in range(hangs)]
    scale = hours * 3600 / sum(shares) if shares else 0.0
    tasks = [
        Task("training", seed * 1_000_003 + number, share * scale)
        for number, share in enumerate(shares)
    ]
    tasks.sort(key=lambda task: -task.seconds)
    tasks += [
        Task("early", seed * 2_000_003 + number, where=EARLY[number % len(EARLY)])
        for number in range(early)
    ]
    return tasks + [Task(name, seed * 3_000_017 + n) for name in SINGLE for n in range(single)]


def run(task: Task) -> Result:
    """Simulate one training under all detectors."""
    random = Random(task.seed)
    job = world.draw_job(random)
    if task.kind in SINGLE:
        job, pieces = SINGLE[task.kind](job)
        return _watch(task, job, list(pieces), None, ())
    if task.kind == "early":
        where = task.where or "startup"
        pieces, hang = _early(job, where)
        place = "after the first or second step" if where == "train" else f"in {where}"
        return _watch(task, job, pieces, hang, ("before the third step", f"- {place}"))
    pieces = [*world.start_up(job), *world.train(job, task.seconds)]
    where = random.choice(["eval", "checkpoint"]) if random.random() < 0.12 else "train"
    if where == "train":
        pieces += world.steps(job, random.randint(5, 60), 1.0)
    pieces.append(Piece(random.random() * job.step_s, where, cpu=max(job.cpu, 0.05)))
    group = f"in {where}"
    if where == "train":
        limits = (
            (2.0, "up to 2 s"),
            (20.0, "2 to 20 s"),
            (60.0, "20 to 60 s"),
            (1e9, "60 to 240 s"),
        )
        length_s = job.step_s * job.growing
        group = next(f"steps of {name}" for limit, name in limits if length_s <= limit)
    if not job.hooks:
        group = "without heartbeats"
    return _watch(task, job, pieces, world.draw_hang(random, where, HANG_S), (group,))


def hang_in(row: PatienceRow, where: Phase, seed: int) -> Result:
    """An even training without a pause that hangs in one kind of wait."""
    random = Random(seed)
    job = replace(world.draw_job(random), step_s=0.5, spread=0.1, growing=1.0, hooks=True)
    pieces = [*world.start_up(job), *world.steps(job, 100, 0.0), Piece(0.3, where, cpu=0.5)]
    hang = Hang("quiet", Piece(HANG_S, where, cpu=0.002, row=row))
    return _watch(Task("hang", seed), job, pieces, hang, (row,))


def _early(job: Job, where: Phase) -> tuple[list[Piece], Hang]:
    """A start that hangs in one of its phases, or after the first or second step."""
    random = job.random
    row = list(world.start_up(job))
    hang = world.draw_hang(random, where, HANG_S)
    if where == "train":
        stepped = [number for number, piece in enumerate(row) if piece.steps]
        return row[: random.choice(stepped[:2]) + 1], hang
    inside = [number for number, piece in enumerate(row) if piece.phase == where]
    if not inside:  # nothing is downloaded: it hangs in the request that asks for it
        return row[: next(n for n, piece in enumerate(row) if piece.phase == "load")], hang
    last = random.choice(inside)
    part_s = row[last].seconds * random.random()
    return [*row[:last], replace(row[last], seconds=part_s, steps=0, batches=0)], hang


def _watch(
    task: Task, job: Job, pieces: list[Piece], hang: Hang | None, groups: tuple[str, ...]
) -> Result:
    name = f"{task.kind} {task.seed} (steps of {job.step_s:.2f} s)"
    healthy_s = sum(piece.seconds for piece in pieces if not piece.suspended)
    result = Result(name, healthy_s)
    polls = Polls(job, [*pieces, *([hang.piece] if hang else [])])
    policy = Policy()

    def look(found: Verdict) -> EvidenceResult:
        row, left_s = polls.wait
        silence = Silence(phase=found.phase, early=found.early)
        limit_s = patience.limit_s(row, silence, policy.patience)
        asleep_s = left_s if row == "sleep" else None
        return unseen(Patience(row=row, limit_s=limit_s, look_in_s=asleep_s))

    judged = Replay(policy, look)
    for sample in polls:
        judged.judge(sample)
        if sample.at > healthy_s and _first(judged, "stall", healthy_s) is not None:
            break
    healthy = [found for found in judged.findings if found.t < healthy_s]
    stalls = [found for found in healthy if found.kind == "stall"]
    result.alarms["ours"] = [f"{one.t:.0f} s: {why_text(one.why)}" for one in stalls]
    before = [at for at in polls.progressed_at if at <= healthy_s]
    for rival, rule in RIVALS.items():
        result.alarms[rival] = _alarms(rule, before, healthy_s)
    if hang is None:
        return result
    by_wait = (f"waits: {hang.piece.row}",) if job.hooks else ()
    quiet = hang.kind in ("quiet", "prints")
    result.groups = (*groups, *by_wait) if quiet else (f"{hang.kind}, anywhere",)
    stall = _first(judged, "stall", healthy_s)
    suspect = _first(judged, "suspect", healthy_s)
    result.delays["ours"] = None if stall is None else stall - healthy_s
    result.delays["suspected"] = None if suspect is None else suspect - healthy_s
    result.delays["proven"] = None if suspect is None else suspect + LOOK_S - healthy_s
    last = before[-1] if before else 0.0
    for rival, rule in RIVALS.items():
        result.delays[rival] = max(0.0, last + rule(_intervals(before)) - healthy_s)
    if hang.kind == "quiet" and job.hooks and suspect is not None:
        early = "before the third step" in groups
        silence = Silence(phase=hang.piece.phase, early=early)
        wait_s = patience.limit_s(hang.piece.row, silence, policy.patience) or HANG_S
        paused_s = SURVIVED_FACTOR * max(_intervals(before), default=0.0)
        result.limit_s = max(wait_s, paused_s, suspect - healthy_s)
    return result


def _first(judged: Replay, kind: str, since: float) -> float | None:
    return next((f.t for f in judged.findings if f.kind == kind and f.t >= since), None)


# -- the others -----------------------------------------------------------------------------------

Rule = Callable[[list[float]], float]


def _fixed(_intervals: list[float]) -> float:
    return 600.0


def _longest(intervals: list[float]) -> float:
    """Before any interval is known: 60 minutes, as its documentation starts with."""
    return 5 * max(intervals) if intervals else 3600.0


def _median(intervals: list[float]) -> float:
    """Before there are eight: 10 minutes."""
    return 20 * statistics.median(intervals) if len(intervals) >= 8 else 600.0


RIVALS: dict[str, Rule] = {"10 min": _fixed, "5 x longest": _longest, "20 x median": _median}
RECENT = 500
"""Intervals that the median is taken of, or this would take longer than the simulation."""


def _intervals(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def _alarms(rule: Rule, times: list[float], until: float) -> list[str]:
    """Silences of a healthy training that are over the limit of their time."""
    known: list[float] = []
    longest = limit_s = 0.0
    found = []
    for number, (earlier, later) in enumerate(pairwise([0.0, *times, until])):
        interval = later - earlier
        if rule is _longest:
            limit_s = 5 * longest if known else 3600.0
        elif number % 50 == 0 or len(known) < 20:
            limit_s = rule(known[-RECENT:])
        if interval > limit_s:
            found.append(f"{earlier:.0f} s: silent for {interval:.0f} s")
        if number:
            known.append(interval)
            longest = max(longest, interval)
    return found


# -- single cases: healthy, however long they take -----------------------------------------------


def _trained(job: Job, *more: Piece) -> tuple[Job, list[Piece]]:
    return job, [*world.start_up(job), *world.steps(job, 100, 0.0), *more]


def _two_ranks(job: Job) -> tuple[Job, list[Piece]]:
    job.ranks = 2
    return _trained(job, Piece(900, "eval", cpu=1.0, waiting=True))


def _judge(job: Job) -> tuple[Job, list[Piece]]:
    calls = []
    for _ in range(30):
        calls.append(Piece(job.random.uniform(0.1, 1), "eval", cpu=0.05, tcp=3000))
        calls.append(Piece(job.random.uniform(5, 60), "eval", cpu=0.003, row="network"))
    return _trained(job, *calls)


SINGLE: dict[str, Callable[[Job], tuple[Job, Iterable[Piece]]]] = {
    "40 min of compute_metrics": lambda job: _trained(job, Piece(2400, "eval", cpu=1.0)),
    "a metric that waits for a remote judge": _judge,
    "generate() in evaluation": lambda job: _trained(job, Piece(1800, "eval", cpu=0.6)),
    "two hours of tokenising": lambda job: (job, [Piece(5, "startup"), Piece(7200, "load")]),
    "max-autotune": lambda job: _trained(job, Piece(3600, "compile", cpu=1.5, births=0.2)),
    "rank 0 evaluates alone for ten soft budgets": _two_ranks,
    "starved of CPU for 20 minutes": lambda job: _trained(job, Piece(1200, cpu=0.01, in_line=0.6)),
    "a download at 10 kB/s": lambda job: (
        job,
        [Piece(5, "startup"), Piece(7200, "download", cpu=0.002, tcp=10_000)],
    ),
}


def summary(results: list[Result]) -> dict[str, Any]:
    """The numbers of the tables."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        for group in result.groups:
            groups.setdefault(group, []).append(result)
    ways = (*DETECTORS, "suspected", "proven")
    return {
        "hours": sum(result.healthy_s for result in results) / 3600,
        "hangs": sum(bool(result.groups) for result in results),
        "false_alarms": {
            name: sum(len(result.alarms[name]) for result in results) for name in DETECTORS
        },
        "delays": {
            group: {
                "count": len(found),
                "detectors": {name: _spread([one.delays[name] for one in found]) for name in ways},
            }
            for group, found in sorted(groups.items())
        },
    }


def _spread(delays: list[float | None]) -> dict[str, float | int | None]:
    known = sorted(delay for delay in delays if delay is not None)
    ordered = [*known, *[None] * (len(delays) - len(known))]
    return {
        "median_s": ordered[len(ordered) // 2],
        "p95_s": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "missed": len(delays) - len(known),
    }
