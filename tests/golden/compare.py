"""Compare a text with its recorded form; UPDATE_GOLDEN=1 records it anew, for review in a diff."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent


def assert_golden(name: str, text: str) -> None:
    """Fail unless `text` is what the golden file holds."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{name} is missing: record it with UPDATE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_GOLDEN=1 records it"
