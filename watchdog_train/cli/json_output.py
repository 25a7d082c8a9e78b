"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from watchdog_train.report.why_text import with_text


def print_json(data: Any) -> None:
    """Write a document, indented; structs become objects, NaN becomes null."""
    text = msgspec.json.format(msgspec.json.encode(with_text(data)), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
