"""trace.jsonl on disk: appended by the log's writer thread, capped, read back line by line.

A trace must never make the loop wait, and never cost the event log anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import open_read, open_regular, rename

LINE_BYTES = 1 << 20
"""A longer line is not ours; 4,096 ranks take half of it."""
CAP_BYTES = 32 * 1024 * 1024
"""Hours to days of samples."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND


def older_part(path: Path) -> Path:
    return path.with_name(path.name + ".1")


class TraceFile:
    """Writes a run's trace; `append` is called by the loop and does not write itself.

    `beside` runs a function on the thread that writes to the run directory; it returns False when
    too much waits there. The cap counts the older part, too.
    """

    def __init__(
        self,
        path: Path,
        *,
        beside: Callable[[Callable[[], None]], bool],
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        self.trouble: str | None = None
        """Why lines are missing; None when none are."""
        self._path = path
        self._part_bytes = cap_bytes // 2
        self._beside = beside
        self._fd = -1
        self._bytes = 0

    def append(self, line: bytes) -> None:
        """Queue a line; never waits."""
        if not self._beside(lambda: self._write(line)):
            self.trouble = "the disk does not answer"

    def close(self) -> None:
        """After the writer thread has ended."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    # -- the writer thread --------------------------------------------------------------------
    def _write(self, line: bytes) -> None:
        try:
            if self._fd >= 0 and self._bytes + len(line) > self._part_bytes:
                self.close()
                rename(self._path, older_part(self._path))
            if self._fd < 0:
                self._open()
            written = os.write(self._fd, line)
            self._bytes += written
            trouble = None if written == len(line) else "no space left on device"
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble is not None:
            self.close()
            self.trouble = trouble

    def _open(self) -> None:
        """Continue behind what another supervisor has written, on a new line."""
        self._fd = open_regular(self._path, _FLAGS)
        self._bytes = os.fstat(self._fd).st_size
        if self._bytes:
            os.lseek(self._fd, -1, os.SEEK_END)
            if os.read(self._fd, 1) != b"\n":
                self._bytes += os.write(self._fd, b"\n")


def trace_lines(path: Path) -> Iterator[bytes]:
    """The lines of a trace, the older part of the trace first; WtrainError: missing or unreadable.

    Memory does not grow with the file: a line of more than 1 MiB comes in pieces.
    """
    older = older_part(path)
    try:
        for part in (older, path) if older.is_file() else (path,):
            with open_read(part) as file:
                while line := file.readline(LINE_BYTES):
                    yield line
    except OSError as error:
        raise WtrainError(
            f"the trace cannot be read: {error.strerror or error}",
            context=str(path),
            reference="trace-unreadable",
        ) from error
