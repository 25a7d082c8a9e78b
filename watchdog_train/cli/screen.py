"""What the terminal can show: its width, and whether it wants colours."""

from __future__ import annotations

import os
import shutil
import sys

from watchdog_train.report.words import Paint


def paint_for_stdout() -> Paint:
    """Colours by the usual rules: NO_COLOR wins, FORCE_COLOR next, else a capable terminal."""
    if os.environ.get("NO_COLOR"):
        return Paint(enabled=False)
    forced = os.environ.get("FORCE_COLOR")
    if forced:
        return Paint(enabled=forced != "0")
    capable = os.environ.get("TERM", "") not in ("dumb", "")
    return Paint(enabled=capable and sys.stdout.isatty())


def width_of_stdout() -> int | None:
    """Columns of the terminal; None for a pipe or a file, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size((80, 24)).columns
