"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from watchdog_train.report.why_text import with_text

SCHEMA_VERSION = 1


def json_text(**fields: Any) -> str:
    """A document, indented; structs become objects, NaN becomes null."""
    data = with_text({"schema_version": SCHEMA_VERSION, **fields})
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
    # What a terminal obeys stands only in strings.
    return re.sub(
        r"[^\n -~]", lambda one: one[0] if one[0].isprintable() else _escaped(one[0]), text
    )


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def print_json(**fields: Any) -> None:
    """Write it to stdout."""
    sys.stdout.buffer.write(json_text(**fields).encode())
    sys.stdout.buffer.flush()
