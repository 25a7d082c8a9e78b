"""Write report.html into a run directory; the only file that this room writes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from watchdog_train.core.events import AnyEvent
from watchdog_train.report.document import report_document
from watchdog_train.report.facts import Redact, ScriptLines, without_secrets
from watchdog_train.report.history import history
from watchdog_train.report.report_html import report_html

REPORT_FILE = "report.html"


def write_report(
    run_dir: Path, events: Iterable[AnyEvent], script_lines: ScriptLines, redact: Redact
) -> Path:
    """Write the page and return its path.

    Args:
        run_dir: the run directory.
        events: its log so far.
        script_lines: remedy id -> line for the training script, from the catalogue.
        redact: takes secrets out of a command line (evidence.redact.redact_argv).

    Raises:
        OSError: the directory cannot be written; the caller says so and goes on.
    """
    document = report_document(history(without_secrets(events, redact)), script_lines)
    return write_page(run_dir / REPORT_FILE, report_html(document))


def write_page(target: Path, text: str) -> Path:
    """Replace a file as a whole, readable by its owner alone."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        fresh.replace(target)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return target
