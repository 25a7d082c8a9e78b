"""The end of an event log, where a new supervisor goes on.

Must not read the whole log: adoption does that once, and a log may have a gigabyte.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from watchdog_train.core.events import AnyEvent
from watchdog_train.store.log_lines import MAX_LINE_BYTES, OtherVersionError, decode_line
from watchdog_train.store.log_reading import (
    MAX_LOG_BYTES,
    SPILL_FILE,
    corrupt,
    other_version,
    read_spill,
    too_large,
)
from watchdog_train.store.places import release_runtime_directory
from watchdog_train.trusted_files import open_read, open_regular


def last_event(path: Path, size: int) -> tuple[int, int, bytes]:
    """Number of the last event, size up to the end of its line, and what is torn after it.

    Raises:
        WtrainError: the last whole line is no event.
    """
    if size > MAX_LOG_BYTES:
        raise too_large(path, size)
    with open_read(path) as file:
        file.seek(max(0, size - 2 * MAX_LINE_BYTES))
        tail = file.read(2 * MAX_LINE_BYTES)
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline:
        if size > len(torn):
            raise corrupt(path, None, f"its last line is longer than {MAX_LINE_BYTES} bytes")
        return 0, 0, torn
    try:
        last = decode_line(whole.rpartition(b"\n")[2])
    except OtherVersionError as error:
        raise other_version(str(path), error) from error
    except ValueError as error:
        raise corrupt(path, None, f"its last whole line is no event: {error}") from error
    return last.seq, size - len(torn), torn


def keep_torn(path: Path, torn: bytes) -> None:
    """Move a torn line aside, as evidence of where the supervisor was killed."""
    # On a full disk the copy fails; the caller still holds the bytes, and reports them.
    with contextlib.suppress(OSError):
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                fresh = path.with_name(f"{path.name}.torn-{number}")
                fd = open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(fd, "wb") as file:
                    file.write(torn)
                return


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
