"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from watchdog_train.report.why_text import with_text

SCHEMA_VERSION = 1


def json_text(**fields: Any) -> str:
    """A document, indented; structs become objects, NaN becomes null."""
    data = with_text({"schema_version": SCHEMA_VERSION, **fields})
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def print_json(**fields: Any) -> None:
    """Write it to stdout."""
    sys.stdout.buffer.write(json_text(**fields).encode())
    sys.stdout.buffer.flush()
