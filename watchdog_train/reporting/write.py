"""Write report.html of a run: at once as a plain page, or whole, in a process of its own.

`python -m watchdog_train.reporting.write RUN-DIRECTORY` is that process; it answers with its exit
code and one line on stderr.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from watchdog_train.core.events import AnyEvent
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.report.document import report_document
from watchdog_train.report.facts import ScriptLines, without_secrets
from watchdog_train.report.history import history
from watchdog_train.report.report_html import report_html
from watchdog_train.whole_files import replace_whole

if TYPE_CHECKING:
    from watchdog_train.reporting.gather import Report

REPORT_FILE = "report.html"
SCRIPT_FILE = "plotly.min.js"
WITHIN_S = 20.0
"""For the whole page; the plain one stays where it is not written in time."""


def write_plain(run_dir: Path, events: Iterable[AnyEvent], script_lines: ScriptLines) -> Path:
    """Write the page that needs no library and no file but the log's events; milliseconds.

    Raises:
        OSError: the directory cannot be written; the caller says so and goes on.
    """
    document = report_document(history(without_secrets(events, redact_argv)), script_lines)
    return write_page(run_dir / REPORT_FILE, report_html(document))


def write_whole(run_dir: Path) -> Path:
    """Write the page with timeline, charts and stacks; plotly's script goes beside it, once.

    Raises:
        OSError: the directory cannot be written.
        WtrainError: the log cannot be read.
    """
    from watchdog_train.reporting.gather import gather
    from watchdog_train.store.log_reading import read_events
    from watchdog_train.store.run_paths import RunDirectory

    run = RunDirectory(run_dir)
    events = read_events(run.events, strict=False, spill_dir=run.spill_dir).events
    report = gather(run, events)
    beside = has_charts(report) and _put_script(run_dir)
    return write_page(run_dir / REPORT_FILE, page_text(report, script_beside=beside))


def has_charts(report: Report) -> bool:
    """Whether anything was recorded that is drawn."""
    from watchdog_train.report.charts import charts

    return bool(charts(report.history.state, report.found.series))


def page_text(report: Report, *, script: str | None = None, script_beside: bool = False) -> str:
    """The page; a plain one where jinja2 is missing."""
    import watchdog_train

    try:
        from watchdog_train.report.page import page

        return page(
            report.document,
            report.history,
            report.found,
            nonce=os.urandom(16).hex(),
            version=watchdog_train.__version__,
            script=script,
            script_beside=script_beside,
        )
    except ImportError:
        return report_html(report.document)


def plotly_script() -> Path | None:
    """The script that the package plotly brings; found without importing it, which is slow."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("plotly")
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).parent / "package_data" / SCRIPT_FILE
            return path if path.is_file() else None
    return None


def _put_script(run_dir: Path) -> bool:
    source = plotly_script()
    if source is None:
        return False
    target = run_dir / SCRIPT_FILE
    with suppress(OSError):
        if target.stat().st_size == source.stat().st_size:
            return True
    try:
        replace_whole(target, source.read_bytes())
    except OSError:
        # A full disk takes the small page and not the script: the page says what it lacks.
        return False
    return True


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
