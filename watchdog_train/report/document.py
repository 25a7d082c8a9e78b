"""One run as one typed value; every screen, page, message and JSON is a rendering of it. Pure.

Its events and the state that they fold into come from the log, `Live` from a sample of the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.job.machines import hostname_of, machine_of
from watchdog_train.core.model import (
    CheckpointRef,
    Member,
    RankPlaces,
    RankStatus,
    RunProgress,
    SaveRecord,
    Value,
    Why,
    workers_by_rank,
)


class Live(Value):
    """Measurements of a run by a reading command."""

    at: float = 0.0
    """Unix seconds."""
    mono: float | None = None
    """Monotonic clock of the events; None on another machine or after a boot."""
    supervisor_alive: bool | None = None
    blind_s: float | None = None
    """How long the living supervisor's loop has made no turn; None: it turns, or unknown."""
    here: bool = True
    """False: the run belongs to another machine, so its processes are unknown."""
    is_copy: bool = False
    """The files are a copy of a run directory, and prove nothing about the run now."""
    ranks: tuple[RankStatus, ...] | None = None
    """From the heartbeat slots; None: no slot could be read, so those of the log are used."""
    progress: RunProgress | None = None
    places: tuple[RankPlaces, ...] | None = None
    """Milestones that the ranks have recorded; None: none could be read."""
    can_save: bool | None = None
    can_stop: bool | None = None
    states: dict[int, str | None] = msgspec.field(default_factory=dict)
    """Of the recorded members that live, by pid."""
    save: SaveRecord | None = None
    """The newest save that a hook saw finished and that still exists."""
    log_tail: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class MachineNow(Value):
    """One machine of a job, as its leader knows it."""

    name: str
    hostname: str
    ranks: tuple[int, ...]
    state: Literal["leads", "heard", "silent", "lost", "not-come"]
    since: float | None = None
    """Unix seconds of its last message."""

    @property
    def unknown(self) -> bool:
        return self.state not in ("leads", "heard")


class Document(Value, dict=True):
    state: State
    live: Live = Live()
    events: tuple[e.AnyEvent, ...] = ()
    """Its event log; empty if only the present state is shown."""
    script_lines: Mapping[str, str] = {}
    """Remedy id -> the line for the training script that makes the setting permanent."""
    stacks: Mapping[str, tuple[str, ...]] = {}
    """Stall id -> the grouped stacks of its bundle, in lines."""

    @property
    def measured(self) -> bool:
        return not self.state.finished and self.live.ranks is not None

    @property
    def progress(self) -> RunProgress:
        """The newest progress: measured, else the newest of the log."""
        state, found = self.state, self.live.progress
        if found is not None and found.step is not None:
            return found
        if state.progress.step is None and state.attempt is not None:
            return msgspec.structs.replace(state.progress, step=state.attempt.last_step)
        return state.progress

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """The newest state of each rank: measured, else the newest of the log."""
        measured = self.live.ranks or ()
        if measured and self.state.crew is None:
            return measured
        known = {rank.rank for rank in measured}
        others = (rank for rank in _recorded(self.state) if rank.rank not in known)
        return tuple(sorted((*measured, *others), key=lambda rank: rank.rank))

    @property
    def places(self) -> tuple[tuple[RankPlaces, ...], float]:
        """The newest milestones, measured or recorded, and the monotonic time of that."""
        live = self.live
        if live.places is not None and live.mono is not None:
            return live.places, live.mono
        return self.state.places, self.state.places_mono

    @property
    def checkpoint(self) -> SaveRecord | CheckpointRef | None:
        """The newest known save, else the checkpoint of the plan."""
        attempt = self.state.attempt
        return self.live.save or (attempt.plan.checkpoint if attempt is not None else None)

    @property
    def can_save(self) -> bool:
        found = self.live.can_save
        return self.state.can_be_asked_to_save if found is None else found

    @property
    def training_alive(self) -> bool:
        """Whether a recorded process of training, the keeper aside, lives."""
        left = {daemon.process for daemon in self.state.daemons if daemon.is_left}
        states = self.live.states
        return bool(self.live.ranks) or any(
            member.role != "keeper" and states.get(member.pid, "Z") != "Z"
            for member in self.state.members
            if member.identity not in left
        )

    @cached_property
    def told(self) -> tuple[Attempt, ...]:
        return tuple(_fold(self.events))

    @property
    def attempts(self) -> list[tuple[AttemptRecord, Attempt]]:
        return list(zip(self.state.attempts, self.told, strict=False))

    @cached_property
    def time(self) -> TimeSpent:
        times = [event.t for event in self.events] or [0.0]
        return time_spent(self.told, times[0], max(times))


def _recorded(state: State) -> Iterator[RankStatus]:
    processes: dict[int, list[Member]] = {}
    workers = workers_by_rank(state.members)
    # A training without rank numbers counts as rank 0.
    role = "rank" if any(member.role == "rank" for member in state.members) else "other"
    for member in state.members:
        if member.role == role:
            processes.setdefault(member.rank or 0, []).append(member)
    for group in state.ranks:
        for rank, step in group.each():
            found = processes.get(rank, [])
            one = found[0] if len(found) == 1 else None
            if found:
                yield RankStatus(
                    rank=rank,
                    local_rank=one.local_rank if one is not None else None,
                    pid=one.pid if one is not None else None,
                    host=(one.host if one is not None else "") or None,
                    step=step,
                    phase=group.phase,
                    beat_age_s=None,
                    state=None,
                    workers=tuple(workers.get(rank, ())),
                )


def machines_now(state: State) -> list[MachineNow]:
    crew = state.crew
    if crew is None or crew.task.task:
        return []
    ranks, silent = dict(crew.ranks), dict(crew.silent)
    found = []
    for number in range(crew.task.tasks):
        name = crew.task.name_of(number)
        host = name if number else ""
        tree, since = state.tree(host), silent.get(host)
        now: Literal["leads", "heard", "silent", "lost", "not-come"] = "not-come"
        if not number:
            now = "leads"
        elif tree is not None and tree.lost:
            now = "lost"
        elif since is not None:
            now = "silent"
        elif machine_of(host, state) is not None:
            now = "heard"
        hostname, here = hostname_of(host, state), ranks.get(host, ())
        found.append(MachineNow(name=name, hostname=hostname, ranks=here, state=now, since=since))
    return found


MOST_SAMPLES = 4000


class Attempt(msgspec.Struct):
    """An attempt from its events. Times are Unix seconds."""

    launched_at: float
    ended_at: float | None = None
    rejected: tuple[e.CheckpointRejected, ...] = ()
    """Before it, when its checkpoint was chosen."""
    settings: dict[str, e.RemedyTaken] = {}
    """By remedy: the newest answer of the training process."""
    resume_why: Why | None = None
    signalled: dict[tuple[int, int], tuple[str, int]] = {}
    """By pid and start: role, and the last signal that was really sent."""
    first: tuple[float, int] | None = None
    """When its first step was seen, and which."""
    samples: list[tuple[float, int]] = []
    silences: list[list[float]] = []
    """Begin and end of each stall; infinite for one that was only reported and is not over."""
    stalled_at: float | None = None
    """When the stall was declared for which it was killed."""
    done_before: int | None = None
    """Steps that were done when it began; None: not known exactly."""

    @property
    def killed(self) -> Counter[tuple[str, int]]:
        return Counter(self.signalled.values())

    @property
    def start_step(self) -> int | None:
        """Steps that it did not do itself. The first step that was sampled may be a later one."""
        if self.done_before is not None or self.first is None:
            return self.done_before
        return self.first[1] - 1

    @property
    def last_step(self) -> int:
        return max((step for _, step in self.samples), default=0)

    def step(self, t: float, step: int | None) -> None:
        if step is None:
            return
        if self.silences and self.silences[-1][1] == math.inf and step > self.last_step:
            self.silences[-1][1] = t
        if len(self.samples) < MOST_SAMPLES:
            self.samples.append((t, step))

    def reached(self, step: int) -> float | None:
        """When it had done this step, between the samples before and after; None: never."""
        before: tuple[float, int] | None = None
        for t, seen in self.samples:
            if seen >= step:
                if before is None or seen == before[1]:
                    return t
                part = (step - before[1]) / (seen - before[1])
                return before[0] + part * max(0.0, t - before[0])
            before = (t, seen)
        return None


def _fold(events: Iterable[e.AnyEvent]) -> list[Attempt]:
    attempts: list[Attempt] = []
    rejected: list[e.CheckpointRejected] = []
    for event in events:
        match event:
            case e.AttemptLaunching(plan=plan):
                attempts.append(Attempt(launched_at=event.t, rejected=tuple(rejected)))
                if plan.checkpoint is None and plan.resume_via not in ("script", "env"):
                    attempts[-1].done_before = 0
                rejected.clear()
            case e.LaunchPostponed() if attempts:
                rejected.extend(attempts.pop().rejected)
            case e.CheckpointRejected():
                rejected.append(event)
            case _ if attempts:
                _happened(attempts[-1], event)
    return attempts


def _happened(attempt: Attempt, event: e.AnyEvent) -> None:
    now = event.t
    match event:
        case e.FirstStep():
            attempt.first = attempt.first or (now, event.step)
            attempt.step(now, event.step)
        case e.Progress():
            attempt.step(now, event.progress.step)
        case e.RemedyTaken():
            attempt.settings[event.remedy] = event
        case e.ResumeVerified():
            attempt.resume_why = event.why
            if event.verdict == "verified":
                attempt.done_before = event.expected_step
            elif event.verdict == "contradicted" and event.first_step is not None:
                attempt.done_before = event.first_step - 1
        case e.StallDeclared():
            attempt.silences.append([now - max(0.0, event.age_s), now])
            attempt.stalled_at = now
        case e.StallRecovered() | e.WouldHaveKilled() if attempt.silences:
            attempt.silences[-1][1] = now if isinstance(event, e.StallRecovered) else math.inf
            attempt.stalled_at = None
        case e.Signalled():
            for one in event.sent:
                if one.result in ("sent", "ordered") and one.role != "keeper":
                    attempt.signalled[one.pid, one.start] = (one.role, one.signal)
        case e.AttemptExited():
            attempt.ended_at = now
            attempt.step(now, event.step)


SpanKind = Literal["kept", "redone", "startup", "silence", "ending", "between"]


class TimeSpent(Value):
    """Where the wall time went. Goodput counts steps that no later attempt has done again."""

    wall_s: float
    spent_s: dict[SpanKind, float]
    steps_known: bool = False
    """Whether any step is known: without one productive time is unknown."""
    steps_redone: int = 0

    @property
    def goodput(self) -> float | None:
        """Between 0 and 1; None: no step is known."""
        if not self.steps_known or self.wall_s <= 0:
            return None
        return min(1.0, self.spent_s["kept"] / self.wall_s)


def time_spent(attempts: Sequence[Attempt], begin: float, newest: float) -> TimeSpent:
    """Times of the wall clock, cut so that they never overlap or run backwards."""
    spent: dict[SpanKind, float] = {
        "kept": 0.0, "redone": 0.0, "startup": 0.0, "silence": 0.0, "ending": 0.0, "between": 0.0
    }  # fmt: skip
    at, redone = begin, 0

    def pass_to(end: float, kind: SpanKind, silences: Iterable[Sequence[float]] = ()) -> None:
        nonlocal at
        for quiet, over in silences:
            pass_to(min(end, quiet), kind)
            if at >= quiet:
                pass_to(min(end, over), "silence")
        if end > at:
            spent[kind] += end - at
            at = end

    for i, attempt in enumerate(attempts):
        later = attempts[i + 1 :]
        pass_to(attempt.launched_at, "between" if i else "startup")
        end = min(
            later[0].launched_at if later else newest,
            newest if attempt.ended_at is None else attempt.ended_at,
        )
        steps_end = end if attempt.stalled_at is None else min(end, attempt.stalled_at)
        first = attempt.first or (attempt.samples[0] if attempt.samples else None)
        quiet = attempt.silences
        pass_to(steps_end if first is None else min(steps_end, first[0]), "startup", quiet)
        if first is not None:
            began = [one.start_step for one in later if one.first is not None]
            kept = min((step for step in began if step is not None), default=math.inf)
            start, split = attempt.start_step, steps_end
            if kept < attempt.last_step:
                if start is not None:
                    redone += max(0, attempt.last_step - max(int(kept), start))
                lost_all = start is not None and kept <= start
                reached = first[0] if lost_all else attempt.reached(int(kept))
                split = steps_end if reached is None else min(steps_end, reached)
            pass_to(split, "kept", quiet)
            pass_to(steps_end, "redone", quiet)
        pass_to(end, "ending")
    if attempts:
        # After the last attempt: the report of the end, or a restart that was never made.
        pass_to(newest, "ending")
    return TimeSpent(
        wall_s=newest - begin,
        spent_s=spent,
        steps_known=any(attempt.samples for attempt in attempts),
        steps_redone=redone,
    )
