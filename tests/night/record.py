"""Puts a kept night into the documentation: its table, its messages, two pictures of its report."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "overnight.md"
PICTURES = REPOSITORY / "docs" / "pictures"
SHOWN = {"desktop.png": "night-desktop.png", "phone-dark.png": "night-phone.png"}
README = REPOSITORY / "README.md"
COMMAND = "scripts/night --keep DIR --record"
WIDE = "![Verdict, timeline of the attempts, steps over time](pictures/night-desktop.png)"
PHONE = "![The same on a phone, dark](pictures/night-phone.png)"
COLUMNS = 98
FIRST, LAST = 5, 2
"""Lines of messages that are shown; the rest are of the same kinds."""


def record(kept: Path) -> None:
    """From what `--keep` has left: table.md, messages.json, pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, shown in SHOWN.items():
        shutil.copyfile(kept / "pictures" / name, PICTURES / shown)
    table = (kept / "table.md").read_text("utf-8").strip()
    _put(
        PAGE,
        "night",
        f"{table}\n\nIts report, as `{COMMAND}` has pictured it:\n\n{WIDE}\n\n{PHONE}",
    )
    _put(PAGE, "messages", f"```text\n{_messages(kept)}\n```")
    link = f"The report of a [played night](docs/overnight.md#a-night-played), by `{COMMAND}`:"
    _put(README, "picture", f"{link}\n\n{WIDE.replace('(pictures', '(docs/pictures')}")


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
