"""What the terminal can show: its width, and whether it wants colours."""

from __future__ import annotations

import os
import shutil
import sys

import click

from watchdog_train.report.words import PLAIN, Paint, safe


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


def echo(text: str = "", *, err: bool = False, nl: bool = True, paint: Paint = PLAIN) -> None:
    """Print text that may hold what others have written; every command prints by this function."""
    text = safe(text, "styles" if paint.enabled else "lines")
    click.echo(text, err=err, nl=nl, color=paint.enabled)  # noqa: TID251
