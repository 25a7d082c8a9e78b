"""Reads a file that a keeper writes and rotates, from where the last read ended."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from watchdog_train.trusted_files import open_regular

READ_BYTES = 256 * 1024
MOST_FILES = 4
"""Held open while somebody reads too slowly: a file in use keeps its room on the disk."""


class Tail:
    """Reads a capture file from where it last stopped, across its rotation.

    A file that is rotated away is kept open until it has been read; only of a reader that is
    several files behind the oldest is given up, and counted. Behind a gate none is: the keeper
    rotates no file away that has not been begun here, so it is at most two files ahead.
    """

    def __init__(self, path: Path, *, from_end: bool, gate: int = -1) -> None:
        """`gate`: a pipe to the keeper's; it is closed with the tail."""
        self.path = path
        self._gate = gate
        self._open_gate()  # nothing is rotated away when the second file is begun
        self._rotated = path.with_name(path.name + ".1")
        self._files: deque[int] = deque()
        self._from_end = from_end
        self._skipped_bytes = 0

    def look(self) -> None:
        """Take hold of files that were begun since; to be called more often than they rotate."""
        with suppress(OSError):
            self._take_hold()
        while len(self._files) > MOST_FILES:
            oldest = self._files.popleft()
            self._skipped_bytes += os.fstat(oldest).st_size - os.lseek(oldest, 0, os.SEEK_CUR)
            os.close(oldest)

    @property
    def has_begun(self) -> bool:
        """Whether there was a file."""
        return bool(self._files)

    @property
    def holds_back(self) -> bool:
        """Whether the keeper can begin no further file before the present one has been read."""
        return self._gate >= 0 and len(self._files) > 2

    def read(self, limit_bytes: int) -> bytes:
        """The next bytes, empty when there are none now."""
        if limit_bytes <= 0:
            return b""
        if not self._files:
            self.look()
        with suppress(OSError):
            while self._files:
                data = os.read(self._files[0], min(limit_bytes, READ_BYTES))
                if data:
                    return data
                if len(self._files) == 1:
                    self.look()
                if len(self._files) == 1:
                    return b""
                # Bytes may have been added before the next file was begun; it is final now.
                data = os.read(self._files[0], min(limit_bytes, READ_BYTES))
                if data:
                    return data
                os.close(self._files.popleft())
                self._open_gate()
        return b""

    def skipped_bytes(self) -> int:
        """What was given up since the last call."""
        skipped, self._skipped_bytes = self._skipped_bytes, 0
        return skipped

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.popleft())
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def _open_gate(self) -> None:
        with suppress(OSError):  # the keeper has ended
            if self._gate >= 0:
                os.write(self._gate, b".")

    def _take_hold(self) -> None:
        known = os.fstat(self._files[-1]) if self._files else None
        newest = open_regular(self.path)
        if known is not None and os.path.samestat(known, os.fstat(newest)):
            os.close(newest)
            return
        if self._from_end:
            os.lseek(newest, 0, os.SEEK_END)
            self._from_end = False
        else:
            self._take_hold_of_rotated(known, os.fstat(newest))
        self._files.append(newest)
        if known is None:
            self._open_gate()

    def _take_hold_of_rotated(self, known: os.stat_result | None, newest: os.stat_result) -> None:
        """Rotated since: what follows the known file, or is the first, is the rotated one."""
        with suppress(OSError):
            between = open_regular(self._rotated)
            rotated = os.fstat(between)
            if any(os.path.samestat(rotated, one) for one in (known, newest) if one is not None):
                os.close(between)
            else:
                self._files.append(between)
