"""Whether the run directory can take the files of the next attempt, tried by writing there."""

from __future__ import annotations

from pathlib import Path

from watchdog_train.store.run_directory import refuse_full

LOOK_S = 1.0
"""Between two tries: each writes."""


class Room:
    """What the last try said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = -LOOK_S
        self._lacking: str | None = None

    def lacking(self, now: float) -> str | None:
        """Why nothing can be written there; None when it can."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            try:
                refuse_full(self._path)
                self._lacking = None
            except OSError as error:
                self._lacking = error.strerror or str(error)
        return self._lacking
