"""Local memory for events that the disk does not take: a second copy, in case we are killed.

Must not block: its place is memory or a local disk, and nothing here waits for durability.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from watchdog_train.core.events import AnyEvent
from watchdog_train.store.log_reading import SPILL_FILE, read_spill
from watchdog_train.store.places import release_runtime_directory
from watchdog_train.trusted_files import open_regular


class Spill:
    """The spill file of one run; used by the loop's thread only."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._seq = 0
        self.trouble: str | None = None if directory else "there is no private local memory"
        """Why the newest events are in our memory only, None when they are not."""

    @property
    def path(self) -> Path | None:
        """The file, None when there is no place for it."""
        return self._directory / SPILL_FILE if self._directory else None

    def take(self, after: int) -> tuple[tuple[AnyEvent, bytes], ...]:
        """What a killed supervisor left that its log lacks; it stays in the file until drop()."""
        if self._directory is None or self.path is None:
            return ()
        left = read_spill(self._directory, after=after)
        if left:
            self._seq = left[-1][0].seq
        else:
            # What does not follow the log must not stand before lines that will.
            with contextlib.suppress(OSError):
                self.path.replace(self.path.with_suffix(".unused"))
        return left

    def add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Copy the lines that are not in the file yet."""
        fresh = [(seq, data) for seq, data in lines if seq > self._seq]
        if not fresh or self.path is None:
            return
        try:
            fd = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                for seq, data in fresh:
                    before = os.fstat(fd).st_size
                    if os.write(fd, data) != len(data):
                        os.ftruncate(fd, before)
                        self.trouble = "no space left"
                        return
                    self._seq = seq
            finally:
                os.close(fd)
            self.trouble = None
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def drop(self) -> None:
        """Remove the file: the log has everything."""
        if self._seq and self.path is not None:
            with contextlib.suppress(OSError):  # harmless where it stays: readers skip its events
                self.path.unlink(missing_ok=True)
            self._seq = 0

    def remove_place(self) -> None:
        """Remove the directory if nothing is left in it, and the one above if it was the last."""
        if self._directory is not None:
            release_runtime_directory(self._directory, with_content=False)
