"""trace.jsonl on disk: appended by the log's writer thread, capped, read back line by line.

A trace is a convenience: it must never make the loop wait, and never cost the event log anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from watchdog_train.core.traces.trace import header_line
from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import open_read, open_regular, rename

LINE_BYTES = 1 << 20
"""A longer line is no sample of ours; 4,096 ranks take a quarter of it."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def older_part(path: Path) -> Path:
    """Where the older half of a long trace is."""
    return path.with_name(path.name + ".1")


CAP_BYTES = 32 * 1024 * 1024
"""Some days of samples."""


class TraceFile:
    """Writes a run's trace; `append` is called by the loop, the writing is done elsewhere.

    `beside` runs a function on the thread that writes to the run directory; False when it has too
    much to do already. The cap counts the older part, too.
    """

    def __init__(
        self,
        path: Path,
        *,
        poll_s: float,
        cap_bytes: int = CAP_BYTES,
        beside: Callable[[Callable[[], None]], bool],
    ) -> None:
        self.trouble: str | None = None
        """Why samples are missing; None when none are."""
        self._path = path
        self._header = header_line(poll_s)
        self._part_bytes = cap_bytes // 2
        self._beside = beside
        self._fd = -1
        self._bytes = 0

    def append(self, line: bytes) -> None:
        """Have a line written, some time; never waits."""
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
            if self._fd < 0:
                self._open()
            elif self._bytes + len(line) > self._part_bytes:
                self._turn_over()
            written = os.write(self._fd, line)
            self._bytes += written
            trouble = None if written == len(line) else "no space left on device"
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble is not None:
            self.close()
            self.trouble = trouble

    def _open(self) -> None:
        """Go on where a supervisor before has stopped, on a line of our own."""
        self._fd = open_regular(self._path, _FLAGS)
        self._bytes = os.fstat(self._fd).st_size
        if self._bytes == 0:
            self._bytes += os.write(self._fd, self._header)
        elif not _ends_with_newline(self._path):
            self._bytes += os.write(self._fd, b"\n")

    def _turn_over(self) -> None:
        """The present part becomes the older one; the older one before it goes."""
        self.close()
        rename(self._path, older_part(self._path))
        self._open()


def _ends_with_newline(path: Path) -> bool:
    with open_read(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def trace_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines of a trace without their newlines, and whether each is cut off at the end.

    A run's older part comes first. Memory does not grow with the file: a line of more than 1 MiB
    comes as an empty cut-off one, which no reader takes for a sample.

    Raises:
        WtrainError: it is not there, or cannot be read.
    """
    parts = [part for part in (older_part(path),) if part.is_file()]
    try:
        for part in (*parts, path):
            yield from _lines(part)
    except OSError as error:
        raise WtrainError(
            f"the trace cannot be read: {error.strerror or error}",
            context=str(path),
            reference="trace-unreadable",
        ) from error


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    with open_read(path) as file:
        while line := file.readline(LINE_BYTES):
            if line.endswith(b"\n"):
                yield line[:-1], False
                continue
            rest = len(line) == LINE_BYTES
            while rest and (more := file.readline(LINE_BYTES)):
                line, rest = b"", not more.endswith(b"\n")
            yield line, True
