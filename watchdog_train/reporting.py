"""Reads the files of a run, has the report room render them, and writes report.html.

Everything but the event log may be missing or broken: the report then says less. The page is
written at once from the log alone. `python -m watchdog_train.reporting RUN-DIRECTORY` is the
process that writes it with stacks; it answers with its exit code and one line on stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from watchdog_train.core.events import AnyEvent
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.evidence.redact import redact_argv, redact_text
from watchdog_train.report.document import Document
from watchdog_train.report.facts import ScriptLines, without_secrets
from watchdog_train.report.report_text import report_html, report_page
from watchdog_train.report.words import clean
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.whole_files import replace_whole

if TYPE_CHECKING:
    from watchdog_train.evidence.bundle import Bundle


BUNDLES = 50
BUNDLES_WITHIN_S = 10.0
STACK_LINES = 80
STACK_COLUMNS = 240
FRAMES = 12


def gather(run: RunDirectory, events: Iterable[AnyEvent], state: State | None = None) -> Document:
    """A run by its log and its bundles.

    `state`: of these events, if they are without secrets already.
    """
    from watchdog_train.evidence.machines import read_whole
    from watchdog_train.remedies.catalogue import script_lines

    document = plain(events, script_lines(), state)
    until = time.monotonic() + BUNDLES_WITHIN_S
    found = {}
    for stall in document.state.stalls[-BUNDLES:][::-1]:
        if stall.dir is None or not stall.collected or time.monotonic() > until:
            continue
        # What the run directory refused is where the log says; a copied run has it inside.
        bundle = read_whole(run.stall(Path(stall.dir).name)) or read_whole(Path(stall.dir))
        if bundle is not None:
            found[stall.id] = stack_lines(bundle)
    return msgspec.structs.replace(document, stacks=found)


def plain(
    events: Iterable[AnyEvent], script_lines: ScriptLines, state: State | None = None
) -> Document:
    """The same from the log alone."""
    told = tuple(events) if state is not None else tuple(without_secrets(events, redact_argv))
    return Document(state=state or replay(told), events=told, script_lines=script_lines)


def stack_lines(bundle: Bundle) -> tuple[str, ...]:
    """The grouped stacks of a bundle, the odd one first, with a bound."""
    from watchdog_train.core.diagnosis.places import groups
    from watchdog_train.report.evidence_text import group_text

    text = group_text(groups(bundle.evidence, bundle.explanation), frames=FRAMES)
    lines = text.rstrip("\n").split("\n")
    shown = [_line(line) for line in lines[:STACK_LINES]]
    if len(lines) > STACK_LINES:
        more = len(lines) - STACK_LINES
        shown.append(f"and {more} more lines: wtrain show {clean(bundle.verdict.id, 40)} --all")
    return tuple(shown)


def _line(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return indent[:8] + clean(redact_text(line[:2000]), STACK_COLUMNS)


REPORT_FILE = "report.html"
WITHIN_S = 20.0
"""Time limit for the page with stacks; after it the page of the log alone stays."""


def write_plain(run_dir: Path, events: Iterable[AnyEvent], script_lines: ScriptLines) -> Path:
    """Write the page that needs no file but the log's events, in milliseconds.

    OSError: the directory cannot be written; the caller reports it and continues.
    """
    return _write(run_dir, plain(events, script_lines))


def write_whole(run_dir: Path) -> Path:
    """Write the page with stacks.

    OSError: the directory cannot be written. WtrainError: the log cannot be read.
    """
    from watchdog_train.store.log_reading import read_events

    run = RunDirectory(run_dir)
    events = read_events(run.events, strict=False, spill_dir=run.spill_dir).events
    return _write(run_dir, gather(run, events))


def _write(run_dir: Path, document: Document) -> Path:
    text = report_html(report_page(document))
    replace_whole(run_dir / REPORT_FILE, text.encode("utf-8", "replace"))
    return run_dir / REPORT_FILE


def main(argv: list[str]) -> int:
    """Write the page with stacks for the run directory in the first argument."""
    from watchdog_train.errors import WtrainError

    try:
        write_whole(Path(argv[0]))
    except (OSError, WtrainError, IndexError) as error:
        print(f"the report could not be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
