"""Tells a waiting supervisor, if there is one, that something happened. Must never block."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from collections.abc import Collection

_SELECT_KNOWS = 1024


def ready(
    reads: Collection[int], writes: Collection[int] = (), timeout_s: float | None = None
) -> list[int]:
    """Which of these can be read, or written; waits for the first one."""
    if sys.platform == "win32" or max((*reads, *writes), default=0) < _SELECT_KNOWS:
        can_read, can_write, _ = select.select(reads, writes, [], timeout_s)
        return [*can_read, *can_write]
    poll = select.poll()  # not always: that of macOS does not know terminals
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
        """There is something to read somewhere; nothing is added to a pipe that nobody empties.

        A pipe counts as full when its last page is begun: the rest of that page is the exit's.
        """
        if self._fd is not None and ready((), (self._fd,), 0):
            self._write(b"\n")

    def tell_exit(self, code: int | None, signal: int | None) -> None:
        """How the training's root has ended: for a run directory that takes no exit.json."""
        numbers = (-1 if code is None else code, -1 if signal is None else signal)
        self._write(b"exit %d %d\n" % numbers)

    def _write(self, data: bytes) -> None:
        if self._fd is not None:
            with suppress(OSError):  # broken: nobody waits
                os.write(self._fd, data)
