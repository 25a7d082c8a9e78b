"""The report of a run as data: sections for the text and the HTML page, and its JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State
from watchdog_train.core.model import Why
from watchdog_train.report import words
from watchdog_train.report.explanation_text import (
    because,
    crash_words,
    more_sentences,
    what_happened,
)
from watchdog_train.report.facts import (
    ScriptLines,
    by_hand,
    caught_words,
    counted_roles,
    exit_words,
    newest_step,
    of_total,
    permanent_lines,
    run_again,
    step_words,
    tried_lines,
    what_followed,
)
from watchdog_train.report.history import AttemptHistory, History
from watchdog_train.report.job_text import guilty_words, machine_cells, machines_now
from watchdog_train.report.notices import left_words
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.sections import Document, Fold, Section
from watchdog_train.report.status import SCHEMA_VERSION, status_object
from watchdog_train.report.time_line import time_section
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, duration

SHOWN_WHOLE = 3
"""How many bundles, the newest, a page shows opened."""
SIGSTOP = 19
"""Launchers are only held still by it."""


def report_document(
    history: History,
    script_lines: ScriptLines,
    *,
    stacks: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Document:
    """The report of a run.

    Args:
        history: the run, from its events.
        script_lines: remedy id -> line for the training script.
        stacks: stall id -> the grouped stacks of its bundle, in lines.
    """
    state = history.state
    minor = len(state.stalls) - SHOWN_WHOLE
    sections = (
        _about(state),
        _machines(state),
        _attempts(history),
        time_section(history.time_line),
        *[
            _stall(stall, state, stacks=stacks.get(stall.id, ()), minor=number < minor)
            for number, stall in enumerate(state.stalls)
        ],
        _way(state),
        _checkpoints(history),
        _settings(history),
        _notables(history),
        _for_good(state, script_lines),
        _reproduce(state),
    )
    return Document(
        title=clean(state.run_id, 100) or "run",
        verdict=verdict_sentence(state),
        good=state.outcome == "succeeded" and state.warning is None,
        sections=tuple(section for section in sections if section is not None),
    )


def verdict_sentence(state: State) -> str:
    """The run in one sentence."""
    step = newest_step(state)
    at = f" at {step_words(step)}{of_total(state.progress)}" if step is not None else ""
    if not state.finished:
        return f"The run has not ended; its log ends in state '{state.state}'{at}."
    restarts = f" after {words.count(state.restarts, 'restart')}" if state.restarts else ""
    # Nothing was declared before a restart on request.
    caught = caught_words(stall for stall in state.stalls if not stall.recovered)
    restarts += f" ({', '.join(caught)})" if restarts and caught else ""
    why = why_text(state.why) if state.why else ""
    match state.outcome:
        case "succeeded":
            text = f"The training succeeded{restarts}{at}"
            text += f", but: {why_text(state.warning)}" if state.warning else ""
        case "stopped":
            text = f"The training was stopped on request{restarts}{at} ({why})"
        case "gave_up":
            text = f"wtrain gave up{restarts}{at}: {why}"
        case _:
            text = f"The training failed{restarts}{at}: {why}"
    reported = sum(stall.reported_only for stall in state.stalls)
    if reported:
        text += f"; outside report-only mode it would have been killed {words.times(reported)}"
    return f"{text}."


def _about(state: State) -> Section:
    rows = [("command", words.command_text(state.argv)), ("directory", clean(state.cwd, 1000))]
    rows.append(("machine", clean(state.host, 200)))
    if state.started_at is not None:
        rows.append(("started", clock_time(state.started_at)))
        if state.updated_at is not None:
            what = "ended" if state.finished else "last event"
            took = duration(state.updated_at - state.started_at)
            rows.append((what, f"{clock_time(state.updated_at)} ({took})"))
    if (awaited := waiting(state, state.mono)) is not None:
        rows.append(("waiting", awaited))
        rows += _stall_at(state)
    if state.exit_code is not None:
        rows.append(("exit code", str(state.exit_code)))
    rows += [("the fault may lie with", text) for text in guilty_words(state)]
    rows += [("left running", text) for text in left_words(state)]
    rows.append(("files", words.short_path(state.run_dir, state.cwd)))
    return Section(title="Run", rows=tuple(row for row in rows if row[1]))


def _machines(state: State) -> Section | None:
    rows = [machine_cells(one, now=state.updated_at) for one in machines_now(state)]
    return _table("Machines", ("machine", "host name", "ranks", ""), rows)


def _stall_at(state: State) -> list[tuple[str, str]]:
    """When the silence becomes a stall, as a time of day: a page is read later than written."""
    if state.look is None or state.look.limit_s is None or state.updated_at is None:
        return []
    at = state.updated_at + state.look.since_mono + state.look.limit_s - state.mono
    return [("a stall at", f"{clock_time(at)}, if the silence continues")]


def _attempts(history: History) -> Section:
    if not history.attempts:
        return Section(title="Attempts", paragraphs=("Nothing was started.",))
    header = ("attempt", "began", "ran", "steps", "how it ended", "killed")
    rows = tuple(_attempt_row(one, one.record) for one in history.attempts)
    reasons = tuple(
        f"Attempt {record.attempt}: {why_text(record.plan.why)}"
        for record in history.state.attempts
        if record.attempt > 1
    )
    return Section(title="Attempts", header=header, rows=rows, paragraphs=reasons)


def _attempt_row(told: AttemptHistory, record: AttemptRecord) -> tuple[str, ...]:
    steps = "none"
    if record.last_step is not None:
        first = record.first_step if record.first_step is not None else record.last_step
        steps = f"{words.number(first)} to {words.number(record.last_step)}"
    ended = exit_words(record)
    if record.stall_id is not None:
        ended = f"stall {clean(record.stall_id, 40)}, {ended}"
    ran = duration(told.ended_t - told.launching_t) if told.ended_t is not None else "-"
    killed: Counter[str] = Counter()
    for role, signal, number in told.killed:
        killed[role] += number if signal != SIGSTOP else 0
    began = clock_time(told.launching_t, now=told.launching_t)
    by_us = counted_roles(killed) if killed.total() else "-"
    return (str(record.attempt), began, ran, steps, ended, by_us)


def _way(state: State) -> Section | None:
    """The startup timeline of the newest attempt."""
    attempt = state.attempt
    if attempt is None or not state.places:
        return None
    slowest = max(state.places, key=lambda one: max((m.begin for m in one.milestones), default=0.0))
    lines = place_lines((slowest,), state.places_mono, attempt.launching_mono)
    over = state.outcome == "succeeded"
    told = () if over else place_sentences(state.places, state.places_mono)
    others = len(state.places) - 1
    more = f" (and {words.count(others, 'other rank')})" if others else ""
    title = f"Startup of attempt {attempt.attempt}"
    return Section(title=title, paragraphs=(*told, f"Of {lines[0]}{more}:"), code=lines[1:])


_USE = {"verified": "used", "contradicted": "not used"}


def _checkpoints(history: History) -> Section | None:
    rows: list[tuple[str, ...]] = []
    cwd = history.state.cwd
    for told in history.attempts:
        record = told.record
        number, used = str(record.attempt), record.plan.checkpoint
        rows += [
            (number, "passed over", words.short_path(one.path, cwd), why_text(one.why))
            for one in told.rejected[:20]
        ]
        if used is None:
            continue
        verified = "whether it was loaded is not known"
        if record.resume is not None:
            result = record.resume.replace("-", " ")
            verified = f"resume {result}: {why_text(told.resume_why or Why('unknown'))}"
        path = f"{words.short_path(used.path, cwd)} ({step_words(used.step)})"
        why = f"{clean(used.how_checked, 300)}; {verified}"
        rows.append((number, _USE.get(record.resume or "", "offered"), path, why))
    return _table("Checkpoints", ("attempt", "what", "checkpoint", "why"), rows)


def _settings(history: History) -> Section | None:
    rows: list[tuple[str, ...]] = []
    for told in history.attempts:
        for use in told.record.plan.remedies:
            effect, answer = "no answer of the training process", told.settings.get(use.id)
            if answer is not None:
                effect = f"{'in effect' if answer.took else 'NOT in effect'}: "
                effect += why_text(answer.why)
            number, name = str(told.record.attempt), clean(use.word, 60)
            rows.append((number, name, why_text(use.why), effect))
    header = ("attempt", "setting", "why", "effect")
    return _table("Settings changed", header, rows, tried_lines(history.state)[1:])


def _table(
    title: str, header: tuple[str, ...], rows: Iterable[tuple[str, ...]], more: Sequence[str] = ()
) -> Section | None:
    """A section with a table; None without rows."""
    rows = tuple(rows)
    if not rows:
        return None
    return Section(title=title, header=header, rows=rows, paragraphs=tuple(more))


def _notables(history: History) -> Section | None:
    shown = history.notables[-30:]
    rows = [(clock_time(item.t), clean(item.words, 600)) for item in shown]
    left = len(history.notables) - len(shown)
    return _table("Also", (), rows, [f"{left} earlier ones are in events.jsonl."] if left else [])


def _for_good(state: State, script_lines: ScriptLines) -> Section | None:
    told = "With these settings it passed the stall. To make them permanent, put into the script:"
    known = permanent_lines(state, script_lines)
    if not known and state.attempt is not None:
        told = "To make permanent what --with asked for, put into the script:"
        asked = [one.id for one in state.attempt.plan.remedies if one.why.code == "asked-by-with"]
        in_effect = [name for name in asked if name in state.attempt.taken]
        known = {name: script_lines[name] for name in in_effect if name in script_lines}
    lines = [clean(part, 400) for line in known.values() for part in line.splitlines()]
    if not lines:
        return None
    return Section(title="Settings to keep", paragraphs=(told,), code=tuple(lines))


def _reproduce(state: State) -> Section | None:
    attempt = state.attempt
    if attempt is None:
        return None
    told = (
        f"Attempt {attempt.attempt} by hand, without wtrain (settings made inside the process "
        "by wtrain are not part of it), then under wtrain with the same settings:"
    )
    lines = (by_hand(attempt.plan, state.cwd), run_again(state))
    return Section(title="Reproduce", paragraphs=(told,), code=lines)


MOST_PLACE_LINES = 400


def _stall(stall: StallRecord, state: State, *, stacks: tuple[str, ...], minor: bool) -> Section:
    what = {"stall": "Stall", "crash": "Crash", "manual": "Dump"}[stall.why]
    told = []
    if stall.crash is not None:
        told.append(crash_words(stall.crash))
    if stall.why == "stall":
        told.append(why_text(stall.verdict))
    found = stall.explanation
    rows: list[tuple[str, str]] = [("when", f"{clock_time(stall.at)}, attempt {stall.attempt}")]
    if stall.basis is not None:
        rows.append(
            ("declared", f"{stall.basis}, {words.ranks_text(stall.ranks)}, in {stall.phase}")
        )
    if found is not None:
        if stall.crash is None and found.tells:
            told = [clean(line, 1000) for line in (what_happened(found), *more_sentences(found))]
        if stall.crash is None or found.because is not None:
            rows.append(("cause", clean(because(found), 1000) or "not known"))
    told_places = place_sentences(stall.places, stall.places_mono)
    rows += words.labelled("inside", told_places)
    if stall.why != "crash":
        captured = f"{stall.captured} of {words.count(stall.processes, 'process')}"
        rows.append(("stacks", captured if stall.collected else "the evidence was not finished"))
    if stall.dir:
        rows.append(("files", words.short_path(stall.dir, state.cwd)))
    rows.append(("then", what_followed(stall, state) or ""))
    return Section(
        title=f"{what} {clean(stall.id, 40)}",
        paragraphs=tuple(told),
        rows=tuple(row for row in rows if row[1]),
        folds=tuple(_folds(stall, state, stacks)),
        minor=minor,
    )


def _folds(stall: StallRecord, state: State, stacks: tuple[str, ...]) -> Iterator[Fold]:
    if stacks:
        yield Fold(title="Stacks, grouped", lines=stacks)
    if stall.crash is not None and stall.crash.exception is not None:
        yield Fold(title="End of the traceback", lines=traceback_lines(stall.crash.exception))
    attempt = next((one for one in state.attempts if one.attempt == stall.attempt), None)
    if stall.places and attempt is not None:
        lines = place_lines(stall.places, stall.places_mono, attempt.launching_mono)
        yield Fold(title="Milestones of each rank", lines=lines[:MOST_PLACE_LINES])


def report_object(history: History, script_lines: ScriptLines) -> dict[str, Any]:
    """Everything the report says, for programs."""
    state, line = history.state, history.time_line
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_sentence(state),
        "run": status_object(state),
        "attempts": [_attempt_object(one, one.record) for one in history.attempts],
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


def _attempt_object(told: AttemptHistory, record: AttemptRecord) -> dict[str, Any]:
    return {
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
        "rejected": [{"path": one.path, "why": one.why} for one in told.rejected],
        "settings_said": [
            {"id": one.remedy, "took": one.took, "why": one.why} for one in told.settings.values()
        ],
        "plan": msgspec.to_builtins(record.plan),
    }
