"""JSON for programs: data on stdout, one document, nothing else there."""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def print_json(data: Any) -> None:
    """Write a document, indented; msgspec structs become objects, NaN becomes null."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
