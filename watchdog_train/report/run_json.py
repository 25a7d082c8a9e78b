"""A run for programs: the objects of `status --json`, `ps --json` and `report --json`. Pure.

They hold typed values, which `with_text` turns into built-in types.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Why
from watchdog_train.report.document import Attempt, Document, machines_now
from watchdog_train.report.explanation_text import crash_words, sentences
from watchdog_train.report.facts import permanent_lines, run_again
from watchdog_train.report.notices import straggler_words
from watchdog_train.report.patience_text import waiting_object
from watchdog_train.report.places_text import places_object

SHORT_KEYS = (
    "run_id", "name", "run_dir", "state", "outcome", "warning", "exit_code", "attempt", "restarts",
    "supervisor", "command", "job", "progress", "waiting", "started_at", "updated_at",
)  # fmt: skip
"""What `ps --json` keeps of a status."""
STALL_KEYS = ("id", "at", "basis", "phase", "ranks", "dir", "explanation")
ATTEMPT_KEYS = (
    "attempt", "first_step", "last_step", "code", "signal", "how_known", "stall_id", "crash_id",
    "crash", "resume", "plan",
)  # fmt: skip


def short_object(document: Document) -> dict[str, Any]:
    status = status_object(document)
    return {key: status[key] for key in SHORT_KEYS}


def status_object(document: Document) -> dict[str, Any]:
    state, live = document.state, document.live
    attempt, lags = state.attempt, state.straggler
    origin = attempt.launching_mono if attempt is not None else None
    progress = asdict(document.progress)
    del progress["steps_s"]  # the pace is for people, who read it in words
    return {
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
            "alive": live.supervisor_alive,
            "blind_s": live.blind_s,
        },
        "command": list(state.argv),
        "job": _job(state),
        "guilty_nodes": state.guilty if state.finished else (),
        "progress": progress,
        "ranks": document.ranks,
        "notices": _notices(state),
        "waiting": waiting_object(state, live.mono),
        "straggler": lags and {**asdict(lags), "why": straggler_words(lags)},
        "left": state.left,
        "last_stall": _last_stall(state),
        "checkpoint": _checkpoint(document),
        "remedies": [use.id for use in attempt.plan.remedies] if attempt is not None else [],
        "milestones": places_object(*document.places, origin),
        "hooks": [{"hook": one.hook, "status": one.status, "why": one.why} for one in state.hooks],
        "can_be_asked_to_save": document.can_save,
        "started_at": state.started_at,
        "updated_at": live.at if document.measured else state.updated_at,
    }


def _job(state: State) -> dict[str, Any] | None:
    task = state.task
    if task is None:
        return None
    fields = asdict(task)
    return {"id": fields.pop("job"), **fields, "machines": machines_now(state)}


def _notices(state: State) -> list[dict[str, Any]]:
    found: list[tuple[str, list[int], Why]] = []
    found += [(one.kind, list(one.pids), one.why) for one in state.noticed]
    found += [(one.kind, [], one.why) for one in state.warned]
    found += [("checkpoints", [one.pid], one.why) for one in state.shared]
    held = state.gpu_held
    if held is not None:
        pids = [holder.pid for holder in (*held.ours, *held.others)]
        found.append(("gpu-memory", pids, held.why))
    return [{"kind": kind, "pids": pids, "why": why} for kind, pids, why in found]


def _last_stall(state: State) -> dict[str, Any] | None:
    stall = state.last_stall
    if stall is None:
        return None
    found = {name: getattr(stall, name) for name in STALL_KEYS}
    known = stall.explanation
    return {**found, "sentences": sentences(known) if known is not None else ()}


def _checkpoint(document: Document) -> dict[str, Any] | None:
    found = document.checkpoint
    if found is None:
        return None
    save, at = document.live.save, document.live.at
    age_s = None if save is None else round(max(0.0, at - save.t), 1)
    return {"path": found.path, "format": found.format, "step": found.step, "age_s": age_s}


def report_object(document: Document) -> dict[str, Any]:
    from watchdog_train.report.report_text import notables
    from watchdog_train.report.summary import outcome_line

    state, time = document.state, document.time
    return {
        "verdict": outcome_line(state),
        "run": status_object(document),
        "attempts": [_attempt(*each) for each in document.attempts],
        "time": {
            "wall_s": round(time.wall_s, 3),
            "goodput": None if time.goodput is None else round(time.goodput, 4),
            "steps_redone": time.steps_redone,
            "spent_s": {kind: round(spent, 3) for kind, spent in time.spent_s.items()},
        },
        "stalls": state.stalls,
        "notables": [{"t": t, "words": words} for t, words in notables(document)],
        "script_lines": permanent_lines(state, document.script_lines),
        "run_again": run_again(state),
    }


def _attempt(record: AttemptRecord, told: Attempt) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ATTEMPT_KEYS},
        "launched_at": told.launched_at,
        "ended_at": told.ended_at,
        "what": crash_words(record.crash) if record.crash is not None else None,
        "killed": [
            {"role": role, "signal": signal, "processes": number}
            for (role, signal), number in told.killed.items()
        ],
        "rejected": [{"path": one.path, "why": one.why} for one in told.rejected],
        "settings_said": [
            {"id": one.remedy, "took": one.took, "why": one.why} for one in told.settings.values()
        ],
    }
