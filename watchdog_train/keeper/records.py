"""The small files in which a keeper says who runs and how it ended.

They must be published whole or not at all, and must not hold the keeper back for ever.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from typing import Any

PATIENCE_S = 60.0  # with a disk that refuses a record; then the training goes on without it
RECORD_BYTES = 1024


class Record:
    """A small JSON file; its room is taken beforehand, so that a full disk loses no status."""

    def __init__(self, name: str, draft: str) -> None:
        self.name = name
        self.draft = draft
        self.discard()  # whatever has its name: opening a FIFO would wait
        self._store(b"")

    def fill(self, values: dict[str, Any], patience_s: float = PATIENCE_S) -> bool:
        """Publish it; a disk that refuses is asked again every second, for so long.

        Returns:
            Whether it is published.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._store(json.dumps(values).encode())
                os.replace(self.draft, self.name)
                break
            except FileNotFoundError:  # the folder was removed: no waiting brings it back
                return False
            except OSError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(1.0)
        return True

    def make_durable(self) -> None:
        """For a power cut; after it was published, because a disk may take its time."""
        with suppress(OSError):
            fd = os.open(self.name, os.O_RDWR)
            os.fsync(fd)
            os.close(fd)

    def discard(self) -> None:
        """It will not be needed."""
        with suppress(OSError):
            os.unlink(self.draft)

    def _store(self, text: bytes) -> None:
        fd = os.open(self.draft, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, text.ljust(RECORD_BYTES))
        finally:
            os.close(fd)
