"""The user's streams, writing to them without waiting, and streams for a training like them.

Nothing here changes the settings of a terminal or stream: O_NONBLOCK would be shared with the shell
and with the training's stdin.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from watchdog_train.core.model import Value
from watchdog_train.keeper.messages import ready
from watchdog_train.supervisor.resources import start_thread


class Terminal(Value):
    """Where the user's three streams lead; by default as for a run in the background."""

    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    same_stream: bool = True
    """stdout and stderr are one file."""
    give_stdin: bool = False
    """The training may read our standard input."""
    rows: int = 24
    columns: int = 80


def terminal_now(*, foreground: bool) -> Terminal:
    """The user's streams as they are now; a detached run has none."""
    if not foreground:
        return Terminal()
    on_terminal = {fd: is_terminal(fd) for fd in (1, 2)}
    sizes = [size for fd in (1, 2) if on_terminal[fd] and (size := window_size(fd))]
    rows, columns = (*sizes, (24, 80))[0]
    return Terminal(
        stdout_is_terminal=on_terminal[1],
        stderr_is_terminal=on_terminal[2],
        same_stream=same_file(1, 2),
        give_stdin=_may_read_stdin(),
        rows=rows,
        columns=columns,
    )


def window_size(fd: int) -> tuple[int, int] | None:
    """Rows and columns; None if unknown."""
    with suppress(OSError):
        size = os.get_terminal_size(fd)
        if size.lines and size.columns:
            return size.lines, size.columns
    return None


def open_stream(terminal: Terminal | None) -> tuple[int, int]:
    """A read end and a write end: a pseudo-terminal like the user's, or a pipe for None."""
    if terminal is None or sys.platform == "win32":
        return os.pipe()
    try:
        master, slave = os.openpty()
    except OSError:  # no /dev/pts, or no more of them: progress bars then look as in a file
        return os.pipe()
    import termios

    attributes = termios.tcgetattr(slave)
    # What is captured goes to the user's own terminal, which turns newlines into CR LF itself.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    set_window_size(master, terminal.rows, terminal.columns)
    return master, slave


def set_window_size(fd: int, rows: int, columns: int) -> None:
    if sys.platform == "win32" or not os.isatty(fd):
        return
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def is_terminal(fd: int) -> bool:
    """Whether it is open and a terminal."""
    with suppress(OSError):
        return os.isatty(fd)
    return False


def same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # closed by the user: `2>&-`
        return False


def _may_read_stdin() -> bool:
    """Whether fd 0 is open and may be read.

    A background job of a shell would be stopped for reading the terminal. The training is no
    longer such a job, so it would take the input that is typed into the shell.
    """
    try:
        os.fstat(0)
        if sys.platform == "win32" or not os.isatty(0):
            return True
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # closed, or a terminal that is not our controlling one
        return False


QUEUE_BYTES = 256 * 1024
"""Waiting for a slow terminal; the rest waits in the file, which is the real buffer."""
QUEUE_PIECES = 1000
SAY_PIECES = 2000
"""wtrain's lines are dropped only if so many wait for a terminal that takes nothing."""
HELD_BACK_S = 0.5


class Outlet:
    """One place to write to: a queue of limited size and a thread that may block for it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_terminal = is_terminal(fd)
        self.took_at = time.monotonic()
        """When it last accepted output, or had nothing to write."""
        self.on_room: Callable[[], None] = lambda: None
        """Called by the thread when there is room again for refused output."""
        self._refused = False
        self.is_dead = False
        self.problem: str | None = None
        """Why nothing more can be written, as on a full disk; None if the reader is gone."""
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
        with self._changed:
            return self.is_dead or not self._queued_bytes

    def stop(self) -> None:
        with self._changed:
            self.is_dead = True
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()

    def put(self, data: bytes, *, stays: bool = True) -> None:
        """Write it in its turn; what does not stay is erased again, and leaves the line."""
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
        with self._changed:
            self._changed.wait_for(lambda: self.is_dead or not self._queued_bytes, timeout_s)

    def _write(self) -> None:
        if sys.platform != "win32":
            # Between _must_wait() and the write the shell may take the terminal back.
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
            except BlockingIOError:  # another process has made it so; we must not change it
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
    """Whether this process is in the foreground group of the terminal.

    False for a job in the background, and for a terminal that is not our controlling one: a
    shell's prompt may be on it.
    """
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        return os.tcgetpgrp(fd) == os.getpgrp()
    return False


def _must_wait(fd: int) -> bool:
    """Whether this is a background job that may not write to the terminal (`stty tostop`).

    The kernel would stop us for writing, and the training would be unwatched.
    """
    if sys.platform == "win32":
        return False
    import termios

    try:
        if not termios.tcgetattr(fd)[3] & termios.TOSTOP:
            return False
        return os.tcgetpgrp(fd) != os.getpgrp()
    except (OSError, termios.error):  # not our controlling terminal: no stop
        return False
