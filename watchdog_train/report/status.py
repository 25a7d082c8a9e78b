"""The status of a run: what was measured now, and the object of `wtrain status --json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    Member,
    RankPlaces,
    RankStatus,
    RunProgress,
    Value,
    workers_by_rank,
)
from watchdog_train.report.explanation_text import sentences
from watchdog_train.report.job_text import job_object
from watchdog_train.report.notices import notices_object, straggler_object
from watchdog_train.report.patience_text import waiting_object
from watchdog_train.report.places_text import places_object


class NewestCheckpoint(Value):
    """The newest save that is known of."""

    path: str
    format: str
    step: int | None
    saved_at: float | None = None
    """Unix seconds."""
    checked: bool = False
    """A scan found it valid; else a save hook only saw that it was finished."""


class Live(Value):
    """What a reading command has measured of a run."""

    at: float
    """Unix seconds."""
    mono: float | None = None
    """Monotonic clock of the events; None on another machine or after a boot."""
    supervisor_alive: bool | None = None
    blind_s: float | None = None
    """How long the loop of the living supervisor stands; None: it turns, or unknown."""
    here: bool = True
    """False: the run belongs to another machine, so its processes are unknown."""
    is_copy: bool = False
    """The files are a copy of a run directory, and say nothing about the run now."""
    ranks: tuple[RankStatus, ...] | None = None
    """From the heartbeat slots; None: no slot could be read, so those of the log are used."""
    progress: RunProgress | None = None
    places: tuple[RankPlaces, ...] | None = None
    """Milestones that the ranks have recorded; None: none could be read."""
    can_save: bool | None = None
    can_stop: bool | None = None
    states: dict[int, str | None] = msgspec.field(default_factory=dict)
    """Of the recorded members that live, by pid."""
    checkpoint: NewestCheckpoint | None = None
    log_tail: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""


SCHEMA_VERSION = 1
SHORT_KEYS = (
    "run_id",
    "name",
    "run_dir",
    "state",
    "outcome",
    "warning",
    "exit_code",
    "attempt",
    "restarts",
    "supervisor",
    "command",
    "job",
    "progress",
    "waiting",
    "started_at",
    "updated_at",
)
"""What `ps --json` keeps of it."""


def status_object(state: State, live: Live | None = None) -> dict[str, Any]:
    """Everything about a run, for programs."""
    attempt = state.attempt
    measured = live is not None and live.ranks is not None
    checkpoint = newest_checkpoint(state, live)
    can_save = live.can_save if live is not None else None
    progress = msgspec.to_builtins(progress_now(state, live))
    del progress["steps_s"]  # the pace is for people, who read it in words
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": state.run_id,
        "name": state.name,
        "run_dir": state.run_dir,
        "state": "starting" if state.state == "idle" else state.state,
        "outcome": state.outcome,
        "warning": state.warning,
        "exit_code": state.exit_code,
        "attempt": attempt.attempt if attempt is not None else 0,
        "restarts": state.restarts,
        "supervisor": {
            "pid": state.supervisor.pid if state.supervisor is not None else None,
            "alive": live.supervisor_alive if live is not None else None,
            "blind_s": live.blind_s if live is not None else None,
        },
        "command": list(state.argv),
        "job": job_object(state),
        "guilty_nodes": [
            {"host": one.host, "why": one.why} for one in (state.guilty if state.finished else ())
        ],
        "progress": progress,
        "ranks": msgspec.to_builtins(ranks_now(state, live)),
        "notices": notices_object(state),
        "waiting": waiting_object(state, live.mono if live is not None else None),
        "straggler": straggler_object(state),
        "left": msgspec.to_builtins(state.left),
        "last_stall": _last_stall(state),
        "checkpoint": _checkpoint(checkpoint, live),
        "remedies": [use.id for use in attempt.plan.remedies] if attempt is not None else [],
        "milestones": places_object(*places_now(state, live)),
        "hooks": [
            {"hook": hook.hook, "status": hook.status, "why": hook.why} for hook in state.hooks
        ],
        "can_be_asked_to_save": state.can_be_asked_to_save if can_save is None else can_save,
        "started_at": state.started_at,
        "updated_at": live.at if measured and live is not None else state.updated_at,
    }


def short_object(status: dict[str, Any]) -> dict[str, Any]:
    """One row of `ps --json`."""
    return {key: status[key] for key in SHORT_KEYS}


def progress_now(state: State, live: Live | None) -> RunProgress:
    """The newest progress: measured, else the newest of the log."""
    if live is not None and live.progress is not None and live.progress.step is not None:
        return live.progress
    if state.progress.step is None and state.attempt is not None:
        return msgspec.structs.replace(state.progress, step=state.attempt.last_step)
    return state.progress


def ranks_now(state: State, live: Live | None) -> tuple[RankStatus, ...]:
    """The newest state of each rank: measured, else the newest of the log."""
    measured = live.ranks if live is not None and live.ranks is not None else ()
    if measured and state.crew is None:
        return measured
    known = {rank.rank for rank in measured}
    others = (rank for rank in _recorded(state) if rank.rank not in known)
    return tuple(sorted((*measured, *others), key=lambda rank: rank.rank))


def _recorded(state: State) -> Iterator[RankStatus]:
    """The state of recorded ranks without a measurement."""
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


def places_now(
    state: State, live: Live | None
) -> tuple[tuple[RankPlaces, ...], float, float | None]:
    """The newest milestones, measured or recorded; the time of that; and the launch."""
    origin = state.attempt.launching_mono if state.attempt is not None else None
    if live is not None and live.places is not None and live.mono is not None:
        return live.places, live.mono, origin
    return state.places, state.places_mono, origin


def newest_checkpoint(state: State, live: Live | None) -> NewestCheckpoint | None:
    """The newest known save, else the checkpoint of the plan."""
    if live is not None and live.checkpoint is not None:
        return live.checkpoint
    attempt = state.attempt
    if attempt is None or attempt.plan.checkpoint is None:
        return None
    used = attempt.plan.checkpoint
    return NewestCheckpoint(path=used.path, format=used.format, step=used.step, checked=True)


def _last_stall(state: State) -> dict[str, Any] | None:
    stall = state.last_stall
    if stall is None:
        return None
    return {
        "id": stall.id,
        "at": stall.at,
        "basis": stall.basis,
        "phase": stall.phase,
        "ranks": list(stall.ranks),
        "dir": stall.dir,
        "explanation": msgspec.to_builtins(stall.explanation),
        "sentences": sentences(stall.explanation) if stall.explanation is not None else (),
    }


def _checkpoint(found: NewestCheckpoint | None, live: Live | None) -> dict[str, Any] | None:
    if found is None:
        return None
    age_s = None
    if live is not None and found.saved_at is not None:
        age_s = round(max(0.0, live.at - found.saved_at), 1)
    return {"path": found.path, "format": found.format, "step": found.step, "age_s": age_s}
