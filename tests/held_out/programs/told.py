"""What a program of this set tells its runner; the only part that no user would write."""

from __future__ import annotations

import os
from pathlib import Path

FACTS = Path("facts")


def planted(fault: str) -> bool:
    """Whether the case plants this fault."""
    return os.environ.get("PLANTED") == fault


def note(name: str, value: object) -> None:
    """Writes a fact for the runner: a pid, or that a place has been reached."""
    FACTS.mkdir(exist_ok=True)
    part = FACTS / f".{name}.{os.getpid()}"
    part.write_text(str(value), encoding="utf-8")
    part.replace(FACTS / name)


def note_start() -> None:
    """Counts the attempts: one line for each start of rank 0."""
    if os.environ.get("RANK", "0") == "0":
        with Path("starts").open("a", encoding="utf-8") as starts:
            starts.write(f"{os.getpid()}\n")
