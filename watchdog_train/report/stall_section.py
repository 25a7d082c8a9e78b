"""The section of one stall, crash or dump in the morning report. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from itertools import pairwise

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.fold.state import StallRecord, State
from watchdog_train.report import words
from watchdog_train.report.explanation_text import (
    because,
    crash_words,
    more_sentences,
    what_happened,
)
from watchdog_train.report.facts import origin_words
from watchdog_train.report.places_text import place_lines, place_sentences
from watchdog_train.report.sections import Fold, Section
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time

MOST_PLACE_LINES = 400


def stall_section(
    stall: StallRecord,
    state: State,
    zone: tzinfo | None,
    *,
    stacks: tuple[str, ...] = (),
    minor: bool = False,
) -> Section:
    """What was caught, why, where, and what followed.

    Args:
        stall: the bundle's record.
        state: of the run.
        zone: for times of day.
        stacks: the grouped stacks of its bundle, in lines.
        minor: it is none of the newest.
    """
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
        if stall.crash is None and (found.root is not None or found.knot):
            told = [clean(line, 1000) for line in (what_happened(found), *more_sentences(found))]
        if stall.crash is None or found.because is not None:
            rows.append(("cause", clean(because(found), 1000) or "not known"))
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
    rows += _follows(stall, state)
    return Section(
        title=f"{what} {clean(stall.id, 40)}",
        paragraphs=tuple(told),
        rows=tuple(row for row in rows if row[1]),
        folds=tuple(_folds(stall, state, stacks)),
        minor=minor,
    )


def _follows(stall: StallRecord, state: State) -> list[tuple[str, str]]:
    """What the next attempt did otherwise."""
    for before, after in pairwise(state.attempts):
        if stall.id not in (before.stall_id, before.crash_id):
            continue
        known = {use.id for use in before.plan.remedies}
        new = [clean(use.id, 60) for use in after.plan.remedies if use.id not in known]
        changed = f"with {words.listed(new)}" if new else "with the same settings"
        return [("then", f"attempt {after.attempt} {origin_words(after.plan)}, {changed}")]
    return []


def _folds(stall: StallRecord, state: State, stacks: tuple[str, ...]) -> Iterator[Fold]:
    if stacks:
        yield Fold(title="Stacks, grouped", lines=stacks)
    if stall.crash is not None and stall.crash.exception is not None:
        yield Fold(title="End of the traceback", lines=traceback_lines(stall.crash.exception))
    attempt = next((one for one in state.attempts if one.attempt == stall.attempt), None)
    if stall.places and attempt is not None:
        lines = place_lines(stall.places, stall.places_mono, attempt.launching_mono)
        yield Fold(title="Milestones of each rank", lines=lines[:MOST_PLACE_LINES])
