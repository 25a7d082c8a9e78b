"""The report of a run: a document as sections, and how a terminal and an HTML page show them. Pure.

The page has no script, needs nothing from the network, and everything in it is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import zip_longest
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State
from watchdog_train.core.model import Value, Why
from watchdog_train.report import facts, notices, words
from watchdog_train.report.document import Attempt, Document, SpanKind, machines_now
from watchdog_train.report.explanation_text import (
    because,
    crash_words,
    more_sentences,
    what_happened,
)
from watchdog_train.report.narrative import told
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.summary import verdict_line
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import PLAIN, Paint, Style, clean, clock_time, duration

MAX_COLUMN = 48
SHOWN_WHOLE = 3
"""The number of newest bundles that a page shows opened."""
MOST_PLACE_LINES, MOST_NOTABLES, MOST_REJECTED = 400, 30, 20
SIGSTOP = 19
"""wtrain holds launchers with it before a kill: it does not count as a kill."""
SPENT_ON: dict[SpanKind, str] = {
    "kept": "steps that were kept",
    "redone": "steps that were done again",
    "startup": "start to first step",
    "silence": "no progress, in stalls",
    "ending": "evidence and ending",
    "between": "until the next attempt began",
}
NOTABLE = (
    e.Noticed, e.Straggling, e.Warned, e.Notified, e.CommandsRan, e.RankEnded, e.Adopted,
    e.Reopened, e.SupervisorLeft, e.LogBehind, e.SurvivedKill, e.StopRequested, e.SaveProven,
    e.StallRecovered,
)  # fmt: skip
"""Events whose sentences the report shows; the others are in its tables."""


class Fold(Value):
    title: str
    lines: tuple[str, ...]


class Section(Value):
    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()
    """Lines to copy."""
    folds: tuple[Fold, ...] = ()
    """Longer lists, closed on the page until they are opened; the text leaves them out."""
    minor: bool = False
    """One of many alike: a page shows its title, and the rest when it is opened."""


class Page(Value):
    title: str
    verdict: str
    good: bool
    sections: tuple[Section, ...]


def report_page(document: Document) -> Page:
    """The report of a run; a section without rows and lines is left out."""
    state = document.state
    sections = (
        _about(state),
        Section(
            title="Machines",
            header=("machine", "host name", "ranks", ""),
            rows=tuple(
                notices.machine_cells(one, now=state.updated_at) for one in machines_now(state)
            ),
        ),
        _attempts(document),
        _time(document),
        *_stalls(document),
        Section(
            title="Checkpoints",
            header=("attempt", "what", "checkpoint", "why"),
            rows=tuple(row for each in document.attempts for row in _checkpoints(*each, state.cwd)),
        ),
        Section(
            title="Settings changed",
            header=("attempt", "setting", "why", "effect"),
            rows=tuple(row for each in document.attempts for row in _settings(*each)),
            paragraphs=facts.tried_lines(state)[1:],
        ),
        _also(document),
        _settings_to_keep(document),
        _reproduce(state),
    )
    return Page(
        title=clean(state.run_id, 100) or "run",
        verdict=verdict_line(state),
        good=state.outcome == "succeeded" and state.warning is None,
        sections=tuple(one for one in sections if one.rows or one.code),
    )


def _about(state: State) -> Section:
    rows = [
        ("command", words.command_text(state.argv)),
        ("directory", clean(state.cwd, 1000)),
        ("machine", clean(state.host, 200)),
    ]
    if state.started_at is not None and state.updated_at is not None:
        took = duration(state.updated_at - state.started_at)
        rows.append(("started", clock_time(state.started_at)))
        what = "ended" if state.finished else "last event"
        rows.append((what, f"{clock_time(state.updated_at)} ({took})"))
    rows.append(("attempts", "" if state.attempts else "none was started"))
    rows.append(("waiting", waiting(state, state.mono) or ""))
    look, limit_s = state.look, state.look.limit_s if state.look is not None else None
    if state.suspicion and look is not None and limit_s is not None and state.updated_at:
        # As a time of day: a page is read later than written.
        at = clock_time(state.updated_at + look.since_mono + limit_s - state.mono)
        rows.append(("a stall at", f"{at}, if the silence continues"))
    if state.outcome != "succeeded":
        rows += words.labelled("inside", place_sentences(state.places, state.places_mono))
    rows.append(("exit code", "" if state.exit_code is None else str(state.exit_code)))
    rows += [("the fault may lie with", text) for text in notices.guilty_words(state)]
    rows += [("left running", text) for text in notices.left_words(state)]
    rows.append(("files", words.short_path(state.run_dir, state.cwd)))
    return Section(title="Run", rows=tuple(row for row in rows if row[1]))


def _attempts(document: Document) -> Section:
    return Section(
        title="Attempts",
        header=("attempt", "began", "ran", "steps", "how it ended", "killed"),
        rows=tuple(_attempt_row(*each) for each in document.attempts),
        paragraphs=tuple(
            f"Attempt {record.attempt}: {why_text(record.plan.why)}"
            for record in document.state.attempts
            if record.attempt > 1
        ),
    )


def _attempt_row(record: AttemptRecord, told: Attempt) -> tuple[str, ...]:
    steps = "none"
    if record.last_step is not None:
        first = record.first_step if record.first_step is not None else record.last_step
        steps = f"{words.number(first)} to {words.number(record.last_step)}"
    ended = facts.exit_words(record)
    if record.stall_id is not None:
        ended = f"stall {clean(record.stall_id, 40)}, {ended}"
    ran = duration(told.ended_at - told.launched_at) if told.ended_at is not None else "-"
    killed: Counter[str] = Counter()
    for (role, signal), number in told.killed.items():
        killed[role] += number if signal != SIGSTOP else 0
    began = clock_time(told.launched_at, now=told.launched_at)
    by_us = facts.counted_roles(killed) if killed.total() else "-"
    return (str(record.attempt), began, ran, steps, ended, by_us)


def _time(document: Document) -> Section:
    time = document.time
    names = SPENT_ON if time.steps_known else {**SPENT_ON, "startup": "running, no step was seen"}
    if time.goodput is None:
        text = "How much of the time was productive is unknown: no step was seen."
    else:
        kept, wall = duration(time.spent_s["kept"]), duration(time.wall_s)
        text = f"Goodput {words.percent_text(100 * time.goodput)}: {kept} of {wall} went into "
        text += "steps that no later attempt did again"
        if time.steps_redone:
            text += f"; {words.count(time.steps_redone, 'step')} had to be done again"
        text += "."
    return Section(
        title="Time",
        paragraphs=(text,),
        header=("spent on", "time", "share"),
        rows=tuple(
            (name, duration(seconds), words.percent_text(100 * seconds / time.wall_s))
            for kind, name in names.items()
            if (seconds := time.spent_s[kind]) > 0
        ),
    )


def _stalls(document: Document) -> Iterator[Section]:
    state = document.state
    minor = len(state.stalls) - SHOWN_WHOLE
    for number, stall in enumerate(state.stalls):
        what = {"stall": "Stall", "crash": "Crash", "manual": "Dump"}[stall.why]
        yield Section(
            title=f"{what} {clean(stall.id, 40)}",
            paragraphs=_caught(stall),
            rows=tuple(row for row in _stall_rows(stall, state) if row[1]),
            folds=tuple(_folds(stall, document)),
            minor=number < minor,
        )


def _caught(stall: StallRecord) -> tuple[str, ...]:
    found = stall.explanation
    if stall.crash is not None:
        told = [crash_words(stall.crash)]
    elif found is not None and found.tells:
        told = [what_happened(found), *more_sentences(found)]
    else:
        told = [why_text(stall.verdict)] if stall.why == "stall" else []
    return tuple(clean(line, 1000) for line in told)


def _stall_rows(stall: StallRecord, state: State) -> Iterator[tuple[str, str]]:
    found = stall.explanation
    yield "when", f"{clock_time(stall.at)}, attempt {stall.attempt}"
    if stall.basis is not None:
        yield "declared", f"{stall.basis}, {words.ranks_text(stall.ranks)}, in {stall.phase}"
    if found is not None and (stall.crash is None or found.because is not None):
        yield "cause", clean(because(found), 1000) or "not known"
    yield from words.labelled("inside", place_sentences(stall.places, stall.places_mono))
    if stall.why != "crash":
        captured = f"{stall.captured} of {words.count(stall.processes, 'process')}"
        yield "stacks", captured if stall.collected else "the evidence was not finished"
    yield "files", words.short_path(stall.dir or "", state.cwd)
    yield "then", facts.what_followed(stall, state) or ""


def _folds(stall: StallRecord, document: Document) -> Iterator[Fold]:
    if stacks := document.stacks.get(stall.id):
        yield Fold(title="Stacks, grouped", lines=stacks)
    if stall.crash is not None and stall.crash.exception is not None:
        yield Fold(title="End of the traceback", lines=traceback_lines(stall.crash.exception))
    for attempt in document.state.attempts:
        if stall.places and attempt.attempt == stall.attempt:
            lines = place_lines(stall.places, stall.places_mono, attempt.launching_mono)
            yield Fold(title="Milestones of each rank", lines=lines[:MOST_PLACE_LINES])


def _checkpoints(record: AttemptRecord, told: Attempt, cwd: str) -> Iterator[tuple[str, ...]]:
    number, used = str(record.attempt), record.plan.checkpoint
    for one in told.rejected[:MOST_REJECTED]:
        yield number, "passed over", words.short_path(one.path, cwd), why_text(one.why)
    if used is None:
        return
    loaded = "whether it was loaded is not known"
    if record.resume is not None:
        why = why_text(told.resume_why or Why("unknown"))
        loaded = f"resume {record.resume.replace('-', ' ')}: {why}"
    what = {"verified": "used", "contradicted": "not used"}.get(record.resume or "", "offered")
    path = f"{words.short_path(used.path, cwd)} ({facts.step_words(used.step)})"
    yield number, what, path, f"{clean(used.how_checked, 300)}; {loaded}"


def _settings(record: AttemptRecord, told: Attempt) -> Iterator[tuple[str, ...]]:
    for use in record.plan.remedies:
        effect, answer = "no answer of the training process", told.settings.get(use.id)
        if answer is not None:
            effect = f"{'in effect' if answer.took else 'NOT in effect'}: {why_text(answer.why)}"
        yield str(record.attempt), clean(use.word, 60), why_text(use.why), effect


def notables(document: Document) -> list[tuple[float, str]]:
    """When, and the sentences of the event, of each that a person should know."""
    found: list[tuple[float, str]] = []
    state = State()
    for event in document.events:
        state = evolve(state, event)
        lines = told(event, state) if isinstance(event, NOTABLE) else ()
        if isinstance(event, e.DaemonsJudged):  # too many for the terminal
            lines = notices.killed_daemons(event)
        if lines:
            found.append((event.t, "; ".join(lines)))
    return found


def _also(document: Document) -> Section:
    found = notables(document)
    left = len(found) - MOST_NOTABLES
    return Section(
        title="Also",
        rows=tuple((clock_time(t), clean(text, 600)) for t, text in found[-MOST_NOTABLES:]),
        paragraphs=(f"{left} earlier ones are in events.jsonl.",) if left > 0 else (),
    )


def _settings_to_keep(document: Document) -> Section:
    state, script_lines = document.state, document.script_lines
    text = "With these settings it passed the stall. To make them permanent, put into the script:"
    known = facts.permanent_lines(state, script_lines)
    if not known and state.attempt is not None:
        text = "To make permanent what --with asked for, put into the script:"
        asked = [one.id for one in state.attempt.plan.remedies if one.why.code == "asked-by-with"]
        in_effect = [name for name in asked if name in state.attempt.taken]
        known = {name: script_lines[name] for name in in_effect if name in script_lines}
    lines = [clean(part, 400) for line in known.values() for part in line.splitlines()]
    return Section(title="Settings to keep", paragraphs=(text,), code=tuple(lines))


def _reproduce(state: State) -> Section:
    attempt = state.attempt
    if attempt is None:
        return Section(title="Reproduce")
    text = (
        f"Attempt {attempt.attempt} by hand, without wtrain (settings made inside the process "
        "by wtrain are not part of it), then under wtrain with the same settings:"
    )
    lines = (facts.by_hand(attempt.plan, state.cwd), facts.run_again(state))
    return Section(title="Reproduce", paragraphs=(text,), code=lines)


def report_text(page: Page, *, paint: Paint = PLAIN, width: int | None = 100) -> str:
    """The report, without a newline at its end."""
    style: Style = "good" if page.good else "warn"
    lines = [paint(page.title, "strong"), ""]
    lines += [paint(line, style) for line in words.wrap(page.verdict, width)]
    for section in page.sections:
        lines += ["", paint(section.title, "strong")]
        lines += _text_section(section, width)
    return "\n".join(lines)


def _text_section(section: Section, width: int | None) -> list[str]:
    room = None if width is None else width - 2
    lines = [f"  {line}" for text in section.paragraphs for line in words.wrap(text, room)]
    header = [section.header] if section.header else []
    lines += [f"  {line}" for line in _columns([*header, *section.rows], room)]
    return lines + [f"    {line}" for line in section.code]


def _columns(rows: list[tuple[str, ...]], width: int | None) -> Iterator[str]:
    """Lines of a table. The last column is wrapped to the rest of `width`; None: not wrapped."""
    *others, _ = zip(*rows, strict=True) if rows else ((),)
    wide = [min(MAX_COLUMN, max(map(words.display_width, cells))) for cells in others]
    if width is not None:
        # Text columns give way to the last one until the row fits.
        while sum(wide) + 2 * len(wide) > width - 24 and max(wide) > 12:
            wide[wide.index(max(wide))] -= 1
    rest = None if width is None else max(20, width - sum(wide) - 2 * len(wide))
    for row in rows:
        cells = [words.wrap(cell, size) for cell, size in zip(row, [*wide, rest], strict=True)]
        for *left, last in zip_longest(*cells, fillvalue=""):
            yield "  ".join([*map(words.pad, left, wide), last]).rstrip()


def report_html(page: Page) -> str:
    title, style = escape(page.title), Path(__file__).with_name("page.css").read_text("utf-8")
    body = [f'<h1 dir="auto">{title}</h1>']
    kind = "verdict good" if page.good else "verdict"
    body.append(f'<p class="{kind}">{escape(page.verdict)}</p>')
    for section in page.sections:
        body += _html_section(section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Even if something slipped through the escaping, nothing may run or be fetched.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title} - wtrain report</title>\n<style>\n{style}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _html_section(section: Section) -> list[str]:
    title = escape(section.title)
    parts = [f"<section><h2>{title}</h2>"]
    if section.minor:
        first = escape(section.paragraphs[0]) if section.paragraphs else ""
        parts = [f'<details class="section"><summary>{title}: {first}</summary>']
    parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
    if section.header:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
        rows = [_html_row(row, "td") for row in section.rows]
        parts += [f'<div class="wide"><table><tr>{head}</tr>', *rows, "</table></div>"]
    elif section.rows:
        parts += [
            '<table class="facts">',
            *[_html_row(row, "th") for row in section.rows],
            "</table>",
        ]
    parts += [f"<pre>{escape(line)}</pre>" for line in section.code]
    for fold in section.folds:
        lines = escape("\n".join(fold.lines))
        parts.append(
            f"<details><summary>{escape(fold.title)}</summary><pre>{lines}</pre></details>"
        )
    return [*parts, "</details>" if section.minor else "</section>"]


def _html_row(row: tuple[str, ...], first: str) -> str:
    cells = [f"<{first}>{escape(row[0])}</{first}>"]
    cells += [f"<td>{escape(cell)}</td>" for cell in row[1:]]
    return f"<tr>{''.join(cells)}</tr>"
