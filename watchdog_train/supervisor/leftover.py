"""One thing that a run has left behind, and what every search for such things needs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from watchdog_train.core.model import ProcessId, Value

Kind = Literal["process", "training", "slots", "memory", "lock", "entry", "run"]

FRESH_S = 60.0
"""What was made so recently may belong to a run that is being started."""
_FILES_COUNTED = 20_000


class Leftover(Value):
    """One thing, and why it is held to be left over."""

    kind: Kind
    what: str
    """A path, a name in shared memory, or `pid N`."""
    why: str
    bytes: int | None = None
    removable: bool = True
    """False: listed only; the reason says what a person can do."""
    process: ProcessId | None = None


def names_in(path: Path) -> list[str]:
    """Sorted; none of what cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def size_bytes(path: Path) -> int:
    """Of the files below it, as far as they are counted."""
    total = count = 0
    for directory, _, files in os.walk(path):
        for name in files:
            count += 1
            if count > _FILES_COUNTED:
                return total
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total
