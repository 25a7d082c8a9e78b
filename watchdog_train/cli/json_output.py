"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from watchdog_train.report.why_text import with_text

SCHEMA_VERSION = 1


def print_json(**fields: Any) -> None:
    """Write a document, indented; structs become objects, NaN becomes null."""
    data = with_text({"schema_version": SCHEMA_VERSION, **fields})
    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
