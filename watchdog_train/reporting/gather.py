"""What the report of a run is made from: its events and its bundles.

Everything but the event log may be missing or broken: the report then says less.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from watchdog_train.core.diagnosis.places import groups
from watchdog_train.core.events import AnyEvent
from watchdog_train.core.fold.state import StallRecord
from watchdog_train.evidence.bundle import Bundle
from watchdog_train.evidence.redact import redact_argv, redact_text
from watchdog_train.evidence.text.bring import read_whole
from watchdog_train.remedies.catalogue import script_lines
from watchdog_train.report.document import report_document
from watchdog_train.report.evidence_text import group_text
from watchdog_train.report.facts import ScriptLines, without_secrets
from watchdog_train.report.history import History, history
from watchdog_train.report.sections import Document
from watchdog_train.report.words import clean
from watchdog_train.store.run_paths import RunDirectory

BUNDLES = 50
BUNDLES_WITHIN_S = 10.0
STACK_LINES = 80
STACK_COLUMNS = 240
FRAMES = 12


class Report(NamedTuple):
    """A run, ready to be rendered in any form."""

    history: History
    script_lines: ScriptLines
    document: Document


def gather(
    run: RunDirectory,
    events: Iterable[AnyEvent],
    *,
    secrets: bool = True,
    run_dir: str | None = None,
) -> Report:
    """Read what lies beside the log, and put the report together.

    Args:
        run: whose files are read.
        events: of its log.
        secrets: they still hold command lines with secrets.
        run_dir: where it is now, if it has been moved.
    """
    told = history(without_secrets(events, redact_argv) if secrets else events)
    if run_dir is not None and run_dir != told.state.run_dir:
        state = msgspec.structs.replace(told.state, run_dir=run_dir)
        told = msgspec.structs.replace(told, state=state)
    lines = script_lines()
    document = report_document(told, lines, stacks=_stacks(run, told.state.stalls))
    return Report(history=told, script_lines=lines, document=document)


def _stacks(run: RunDirectory, stalls: tuple[StallRecord, ...]) -> dict[str, tuple[str, ...]]:
    until = time.monotonic() + BUNDLES_WITHIN_S
    found = {}
    for stall in stalls[-BUNDLES:][::-1]:
        if stall.dir is None or not stall.collected or time.monotonic() > until:
            continue
        # What the run directory refused is where the log says; a copied run has it inside.
        bundle = read_whole(run.stall(Path(stall.dir).name)) or read_whole(Path(stall.dir))
        if bundle is not None:
            found[stall.id] = stack_lines(bundle)
    return found


def stack_lines(bundle: Bundle) -> tuple[str, ...]:
    """The grouped stacks of a bundle, the odd one first, with a bound."""
    text = group_text(groups(bundle.evidence, bundle.explanation), frames=FRAMES)
    lines = text.split("\n")
    while lines and not lines[-1]:
        lines.pop()
    shown = [_line(line) for line in lines[:STACK_LINES]]
    if len(lines) > STACK_LINES:
        more = len(lines) - STACK_LINES
        shown.append(f"and {more} more lines: wtrain show {clean(bundle.verdict.id, 40)} --all")
    return tuple(shown)


def _line(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return indent[:8] + clean(redact_text(line[:2000]), STACK_COLUMNS)
