"""Messages of a keeper: small files on the process and its exit, and wake-ups by a pipe.

The files must be published completely or never, and must not delay the keeper without a limit.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

PATIENCE_S = 60.0  # with a disk that refuses a record; then the training continues without it
RECORD_BYTES = 1024


class Record:
    """A small JSON file; its room is allocated first, so that a full disk loses no status."""

    def __init__(self, name: str, draft: str) -> None:
        self.name = name
        self.draft = draft
        self.discard()  # whatever has its name: opening a FIFO would wait
        self._store(b"")

    def fill(self, values: dict[str, Any], patience_s: float = PATIENCE_S) -> bool:
        """Publish it, with retries every second for `patience_s`; False if it was refused."""
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
        """Remove the draft; a published record stays."""
        with suppress(OSError):
            os.unlink(self.draft)

    def _store(self, text: bytes) -> None:
        fd = os.open(self.draft, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, text.ljust(RECORD_BYTES))
        finally:
            os.close(fd)


_SELECT_KNOWS = 1024


def ready(
    reads: Collection[int], writes: Collection[int] = (), timeout_s: float | None = None
) -> list[int]:
    """Which of these can be read, or written; waits for the first one."""
    if sys.platform == "win32" or max((*reads, *writes), default=0) < _SELECT_KNOWS:
        can_read, can_write, _ = select.select(reads, writes, [], timeout_s)
        return [*can_read, *can_write]
    poll = select.poll()  # not always: macOS has one that does not know terminals
    for fd in reads:
        poll.register(fd, select.POLLIN)
    for fd in writes:
        poll.register(fd, select.POLLOUT)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else 1000.0 * timeout_s)]


class Wake:
    """Our end of the wake pipe: a byte for output, a line for the exit."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None and sys.platform != "win32":
            os.set_blocking(fd, False)

    def ring(self) -> None:
        """There is output to read; nothing is added to a full pipe, whose reader does not read.

        A pipe counts as full when its last page is begun: the rest of that page is the exit's.
        """
        if self._fd is not None and ready((), (self._fd,), 0):
            self._write(b"\n")

    def tell_exit(self, code: int | None, signal: int | None) -> None:
        """How the training's root has exited: for a run directory that takes no exit.json."""
        numbers = (-1 if code is None else code, -1 if signal is None else signal)
        self._write(b"exit %d %d\n" % numbers)

    def _write(self, data: bytes) -> None:
        if self._fd is not None:
            with suppress(OSError):  # broken: no reader waits
                os.write(self._fd, data)
