"""The report of a run as data: sections for the text and the HTML page, and its JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import tzinfo
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
"""Bundles that a page shows opened: the newest."""
SIGSTOP = 19
"""Launchers are only held still by it."""


def report_document(
    history: History,
    script_lines: ScriptLines,
    *,
    zone: tzinfo | None = None,
    stacks: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Document:
    """Everything a person wants to know in the morning.

    Args:
        history: the run, from its events.
        script_lines: remedy id -> line for the training script.
        zone: for times of day; None: of this machine.
        stacks: stall id -> the grouped stacks of its bundle, in lines.
    """
    state = history.state
    minor = len(state.stalls) - SHOWN_WHOLE
    sections = (
        _about(state, zone),
        _machines(state, zone),
        _attempts(history, zone),
        time_section(history.time_line),
        *[
            _stall(stall, state, zone, stacks=stacks.get(stall.id, ()), minor=number < minor)
            for number, stall in enumerate(state.stalls)
        ],
        _way(state),
        _checkpoints(history),
        _settings(history),
        _notables(history, zone),
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
    """The whole run in one sentence."""
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


def _about(state: State, zone: tzinfo | None) -> Section:
    rows = [("command", words.command_text(state.argv)), ("directory", clean(state.cwd, 1000))]
    rows.append(("machine", clean(state.host, 200)))
    if state.started_at is not None:
        rows.append(("started", clock_time(state.started_at, zone)))
        if state.updated_at is not None:
            what = "ended" if state.finished else "last event"
            took = duration(state.updated_at - state.started_at)
            rows.append((what, f"{clock_time(state.updated_at, zone)} ({took})"))
    if (awaited := waiting(state, state.mono)) is not None:
        rows.append(("waiting", awaited))
        rows += _stall_at(state, zone)
    if state.exit_code is not None:
        rows.append(("exit code", str(state.exit_code)))
    rows += [("the fault may lie with", text) for text in guilty_words(state)]
    rows += [("left running", text) for text in left_words(state)]
    rows.append(("files", words.short_path(state.run_dir, state.cwd)))
    return Section(title="Run", rows=tuple(row for row in rows if row[1]))


def _machines(state: State, zone: tzinfo | None) -> Section | None:
    rows = [machine_cells(one, zone=zone, now=state.updated_at) for one in machines_now(state)]
    header = ("machine", "host name", "ranks", "")
    return Section(title="Machines", header=header, rows=tuple(rows)) if rows else None


def _stall_at(state: State, zone: tzinfo | None) -> list[tuple[str, str]]:
    """A page is read later than it is written: by the clock, not by the length of the silence."""
    if state.look is None or state.look.limit_s is None or state.updated_at is None:
        return []
    at = state.updated_at + state.look.since_mono + state.look.limit_s - state.mono
    return [("a stall at", f"{clock_time(at, zone)}, if it goes on like that")]


def _attempts(history: History, zone: tzinfo | None) -> Section:
    rows = [
        _attempt_row(record, told, zone)
        for record, told in zip(history.state.attempts, history.attempts, strict=False)
    ]
    header = ("attempt", "began", "ran", "steps", "how it ended", "killed")
    if not rows:
        return Section(title="Attempts", paragraphs=("Nothing was started.",))
    reasons = tuple(
        f"Attempt {record.attempt}: {why_text(record.plan.why)}"
        for record in history.state.attempts
        if record.attempt > 1
    )
    return Section(title="Attempts", header=header, rows=tuple(rows), paragraphs=reasons)


def _attempt_row(
    record: AttemptRecord, told: AttemptHistory, zone: tzinfo | None
) -> tuple[str, ...]:
    steps = "none"
    if record.last_step is not None:
        first = record.first_step if record.first_step is not None else record.last_step
        steps = f"{words.number(first)} to {words.number(record.last_step)}"
    ended = exit_words(record)
    if record.stall_id is not None:
        ended = f"stall {clean(record.stall_id, 40)}, {ended}"
    ran = duration(told.ended_t - told.launching_t) if told.ended_t is not None else "-"
    ended_by_us: dict[str, int] = {}
    for role, signal, number in told.killed:
        if signal != SIGSTOP:
            ended_by_us[role] = ended_by_us.get(role, 0) + number
    killed = counted_roles(ended_by_us) if ended_by_us else "-"
    began = clock_time(told.launching_t, zone, now=told.launching_t)
    return (str(record.attempt), began, ran, steps, ended, killed)


def _way(state: State) -> Section | None:
    """Where the time went before the first step of the newest attempt."""
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
    for record, told in zip(history.state.attempts, history.attempts, strict=False):
        rows += [
            (str(record.attempt), "passed over", words.short_path(r.path, cwd), why_text(r.why))
            for r in told.rejected[:20]
        ]
        used = record.plan.checkpoint
        if used is None:
            continue
        verified = "whether it was loaded is not known"
        if record.resume is not None:
            result = record.resume.replace("-", " ")
            verified = f"resume {result}: {why_text(told.resume_why or Why('unknown'))}"
        path = f"{words.short_path(used.path, cwd)} ({step_words(used.step)})"
        rows.append(
            (
                str(record.attempt),
                _USE.get(record.resume or "", "offered"),
                path,
                f"{clean(used.how_checked, 300)}; {verified}",
            )
        )
    if not rows:
        return None
    return Section(
        title="Checkpoints", header=("attempt", "what", "checkpoint", "why"), rows=tuple(rows)
    )


def _settings(history: History) -> Section | None:
    rows: list[tuple[str, ...]] = []
    for record, told in zip(history.state.attempts, history.attempts, strict=False):
        said = {name: (took, why) for name, took, why in told.setting_words}
        for use in record.plan.remedies:
            effect = "the training process has not said"
            if use.id in said:
                took, why = said[use.id]
                effect = f"{'in effect' if took else 'NOT in effect'}: {why_text(why)}"
            rows.append((str(record.attempt), clean(use.word, 60), why_text(use.why), effect))
    if not rows:
        return None
    header = ("attempt", "setting", "why", "effect")
    more = tried_lines(history.state)[1:]
    return Section(title="Settings changed", header=header, rows=tuple(rows), paragraphs=more)


def _notables(history: History, zone: tzinfo | None) -> Section | None:
    if not history.notables:
        return None
    shown = history.notables[-30:]
    rows = tuple((clock_time(item.t, zone), clean(item.words, 600)) for item in shown)
    left = len(history.notables) - len(shown)
    more = (f"{left} earlier ones are in events.jsonl.",) if left else ()
    return Section(title="Also", rows=rows, paragraphs=more)


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
    return Section(title="For good", paragraphs=(told,), code=tuple(lines))


def _reproduce(state: State) -> Section | None:
    attempt = state.attempt
    if attempt is None:
        return None
    told = (
        f"Attempt {attempt.attempt} by hand, without wtrain (settings made inside the process "
        "by wtrain are not part of it), then under wtrain with the same settings:"
    )
    lines = (by_hand(attempt.plan, state.cwd), run_again(state))
    return Section(title="Once more", paragraphs=(told,), code=lines)


MOST_PLACE_LINES = 400


def _stall(
    stall: StallRecord, state: State, zone: tzinfo | None, *, stacks: tuple[str, ...], minor: bool
) -> Section:
    """What was caught, why, where, and what followed."""
    what = {"stall": "Stall", "crash": "Crash", "manual": "Dump"}[stall.why]
    told = []
    if stall.crash is not None:
        told.append(crash_words(stall.crash))
    if stall.why == "stall":
        told.append(why_text(stall.verdict))
    found = stall.explanation
    rows: list[tuple[str, str]] = [
        ("when", f"{clock_time(stall.at, zone)}, attempt {stall.attempt}")
    ]
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
