"""The morning report as data: sections that the text and the HTML renderer show alike. Pure."""

from __future__ import annotations

from datetime import tzinfo

from watchdog_train.core.model import RankPlaces, Value
from watchdog_train.core.state import AttemptRecord, StallRecord, State
from watchdog_train.report import words
from watchdog_train.report.facts import (
    ScriptLines,
    by_hand,
    counted_roles,
    culprit_words,
    exit_words,
    run_again,
    settings_to_keep,
    step_words,
)
from watchdog_train.report.history import AttemptHistory, History
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.words import clean, clock_time, duration

SIGSTOP = 19
"""Launchers are only held still by it."""


class Section(Value, frozen=True, kw_only=True):
    """A title and what stands under it, in this order."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()
    """Lines to copy."""


class Document(Value, frozen=True, kw_only=True):
    """A report."""

    title: str
    verdict: str
    good: bool
    sections: tuple[Section, ...]


def report_document(
    history: History, script_lines: ScriptLines, *, zone: tzinfo | None = None
) -> Document:
    """Everything a person wants to know in the morning."""
    state = history.state
    sections = (
        _about(state, zone),
        _attempts(history, zone),
        *[_stall(stall, state, zone) for stall in state.stalls],
        _way(state),
        _checkpoints(history),
        _settings(history),
        _notables(history, zone),
        _for_good(state, script_lines),
        _reproduce(state),
    )
    return Document(
        title=f"{clean(state.run_id, 100) or 'run'}",
        verdict=verdict_sentence(state),
        good=state.outcome == "succeeded" and state.warning is None,
        sections=tuple(section for section in sections if section is not None),
    )


def verdict_sentence(state: State) -> str:
    """The whole run in one sentence."""
    steps = state.progress.step if state.progress.step is not None else state.best_step
    at = f" at {step_words(steps)}" if steps is not None else ""
    if steps is not None and state.progress.total_steps:
        at += f" of {words.number(state.progress.total_steps)}"
    if not state.finished:
        return f"The run has not ended; its log ends in state '{state.state}'{at}."
    restarts = f" after {words.count(state.restarts, 'restart')}" if state.restarts else ""
    why = clean(state.why or "", 800).removeprefix("stopped: ").rstrip(".")
    match state.outcome:
        case "succeeded":
            text = f"The training succeeded{restarts}{at}"
            text += f", but: {clean(state.warning)}" if state.warning else ""
        case "stopped":
            text = f"The training was stopped on request{restarts}{at} ({why})"
        case "gave_up":
            text = f"wtrain gave up{restarts}{at}: {why}"
        case _:
            text = f"The training failed{restarts}{at}: {why}"
    reported = sum(stall.reported_only for stall in state.stalls)
    if reported:
        times = "once" if reported == 1 else f"{reported} times"
        text += f"; outside report-only mode it would have been killed {times}"
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
    if state.exit_code is not None:
        rows.append(("exit code", str(state.exit_code)))
    rows.append(("files", words.short_path(state.run_dir, state.cwd)))
    return Section(title="Run", rows=tuple(row for row in rows if row[1]))


def _attempts(history: History, zone: tzinfo | None) -> Section:
    rows = [
        _attempt_row(record, told, zone)
        for record, told in zip(history.state.attempts, history.attempts, strict=False)
    ]
    header = ("attempt", "began", "ran", "steps", "how it ended", "killed")
    if not rows:
        return Section(title="Attempts", paragraphs=("Nothing was started.",))
    reasons = tuple(
        f"Attempt {record.attempt}: {clean(record.plan.why, 800)}"
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


def _stall(stall: StallRecord, state: State, zone: tzinfo | None) -> Section:
    what = {"stall": "Stall", "crash": "Crash", "manual": "Dump"}[stall.why]
    told = []
    if stall.words:
        told.append(clean(stall.words, 1000))
    diagnosis = stall.diagnosis
    rows: list[tuple[str, str]] = [
        ("when", f"{clock_time(stall.at, zone)}, attempt {stall.attempt}")
    ]
    if stall.basis is not None:
        rows.append(
            ("declared", f"{stall.basis}, {words.ranks_text(stall.ranks)}, in {stall.phase}")
        )
    if diagnosis is not None:
        family = clean(diagnosis.family, 60) if diagnosis.family else "not known"
        rows.append(("cause", f"{family} ({100 * diagnosis.confidence:.0f} % sure)"))
        if diagnosis.culprit is not None:
            rows.append(("where", culprit_words(diagnosis.culprit)))
        if diagnosis.explanation not in stall.words:
            rows.append(("why", clean(diagnosis.explanation, 1000)))
        rows += [
            ("evidence" if i == 0 else "", clean(line, 400))
            for i, line in enumerate(diagnosis.evidence[:8])
        ]
    told_places = place_sentences(stall.places, stall.places_mono)
    rows += [("inside" if i == 0 else "", text) for i, text in enumerate(told_places)]
    if stall.recovered:
        rows.append(("outcome", "it was over by itself before anything was killed"))
    elif stall.reported_only:
        rows.append(("outcome", "reported only, nothing was killed"))
    if stall.collected and stall.why != "crash":
        rows.append(("stacks", f"{stall.captured} of {words.count(stall.processes, 'process')}"))
    elif stall.why != "crash":
        rows.append(("stacks", "the evidence was not finished"))
    if stall.dir:
        rows.append(("files", words.short_path(stall.dir, state.cwd)))
    return Section(
        title=f"{what} {clean(stall.id, 40)}",
        paragraphs=tuple(told),
        rows=tuple(row for row in rows if row[1]),
    )


def _way(state: State) -> Section | None:
    """Where the time went before the first step of the newest attempt."""
    attempt = state.attempt
    if attempt is None or not state.places:
        return None
    slowest = max(state.places, key=_newest)
    lines = place_lines((slowest,), state.places_mono, attempt.launching_mono)
    told = place_sentences(state.places, state.places_mono)
    others = len(state.places) - 1
    more = f" (and {words.count(others, 'other rank')})" if others else ""
    title = f"The way of attempt {attempt.attempt}"
    return Section(title=title, paragraphs=(*told, f"Of {lines[0]}{more}:"), code=lines[1:])


def _newest(places: RankPlaces) -> float:
    return max((one.begin for one in places.milestones), default=0.0)


def _checkpoints(history: History) -> Section | None:
    rows: list[tuple[str, ...]] = []
    cwd = history.state.cwd
    for record, told in zip(history.state.attempts, history.attempts, strict=False):
        rows += [
            (str(record.attempt), "passed over", words.short_path(r.path, cwd), clean(r.why, 400))
            for r in told.rejected[:20]
        ]
        used = record.plan.checkpoint
        if used is None:
            continue
        verified = {
            True: f"resumed: {clean(told.resume_why or '', 300)}",
            False: f"NOT resumed: {clean(told.resume_why or '', 300)}",
            None: "whether it was loaded is not known",
        }[record.resume_ok]
        path = f"{words.short_path(used.path, cwd)} ({step_words(used.step)})"
        rows.append(
            (str(record.attempt), "used", path, f"{clean(used.how_checked, 300)}; {verified}")
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
                effect = f"{'in effect' if took else 'NOT in effect'}: {clean(why, 200)}"
            rows.append((str(record.attempt), clean(use.id, 60), clean(use.why, 400), effect))
    if not rows:
        return None
    header = ("attempt", "setting", "why", "effect")
    return Section(title="Settings changed", header=header, rows=tuple(rows))


def _notables(history: History, zone: tzinfo | None) -> Section | None:
    if not history.notables:
        return None
    shown = history.notables[-30:]
    rows = tuple((clock_time(item.t, zone), clean(item.words, 600)) for item in shown)
    left = len(history.notables) - len(shown)
    more = (f"{left} earlier ones are in events.jsonl.",) if left else ()
    return Section(title="Also", rows=rows, paragraphs=more)


def _for_good(state: State, script_lines: ScriptLines) -> Section | None:
    lines = [
        clean(part, 400)
        for name in settings_to_keep(state)
        if name in script_lines
        for part in script_lines[name].splitlines()
    ]
    if not lines:
        return None
    told = "The last attempt ran with these settings. To make them permanent, put into the script:"
    if state.outcome != "succeeded":
        told = "The last attempt ran with these settings; in the script they would read:"
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
