"""A run for programs: the objects of `status --json`, `ps --json` and `report --json`. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import Why
from watchdog_train.report.document import Attempt, Document, machines_now
from watchdog_train.report.explanation_text import crash_words, sentences
from watchdog_train.report.facts import permanent_lines, run_again
from watchdog_train.report.notices import difference_words, straggler_words
from watchdog_train.report.patience_text import waiting_object
from watchdog_train.report.places_text import places_object

SCHEMA_VERSION = 1
SHORT_KEYS = (
    "run_id", "name", "run_dir", "state", "outcome", "warning", "exit_code", "attempt", "restarts",
    "supervisor", "command", "job", "progress", "waiting", "started_at", "updated_at",
)  # fmt: skip
"""What `ps --json` keeps of a status."""


def short_object(document: Document) -> dict[str, Any]:
    """One row of `ps --json`."""
    status = status_object(document)
    return {key: status[key] for key in SHORT_KEYS}


def status_object(document: Document) -> dict[str, Any]:
    """Everything about a run as it is now."""
    state, live = document.state, document.live
    attempt = state.attempt
    origin = attempt.launching_mono if attempt is not None else None
    progress = msgspec.to_builtins(document.progress)
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
            "alive": live.supervisor_alive,
            "blind_s": live.blind_s,
        },
        "command": list(state.argv),
        "job": _job(state),
        "guilty_nodes": [
            {"host": one.host, "why": one.why} for one in (state.guilty if state.finished else ())
        ],
        "progress": progress,
        "ranks": msgspec.to_builtins(document.ranks),
        "notices": _notices(state),
        "waiting": waiting_object(state, live.mono),
        "straggler": _straggler(state),
        "left": msgspec.to_builtins(state.left),
        "last_stall": _last_stall(state),
        "checkpoint": _checkpoint(document),
        "remedies": [use.id for use in attempt.plan.remedies] if attempt is not None else [],
        "milestones": places_object(*document.places, origin),
        "hooks": [
            {"hook": hook.hook, "status": hook.status, "why": hook.why} for hook in state.hooks
        ],
        "can_be_asked_to_save": document.can_save,
        "started_at": state.started_at,
        "updated_at": live.at if document.measured else state.updated_at,
    }


def _job(state: State) -> dict[str, Any] | None:
    """None of a run that is no task of a job."""
    task = state.task
    if task is None:
        return None
    fields = msgspec.structs.asdict(task)
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


def _straggler(state: State) -> dict[str, Any] | None:
    """None: no rank is known to come last in most steps."""
    lags = state.straggler
    if lags is None:
        return None
    found: dict[str, Any] = msgspec.to_builtins(lags)
    differs = [{**msgspec.to_builtins(one), "words": difference_words(one)} for one in lags.differs]
    return {**found, "differs": differs, "why": straggler_words(lags)}


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


def _checkpoint(document: Document) -> dict[str, Any] | None:
    found = document.checkpoint
    if found is None:
        return None
    age_s = None
    if found.saved_at is not None:
        age_s = round(max(0.0, document.live.at - found.saved_at), 1)
    return {"path": found.path, "format": found.format, "step": found.step, "age_s": age_s}


def report_object(document: Document) -> dict[str, Any]:
    """Everything the report says."""
    from watchdog_train.report.report_text import notables
    from watchdog_train.report.summary import outcome_line

    state, time = document.state, document.time
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": outcome_line(state),
        "run": status_object(document),
        "attempts": [_attempt(*each) for each in document.attempts],
        "time": {
            "wall_s": round(time.wall_s, 3),
            "goodput": None if time.goodput is None else round(time.goodput, 4),
            "steps_redone": time.steps_redone,
            "spent_s": {kind: round(spent, 3) for kind, spent in time.spent_s.items()},
        },
        "stalls": msgspec.to_builtins(state.stalls),
        "notables": [{"t": t, "words": words} for t, words in notables(document)],
        "script_lines": permanent_lines(state, document.script_lines),
        "run_again": run_again(state),
    }


def _attempt(record: AttemptRecord, told: Attempt) -> dict[str, Any]:
    return {
        "attempt": record.attempt,
        "launched_at": told.launched_at,
        "ended_at": told.ended_at,
        "first_step": record.first_step,
        "last_step": record.last_step,
        "code": record.code,
        "signal": record.signal,
        "how_known": record.how_known,
        "stall_id": record.stall_id,
        "crash_id": record.crash_id,
        "crash": msgspec.to_builtins(record.crash),
        "what": crash_words(record.crash) if record.crash is not None else None,
        "resume": record.resume,
        "killed": [
            {"role": role, "signal": signal, "processes": number}
            for (role, signal), number in told.killed.items()
        ],
        "rejected": [{"path": one.path, "why": one.why} for one in told.rejected],
        "settings_said": [
            {"id": one.remedy, "took": one.took, "why": one.why} for one in told.settings.values()
        ],
        "plan": msgspec.to_builtins(record.plan),
    }
