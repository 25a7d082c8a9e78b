"""A file that keeps the newest of what is written to it.

It must never raise: a disk that refuses is an answer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from watchdog_train.keeper.messages import ready

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
for _name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"):  # a FIFO in place of the file blocks nobody
    _FLAGS |= getattr(os, _name, 0)
TIMES = ".times"
TIMES_EVERY_S = 10.0
TRACEBACKS_EVERY_S = 0.2
TRACEBACK = b"Traceback (most recent call last)"
TIMES_CAP_BYTES = 8 * 1024 * 1024  # a month of output without a pause of ten seconds


GATE_LOOK_S = 0.2


class Gate:
    """Lets a file rotate as fast as somebody reads it: each rotation takes a byte of theirs.

    At the end of the pipe nobody reads any more, and nothing is held back.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self.is_waiting = False
        self.is_over = False  # nobody is left who could write: the rest goes into the same file

    def wait(self) -> bool:
        """Whether the file may rotate, as soon as that can be said."""
        while self._fd is not None:
            self.is_waiting = not self.is_over
            opened = ready((self._fd,), (), GATE_LOOK_S if self.is_waiting else 0)
            if opened or not self.is_waiting:
                self.is_waiting = False
                return bool(opened)
        return True

    def rotated(self) -> None:
        """Take the byte, after all went well."""
        if self._fd is not None and not os.read(self._fd, 1):
            self._fd = None


class CappedFile:
    """Appended to; when half of its cap is full that half is renamed to `.1`.

    Beside it `.times` tells when what was written: lines of Unix seconds and the size until then,
    every ten seconds and at each traceback.
    """

    def __init__(self, path: str, cap_bytes: int, gate: Gate | None = None) -> None:
        self.path = path
        self.gate = gate or Gate()
        self.half_bytes = max(cap_bytes // 2, 1)
        self._fd = -1
        self._size_bytes = 0
        self._timed_at = -TIMES_EVERY_S

    def append(self, data: bytes) -> int:
        """How many bytes the file took; -1 when it refused."""
        try:
            is_full = self._size_bytes > 0 and self._size_bytes + len(data) > self.half_bytes
            if is_full and self.gate.wait():
                self.close()
                os.replace(self.path, self.path + ".1")
                self.gate.rotated()
                self._rotate_times()
            if self._fd < 0:
                self._open()
            self._note_time(TRACEBACK in data)
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

    def _rotate_times(self) -> None:
        self._timed_at = -TIMES_EVERY_S
        with suppress(OSError):
            os.replace(self.path + TIMES, self.path + ".1" + TIMES)

    def _note_time(self, soon: bool) -> None:
        """Only a convenience for readers: what the disk refuses of it is not missed."""
        now = time.monotonic()
        if now - self._timed_at < (TRACEBACKS_EVERY_S if soon else TIMES_EVERY_S):
            return
        self._timed_at = now
        with suppress(OSError):
            fd = os.open(self.path + TIMES, _FLAGS, 0o600)
            try:
                if os.fstat(fd).st_size < TIMES_CAP_BYTES:
                    os.write(fd, b"%.2f %d\n" % (time.time(), self._size_bytes))
            finally:
                os.close(fd)

    def _open(self) -> None:
        self._fd = os.open(self.path, _FLAGS, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size
