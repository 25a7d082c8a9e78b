"""Puts a kept night into the documentation: its table and its messages."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "overnight.md"
COLUMNS = 98
FIRST, LAST = 5, 2
"""Lines of messages that are shown; the rest are of the same kinds."""


def record(kept: Path) -> None:
    """From what `--keep` has left: table.md, messages.json."""
    _put(PAGE, "night", (kept / "table.md").read_text("utf-8").strip())
    _put(PAGE, "messages", f"```text\n{_messages(kept)}\n```")


def _put(page: Path, name: str, text: str) -> None:
    page.write_text(replaced(page.read_text("utf-8"), name, text), "utf-8")


def replaced(page: str, name: str, text: str) -> str:
    """The page with one of its marked parts replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, found, rest = page.partition(begin)
    assert found, f"the page has no part {name}"
    return f"{head}{begin}{text}\n{end}{rest.partition(end)[2]}"


def _messages(kept: Path) -> str:
    told = json.loads((kept / "messages.json").read_bytes())
    lines = [line for one in told if one["channel"] == "/plain" for line in one["text"].split("\n")]
    shown = [*lines[:FIRST], "...", *lines[-LAST:]]
    return "\n".join(
        part
        for line in shown
        for part in textwrap.wrap(
            re.sub(r"/\S*/(wtrain-runs/)", r"/home/mia/\1", line),
            COLUMNS, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip
