"""A file that keeps the newest of what is written to it.

It must never raise: a disk that refuses is an answer.
"""

from __future__ import annotations

import os
from contextlib import suppress


class CappedFile:
    """Appended to; when half of its cap is full that half is renamed to `.1`."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self.path = path
        self.half_bytes = max(cap_bytes // 2, 1)
        self._fd = -1
        self._size_bytes = 0

    def append(self, data: bytes) -> int:
        """How many bytes the file took; -1 when it refused."""
        try:
            if self._fd >= 0 and self._size_bytes + len(data) > self.half_bytes:
                self.close()
                os.replace(self.path, self.path + ".1")
            if self._fd < 0:
                self._open()
            written = os.write(self._fd, data[: self.half_bytes])
        except OSError:
            self.close()
            return -1
        self._size_bytes += written
        return written

    def open(self) -> None:
        """Before anything is written: who shows the file still has it when its folder is gone."""
        with suppress(OSError):
            self._open()

    def close(self) -> None:
        """The next write opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size
