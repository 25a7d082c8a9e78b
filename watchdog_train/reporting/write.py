"""Write report.html of a run: at once as a plain page, or whole, in a process of its own.

`python -m watchdog_train.reporting.write RUN-DIRECTORY` is that process; it answers with its exit
code and one line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from watchdog_train.core.events import AnyEvent
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.report.document import report_document
from watchdog_train.report.facts import ScriptLines, without_secrets
from watchdog_train.report.history import history
from watchdog_train.report.sections import report_html
from watchdog_train.whole_files import replace_whole

REPORT_FILE = "report.html"
WITHIN_S = 20.0
"""For the whole page; the one of the log alone stays where it is not written in time."""


def write_plain(run_dir: Path, events: Iterable[AnyEvent], script_lines: ScriptLines) -> Path:
    """Write the page that needs no file but the log's events; milliseconds.

    Raises:
        OSError: the directory cannot be written; the caller says so and goes on.
    """
    document = report_document(history(without_secrets(events, redact_argv)), script_lines)
    return write_page(run_dir / REPORT_FILE, report_html(document))


def write_whole(run_dir: Path) -> Path:
    """Write the page with stacks.

    Raises:
        OSError: the directory cannot be written.
        WtrainError: the log cannot be read.
    """
    from watchdog_train.reporting.gather import gather
    from watchdog_train.store.log_reading import read_events
    from watchdog_train.store.run_paths import RunDirectory

    run = RunDirectory(run_dir)
    events = read_events(run.events, strict=False, spill_dir=run.spill_dir).events
    return write_page(run_dir / REPORT_FILE, report_html(gather(run, events).document))


def write_page(target: Path, text: str) -> Path:
    """Replace a file as a whole, readable by its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    replace_whole(target, text.encode("utf-8", errors="replace"))
    return target


def main(argv: list[str]) -> int:
    """Write the whole page of the run directory that is named."""
    from watchdog_train.errors import WtrainError

    try:
        write_whole(Path(argv[0]))
    except (OSError, WtrainError, IndexError) as error:
        print(f"the report could not be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
