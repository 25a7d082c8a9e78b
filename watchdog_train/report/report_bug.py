"""A bug report for the library at fault: what hangs, where, what avoided it. Pure.

Names of this machine, its users and its folders are left out; grouped stacks and milestones stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.report import words
from watchdog_train.report.facts import culprit_words, exit_words, step_words
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.report_markdown import escaped, fenced
from watchdog_train.report.words import clean

MOST_STALLS = 3
MOST_PLACE_LINES = 120
_HOME = re.compile(r"(?:/(?:home|Users)/[^/\s'\"]+|/root(?=/)|[A-Za-z]:\\Users\\[^\\\s'\"]+)")
_PACKAGES = re.compile(r"\S*/(?:site|dist)-packages/")


class Hidden:
    """Takes what names a machine, a user or a folder out of a text."""

    def __init__(self, state: State) -> None:
        self._names = [(state.run_dir, "RUN"), (state.cwd, "."), (state.host, "HOST")]
        self._names = [(name, word) for name, word in self._names if len(name) > 2]

    def __call__(self, text: str) -> str:
        """The text without them."""
        text = _PACKAGES.sub(".../", text)
        for name, word in self._names:
            text = text.replace(name, word)
        return _HOME.sub("~", text)


def report_bug(
    state: State,
    *,
    stacks: Mapping[str, Sequence[str]],
    versions: Sequence[tuple[str, str]],
) -> str | None:
    """The report; None where nothing was caught.

    Args:
        state: of the run, command lines without secrets.
        stacks: stall id -> grouped stacks.
        versions: of libraries, interpreter and system, each with what it is; unknown ones left out.
    """
    caught = [stall for stall in state.stalls if stall.why != "manual"] or list(state.stalls)
    if not caught:
        return None
    hidden = Hidden(state)
    newest = caught[-1]
    lines = [f"# {escaped(hidden(_title(newest)))}", ""]
    lines += ["## What happens", "", escaped(hidden(_story(newest))), ""]
    if len(caught) > 1:
        alike = sum(stall.fingerprint == newest.fingerprint for stall in caught)
        same = f", {alike} of them with the same stacks" if newest.fingerprint else ""
        lines += [f"It was caught {words.count(len(caught), 'time')} in this run{same}.", ""]
    lines += ["## How to reproduce", "", *_command(state, newest, hidden), ""]
    lines += ["## Versions", ""]
    lines += [f"- {escaped(clean(f'{name} {told}', 260))}" for name, told in versions]
    lines += ["", "## What avoided it", "", *_avoided(state, newest, hidden), ""]
    for stall in _different(caught):
        lines += _evidence(stall, state, stacks.get(stall.id, ()), hidden)
    lines += [
        "",
        "Written by `wtrain report --bug`. Secrets, folders, the names of machine and user were",
        "taken out as far as they are known; please read it before you post it.",
    ]
    return "\n".join(lines) + "\n"


def _title(stall: StallRecord) -> str:
    diagnosis = stall.diagnosis
    what = "Crash" if stall.why == "crash" else "Hang"
    if diagnosis is None:
        return f"{what} of a training, cause not known"
    where = f": {culprit_words(diagnosis.culprit)}" if diagnosis.culprit is not None else ""
    return clean(f"{what}, {diagnosis.family or 'cause not known'}{where}", 160)


def _story(stall: StallRecord) -> str:
    parts = [clean(stall.words, 800).rstrip(".")] if stall.words else []
    diagnosis = stall.diagnosis
    if diagnosis is not None:
        parts.append(clean(diagnosis.explanation, 800).rstrip("."))
        sure = f"{100 * diagnosis.confidence:.0f} % sure"
        parts.append(f"This is what wtrain takes the evidence for ({sure}), no proof of it")
    return ". ".join(parts or ["What was caught was not diagnosed"]) + "."


def _command(state: State, stall: StallRecord, hidden: Hidden) -> list[str]:
    attempt = next((one for one in state.attempts if one.attempt == stall.attempt), None)
    argv = attempt.plan.argv if attempt is not None else state.argv
    told = [clean(hidden(words.command_text(argv)), 2000)]
    ranks = words.count(len(state.ranks), "rank") if state.ranks else "a number of ranks not known"
    at = ""
    if attempt is not None:
        at = f", {exit_words(attempt)}" if stall.why == "crash" else ""
        at += f", at {step_words(attempt.last_step)}"
    return [*fenced(told), "", f"{ranks}, phase {stall.phase}{at}."]


def _avoided(state: State, stall: StallRecord, hidden: Hidden) -> list[str]:
    """Only what was seen: an attempt after it that got further, with its settings."""
    for attempt in state.attempts:
        if attempt.attempt <= stall.attempt or attempt.stall_id or attempt.crash_id:
            continue
        ended_well = attempt.code == 0
        if not ended_well and attempt.last_step is None:
            continue
        names = [clean(use.id, 60) for use in attempt.plan.remedies]
        with_what = f"with {words.listed(names)}" if names else "with the same settings"
        end = "ended with success" if ended_well else f"got to {step_words(attempt.last_step)}"
        told = [f"Attempt {attempt.attempt}, {with_what}, {end}."]
        return told + [f"- {escaped(clean(hidden(use.why), 300))}" for use in attempt.plan.remedies]
    return ["Nothing was seen to avoid it in this run."]


def _different(caught: Sequence[StallRecord]) -> list[StallRecord]:
    """The newest of each fingerprint."""
    found: dict[str, StallRecord] = {}
    for stall in reversed(caught):
        found.setdefault(stall.fingerprint or stall.id, stall)
    return list(found.values())[:MOST_STALLS]


def _evidence(stall: StallRecord, state: State, stacks: Sequence[str], hidden: Hidden) -> list[str]:
    lines = [f"## Evidence of {stall.why} {escaped(clean(stall.id, 40))}", ""]
    if stall.diagnosis is not None:
        lines += [f"- {escaped(hidden(clean(one, 400)))}" for one in stall.diagnosis.evidence[:8]]
    lines += [f"- {escaped(text)}" for text in place_sentences(stall.places, stall.places_mono)]
    lines += ["", "Stacks, grouped:", "", *fenced([hidden(line) for line in stacks])]
    if not stacks:
        lines[-2:] = ["none are at hand"]
    attempt = next((one for one in state.attempts if one.attempt == stall.attempt), None)
    if stall.places and attempt is not None:
        told = place_lines(stall.places, stall.places_mono, attempt.launching_mono)
        lines += ["", "Milestones of each rank:", "", *fenced(told[:MOST_PLACE_LINES])]
    return [*lines, ""]
