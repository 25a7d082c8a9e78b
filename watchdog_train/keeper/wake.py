"""Tells a waiting supervisor, if there is one, that something happened. Must never block."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress


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
        if self._fd is not None and select.select([], [self._fd], [], 0)[1]:
            self._write(b"\n")

    def tell_exit(self, code: int | None, signal: int | None) -> None:
        """How the training's root has ended: for a run directory that takes no exit.json."""
        numbers = (-1 if code is None else code, -1 if signal is None else signal)
        self._write(b"exit %d %d\n" % numbers)

    def _write(self, data: bytes) -> None:
        if self._fd is not None:
            with suppress(OSError):  # broken: nobody waits
                os.write(self._fd, data)
