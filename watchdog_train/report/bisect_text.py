"""What the trials of `wtrain bisect` have told, for a terminal. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from watchdog_train.core.recovery.bisect import AS_GIVEN, Setting, Trial, best, command_of
from watchdog_train.report.explanation_text import crash_words, what_happened
from watchdog_train.report.facts import step_words
from watchdog_train.report.words import clean, columns, count, duration

_CAP = 200
_NONE = {"workers": "no workers", "evaluation": "no evaluation"}


def setting_words(setting: Setting) -> str:
    """`no workers, 1 rank, 2 examples`."""
    words = [count(one.amount, one.what[:-1]) if one.amount else _NONE[one.what] for one in setting]
    return ", ".join(words) or "as given"


def table(trials: Sequence[Trial]) -> list[str]:
    """A line for each trial."""
    rows = [("trial", "setting", "outcome", "after", "where")]
    for number, one in enumerate(trials, 1):
        idle = one.outcome == "ran" and one.setting != AS_GIVEN and not one.effective
        words = "no effect" if idle else one.outcome
        after = duration(one.seconds)
        rows.append((str(number), setting_words(one.setting), words, after, _where(one)))
    return [*columns(rows), ""]


def closing(trials: Sequence[Trial], command: tuple[str, ...]) -> list[str]:
    """What they tell together, the line to paste, and where the evidence is."""
    given = next((trial for trial in trials if trial.setting == AS_GIVEN), None)
    if given is None:
        return ["The command was not tried as given."]
    took = duration(given.seconds)
    match given.outcome:
        case "ran":
            return [f"As given it did not hang in {took}."]
        case "unclear":
            return [f"As given it neither hung nor ended in {took}. Try a larger --minutes."]
        case "failed":
            return [f"As given it does not hang, it fails: {_where(given)}."]
    lines = [f"As given it hangs at {_where(given)}."]
    lines += [what_happened(given.explanation)] if given.explanation is not None else []
    lines += [f"Evidence: wtrain show {shlex.quote(given.evidence)}"] if given.evidence else []
    found = best(trials)
    if found is None:
        return [*lines, f"It ran with none of {count(len(trials) - 1, 'smaller setting')}."]
    lines.append(f"The smallest change with which it ran: {setting_words(found.effective)}.")
    return [*lines, f"  {run_line(found, command)}"]


def run_line(trial: Trial, command: tuple[str, ...]) -> str:
    """`wtrain run --with num-workers-0 -- python train.py`."""
    remedies = [change.remedy for change in trial.effective if change.remedy]
    options = [word for remedy in remedies for word in ("--with", remedy)]
    return shlex.join(["wtrain", "run", *options, "--", *command_of(command, trial.effective)])


def _where(trial: Trial) -> str:
    step = "before the first step" if trial.step is None else step_words(trial.step)
    if trial.crash is not None:
        return clean(crash_words(trial.crash, trial.step), _CAP)
    if trial.place is None:
        return step
    line = f":{trial.place.line}" if trial.place.line else ""
    return f"{clean(trial.place.file, _CAP)}{line}, {step}"
