"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from watchdog_train.report.why_text import with_text

SCHEMA_VERSION = 1
_NOT_ASCII = re.compile(r"[^\n -~]")


def json_text(**fields: Any) -> str:
    """A document, indented; structs become objects, NaN becomes null."""
    data = with_text({"schema_version": SCHEMA_VERSION, **fields})
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
    return _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """As JSON escapes it: what a terminal obeys stands only in strings."""
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def print_json(**fields: Any) -> None:
    """Write it to stdout."""
    sys.stdout.buffer.write(json_text(**fields).encode())
    sys.stdout.buffer.flush()
