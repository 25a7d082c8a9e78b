"""What `wtrain bisect` found, for a terminal and as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from watchdog_train.core.recovery.bisect import AS_IT_IS, Conclusion, Outcome, Trial
from watchdog_train.report.words import clean, duration

_WORDS: dict[Outcome, str] = {
    "hung": "hangs",
    "crashed": "crashes",
    "ran": "runs",
    "unclear": "unclear",
    "not-applied": "no trial",
}
_WHY_CAP = 160


def heading() -> str:
    """The first line of the table."""
    return _row("trial", "", "after", "")


def line(trial: Trial) -> str:
    """One trial on one line."""
    why = clean(trial.why, _WHY_CAP)
    return _row(trial.change.id, _WORDS[trial.outcome], duration(trial.seconds), why)


def closing(
    trials: Sequence[Trial], conclusion: Conclusion, command: Sequence[str]
) -> tuple[str, ...]:
    """The sentence, what to do with it, and where the dumps are."""
    lines = ["", conclusion.words]
    by_id = {trial.change.id: trial.change for trial in trials}
    keep = next((by_id[one].for_good for one in conclusion.helps if by_id[one].for_good), None)
    if keep is not None:
        lines.append(f"To go on with it: wtrain run --with {keep} -- {shlex.join(command)}")
    dumps = [(trial.change.id, trial.evidence) for trial in trials if trial.evidence is not None]
    lines += [f"dump of {name}: {path}" for name, path in dumps]
    return tuple(lines)


def as_json(trials: Sequence[Trial], conclusion: Conclusion) -> dict[str, Any]:
    """For other programs."""
    return {
        "schema_version": 1,
        "conclusion": conclusion.words,
        "found": conclusion.found,
        "helps": list(conclusion.helps),
        "trials": [
            {
                "change": trial.change.id,
                "what": trial.change.words,
                "outcome": trial.outcome,
                "why": trial.why,
                "seconds": trial.seconds,
                "step": trial.step,
                "phase": trial.phase,
                "family": trial.family,
                "run_dir": trial.run_dir,
                "evidence": trial.evidence,
                "with": trial.change.for_good,
                "as_it_is": trial.change.id == AS_IT_IS.id,
            }
            for trial in trials
        ],
    }


def _row(name: str, outcome: str, after: str, why: str) -> str:
    return f"{name:<15} {outcome:<9} {after:>12}  {why}".rstrip()
