"""Output of every command: text for the terminal and its colours, or one JSON document."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

import click
import msgspec

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


SCHEMA_VERSION = 1


def json_text(**fields: Any) -> str:
    """A document, indented; structs become objects, NaN becomes null."""
    from watchdog_train.report.why_text import with_text  # not for text on the terminal

    data = with_text({"schema_version": SCHEMA_VERSION, **fields})
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
    # What a terminal obeys stands only in strings.
    return re.sub(
        r"[^\n -~]", lambda one: one[0] if one[0].isprintable() else _escaped(one[0]), text
    )


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def print_json(**fields: Any) -> None:
    sys.stdout.buffer.write(json_text(**fields).encode())
    sys.stdout.buffer.flush()
