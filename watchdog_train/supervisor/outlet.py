"""One place to write to, for a caller that must never wait: a short queue, and a thread that may.

It must not change the settings of what it writes to: O_NONBLOCK would be shared with the shell
and with the training's stdin.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from watchdog_train.keeper.wake import ready
from watchdog_train.supervisor.room import start_thread
from watchdog_train.supervisor.terminal import is_terminal

QUEUE_BYTES = 256 * 1024
"""Waiting for a slow terminal; the rest waits in the file, which is the real buffer."""
QUEUE_PIECES = 1000
SAY_PIECES = 2000
"""Our own lines are dropped only when a terminal that takes nothing has so many waiting."""
HELD_BACK_S = 0.5


class Outlet:
    """One place to write to: a queue of limited size and a thread that may block for it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_terminal = is_terminal(fd)
        self.took_at = time.monotonic()
        """When it last took something, or had nothing to take."""
        self.on_room: Callable[[], None] = lambda: None
        """Called by the thread when there is room again for what was refused."""
        self._refused = False
        self.is_dead = False
        self.problem: str | None = None
        """Why nothing more can be written, as on a full disk; None where nobody reads."""
        self.at_line_start = True
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def room_bytes(self) -> int:
        """How much of the training's output it takes now."""
        with self._changed:
            full = len(self._queue) >= QUEUE_PIECES or self._queued_bytes >= QUEUE_BYTES
            self._refused = full
            return 0 if self.is_dead or full else QUEUE_BYTES - self._queued_bytes

    def is_empty(self) -> bool:
        """Whether nothing waits any more."""
        with self._changed:
            return self.is_dead or not self._queued_bytes

    def stop(self) -> None:
        """Nothing more goes here."""
        with self._changed:
            self.is_dead = True
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()

    def put(self, data: bytes, *, stays: bool = True) -> None:
        """Write it when its turn comes.

        Args:
            data: some bytes.
            stays: False for what is erased again, and leaves the line as it was.
        """
        with self._changed:
            if self.is_dead or not data or len(self._queue) >= SAY_PIECES:
                return
            if stays:
                self.at_line_start = data.endswith(b"\n")
            if not self._queue:
                self.took_at = time.monotonic()
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._thread is None:
                self._thread = start_thread(self._write, "display")
            self._changed.notify()

    def wait_empty(self, timeout_s: float) -> None:
        """Until nothing waits, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_dead or not self._queued_bytes, timeout_s)

    def _write(self) -> None:
        if sys.platform != "win32":
            # Between a look at the terminal and a write to it the shell may take it back.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_dead or self._queue)
                while not self.is_dead and _must_wait(self.fd):
                    self._changed.wait(HELD_BACK_S)
                if self.is_dead:
                    return
                data = self._queue[0]
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:  # somebody else has made it so; it is not ours to change
                ready((), (self.fd,), 1.0)
                written = 0
            except OSError as error:  # the reader is gone, or so is the terminal. For good.
                if error.errno not in (errno.EPIPE, errno.EIO):
                    self.problem = error.strerror
                self.stop()
                return
            with self._changed:
                if self.is_dead:
                    return
                self._queued_bytes -= written
                self._queue[0] = data[written:]
                if not self._queue[0]:
                    self._queue.popleft()
                if written:
                    self.took_at = time.monotonic()
                has_room = self._refused and self._queued_bytes <= QUEUE_BYTES // 2
                self._refused = self._refused and not has_room
                self._changed.notify_all()
            if has_room:
                self.on_room()


def in_foreground(fd: int) -> bool:
    """Whether this process is in the group that the terminal listens to.

    False for a job in the background, and for a terminal that is not our controlling one: a
    shell's prompt may be on it.
    """
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        return os.tcgetpgrp(fd) == os.getpgrp()
    return False


def _must_wait(fd: int) -> bool:
    """Whether the user has told this terminal (`stty tostop`) that jobs in the background be still.

    The kernel would stop us for writing, and nobody would watch the training.
    """
    if sys.platform == "win32":
        return False
    import termios

    try:
        if not termios.tcgetattr(fd)[3] & termios.TOSTOP:
            return False
        return os.tcgetpgrp(fd) != os.getpgrp()
    except (OSError, termios.error):  # no terminal, or not ours: nobody would stop us either
        return False
