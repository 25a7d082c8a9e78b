"""The object of `wtrain report --json`: the status, and what only a whole log tells. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.report.document import verdict_sentence
from watchdog_train.report.explanation_text import crash_words
from watchdog_train.report.facts import ScriptLines, permanent_lines, run_again
from watchdog_train.report.history import History
from watchdog_train.report.status_json import SCHEMA_VERSION, status_object


def report_object(history: History, script_lines: ScriptLines) -> dict[str, Any]:
    """Everything the report says, for programs."""
    state, line = history.state, history.time_line
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_sentence(state),
        "run": status_object(state),
        "attempts": [
            {
                "attempt": record.attempt,
                "launched_at": told.launching_t,
                "ended_at": told.ended_t,
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
                    for role, signal, number in told.killed
                ],
                "rejected": msgspec.to_builtins(told.rejected),
                "settings_said": [
                    {"id": name, "took": took, "why": why} for name, took, why in told.setting_words
                ],
                "plan": msgspec.to_builtins(record.plan),
            }
            for record, told in zip(state.attempts, history.attempts, strict=False)
        ],
        "time": {
            "wall_s": round(line.wall_s, 3),
            "goodput": None if line.goodput is None else round(line.goodput, 4),
            "steps_redone": line.steps_redone,
            "spent_s": {kind: round(spent, 3) for kind, spent in line.spent_s.items()},
        },
        "stalls": msgspec.to_builtins(state.stalls),
        "notables": msgspec.to_builtins(history.notables),
        "script_lines": permanent_lines(state, script_lines),
        "run_again": run_again(state),
    }
