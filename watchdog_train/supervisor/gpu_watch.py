"""The process that looks at the GPUs for us: started, listened to, restarted, given up.

Everything here returns at once. A driver that hangs costs us the GPU signals, and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from signal import SIGTERM

import msgspec

from watchdog_train.core.model.gpu import GpuReading
from watchdog_train.supervisor.children import Child, ChildTable

FIRST_ANSWER_S = 60.0
"""A driver without persistence mode initialises every GPU first, which takes seconds for each."""
ANSWER_S = 15.0
STALE_S = 7.0
"""An older reading says nothing about now."""
RETRY_S = (30.0, 120.0, 600.0)
"""Between a failure and the next try; after as many failures in a row it is given up."""
LINE_CAP_BYTES = 1 << 18
CHILD = "gpu"


class GpuWatch:
    """Listens to one child; `reading` is the newest line that it said."""

    def __init__(self, children: ChildTable, argv: Sequence[str]) -> None:
        self.trouble: str | None = None
        """Why nothing is known of the GPUs any more; None as long as there is hope."""
        self._children = children
        self._argv = tuple(argv)
        self._child: Child | None = None
        self._fd = -1
        self._rest = b""
        self._reading: GpuReading | None = None
        self._heard_at = 0.0
        self._answered = False
        self._failures = 0
        self._retry_at = 0.0

    def reading(self, now: float) -> GpuReading | None:
        """The newest look at all devices; None: unknown."""
        if self.trouble is None:
            self._listen(now)
        if self._reading is None or now - self._heard_at > STALE_S:
            return None
        return self._reading

    def close(self) -> None:
        """End the child, if the driver lets it end."""
        child, self._child = self._child, None
        if child is not None:
            self._children.end(child)
            self._children.system.send_signal(child.identity, SIGTERM)
        self._close_pipe()

    # -- the child ------------------------------------------------------------------------------
    def _listen(self, now: float) -> None:
        if self._fd < 0:
            if now >= self._retry_at and not self._still_there():
                self._start(now)
            elif now >= self._retry_at:
                self._fail(now, "the process that asks the driver cannot be ended")
            return
        if not self._take(now):
            return
        limit_s = ANSWER_S if self._answered else FIRST_ANSWER_S
        if now - self._heard_at > limit_s:
            if self._child is not None:
                self._children.end(self._child)
            self._fail(now, f"the driver has not answered for {limit_s:.0f} s")

    def _still_there(self) -> bool:
        return self._child is not None and self._child in self._children.running()

    def _start(self, now: float) -> None:
        try:
            read_end, write_end = os.pipe()
        except OSError as error:
            self._fail(now, f"no pipe: {error.strerror}")
            return
        try:
            self._child = self._children.spawn(
                self._argv, name=CHILD, deadline_s=None, stdout=write_end
            )
            if sys.platform != "win32":
                os.set_blocking(read_end, False)
        except OSError as error:
            os.close(read_end)
            self._fail(now, f"it cannot be asked: {error.strerror}")
            return
        finally:
            os.close(write_end)
        self._fd, self._rest = read_end, b""
        self._heard_at, self._answered = now, False

    def _take(self, now: float) -> bool:
        """Take what was said; False when the child is gone, or was given up."""
        try:
            data = os.read(self._fd, LINE_CAP_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            data = b""
            self._rest = str(error.strerror).encode()
        if not data:
            self._fail(now, "the process that asks the driver has ended")
            return False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines[-1]
        if len(self._rest) > LINE_CAP_BYTES:
            return self._nonsense(now)
        complete = [line for line in lines[:-1] if line]
        if not complete:
            return True
        try:
            reading = msgspec.json.decode(complete[-1], type=GpuReading)
        except (msgspec.DecodeError, RecursionError):
            return self._nonsense(now)
        if reading.problem is not None:
            self._end_child()
            self.trouble = reading.problem
            return False
        self._reading, self._heard_at = reading, now
        self._answered, self._failures = True, 0
        return True

    def _nonsense(self, now: float) -> bool:
        self._end_child()
        self._fail(now, "the answer could not be read")
        return False

    def _end_child(self) -> None:
        if self._child is not None:
            self._children.end(self._child)
        self._close_pipe()

    def _fail(self, now: float, why: str) -> None:
        self._close_pipe()
        self._reading = None
        if self._failures >= len(RETRY_S):
            self.trouble = f"{why} ({self._failures + 1} tries)"
            return
        self._retry_at = now + RETRY_S[self._failures]
        self._failures += 1

    def _close_pipe(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
