"""Reads a file that a keeper writes and rotates, from where the last read ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

READ_BYTES = 64 * 1024


class Tail:
    """Reads a capture file from where it last stopped, across its rotation."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self.path = path
        self.rotated = path.with_name(path.name + ".1")
        self.skipped_bytes = 0
        self._fd = -1
        self._from_end = from_end

    def read(self, limit_bytes: int) -> bytes:
        """The next bytes, empty when there are none now."""
        if limit_bytes <= 0:
            return b""
        with suppress(OSError):
            if self._fd < 0 and not self._open():
                return b""
            data = os.read(self._fd, min(limit_bytes, READ_BYTES))
            if data or not self._follow_rotation():
                return data
            return os.read(self._fd, min(limit_bytes, READ_BYTES))
        return b""

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        if not self.path.exists():
            return False
        self._fd = os.open(self.path, os.O_RDONLY)
        if self._from_end:
            os.lseek(self._fd, 0, os.SEEK_END)
        return True

    def _follow_rotation(self) -> bool:
        """At the end of a file: whether the capture goes on in another one, now open."""
        if os.path.samestat(os.fstat(self._fd), self.path.stat()):
            return False
        # Bytes may have been added between our read and the rename; the file is final now.
        ours = os.fstat(self._fd)
        if os.lseek(self._fd, 0, os.SEEK_CUR) < ours.st_size:
            return True
        # Rotated more than once since: then what follows ours begins in the rotated file.
        after = self.path if os.path.samestat(ours, self.rotated.stat()) else self.rotated
        following = os.open(after, os.O_RDONLY)
        os.close(self._fd)
        self._fd = following
        return True
