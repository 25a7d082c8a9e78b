"""Shows the training's captured output, and our own lines, on the user's terminal.

It must never block its caller and never change the terminal's settings: O_NONBLOCK would be shared
with the shell and with the training's stdin. A blocked write waits in a thread of its own.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

QUEUE_BYTES = 256 * 1024
"""Waiting for a slow terminal; the rest waits in the file, which is the real buffer."""
QUEUE_PIECES = 1000
SAY_PIECES = 2000
"""Our own lines are dropped only when a terminal that takes nothing has so many waiting."""
READ_BYTES = 64 * 1024
DRAIN_STEP_S = 0.02


class Outlet:
    """One place to write to: a queue of limited size and a thread that may block for it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_dead = False
        self.at_line_start = True
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def room_bytes(self) -> int:
        """How much of the training's output it takes now."""
        with self._changed:
            if self.is_dead or len(self._queue) >= QUEUE_PIECES:
                return 0
            return max(QUEUE_BYTES - self._queued_bytes, 0)

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

    def put(self, data: bytes) -> None:
        """Write it when its turn comes."""
        with self._changed:
            if self.is_dead or not data or len(self._queue) >= SAY_PIECES:
                return
            self.at_line_start = data.endswith(b"\n")
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="display", daemon=True)
                self._thread.start()
            self._changed.notify()

    def wait_empty(self, timeout_s: float) -> None:
        """Until nothing waits, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_dead or not self._queued_bytes, timeout_s)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_dead or self._queue)
                if self.is_dead:
                    return
                data = self._queue[0]
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:  # somebody else has made it so; it is not ours to change
                select.select([], [self.fd], [], 1.0)
                written = 0
            except OSError:  # EPIPE, EIO: the reader is gone, and so is the terminal. For good.
                self.stop()
                return
            with self._changed:
                if self.is_dead:
                    return
                self._queued_bytes -= written
                self._queue[0] = data[written:]
                if not self._queue[0]:
                    self._queue.popleft()
                self._changed.notify_all()


class Tail:
    """Reads a capture file from where it last stopped, across its rotation."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self.path = path
        self.rotated = path.with_name(path.name + ".1")
        self.skipped_bytes = 0
        self._fd = -1
        self._from_end = from_end

    def read(self, limit_bytes: int) -> bytes:
        """The next bytes, empty when there are none now."""
        if limit_bytes <= 0:
            return b""
        with suppress(OSError):
            if self._fd < 0 and not self._open():
                return b""
            data = os.read(self._fd, min(limit_bytes, READ_BYTES))
            if data or not self._follow_rotation():
                return data
            return os.read(self._fd, min(limit_bytes, READ_BYTES))
        return b""

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        if not self.path.exists():
            return False
        self._fd = os.open(self.path, os.O_RDONLY)
        if self._from_end:
            os.lseek(self._fd, 0, os.SEEK_END)
        return True

    def _follow_rotation(self) -> bool:
        """At the end of a file: whether the capture goes on in another one, now open."""
        if os.path.samestat(os.fstat(self._fd), self.path.stat()):
            return False
        # Bytes may have been added between our read and the rename; the file is final now.
        ours = os.fstat(self._fd)
        if os.lseek(self._fd, 0, os.SEEK_CUR) < ours.st_size:
            return True
        # Rotated more than once since: then what follows ours begins in the rotated file.
        after = self.path if os.path.samestat(ours, self.rotated.stat()) else self.rotated
        following = os.open(after, os.O_RDONLY)
        os.close(self._fd)
        self._fd = following
        return True


class Display:
    """The user's stdout and stderr, as long as somebody reads them."""

    def __init__(self, stdout_fd: int = 1, stderr_fd: int = 2) -> None:
        self._stderr = Outlet(stderr_fd)
        self._stdout = self._stderr if _same_file(stdout_fd, stderr_fd) else Outlet(stdout_fd)
        self._tails: list[tuple[Tail, Outlet]] = []
        self.stderr_is_terminal = _is_terminal(stderr_fd)
        self.colour = wants_colour(os.environ, is_terminal=self.stderr_is_terminal)

    def follow(self, streams: Mapping[str, Path], *, from_end: bool = False) -> None:
        """Show these capture files from now on instead of those before.

        Args:
            streams: by stream: output, or stdout and stderr.
            from_end: only what is still to come.
        """
        for tail, _ in self._tails:
            tail.close()
        self._tails = [
            (Tail(path, from_end=from_end), self._stderr if name == "stderr" else self._stdout)
            for name, path in streams.items()
        ]

    def pump(self) -> bool:
        """Pass on what is new, as much as the terminal takes; whether there was anything."""
        moved = False
        for tail, outlet in self._tails:
            while data := tail.read(outlet.room_bytes()):
                outlet.put(data)
                moved = True
        return moved

    def say(self, text: str) -> None:
        """A line of our own on stderr, never in the middle of a line of the training."""
        begin = "" if self._stderr.at_line_start else "\n"
        self._stderr.put(f"{begin}{text}\n".encode("utf-8", "replace"))

    def leave_terminal(self) -> None:
        """The terminal is gone (SIGHUP); a file or pipe is still written."""
        for outlet in (self._stdout, self._stderr):
            if _is_terminal(outlet.fd):
                outlet.stop()

    def drain(self, deadline: float) -> bool:
        """Show all that the files have now; False when the deadline (monotonic) came first."""
        outlets = (self._stdout, self._stderr)
        while True:
            moved = self.pump()
            left_s = deadline - time.monotonic()
            if not moved and all(outlet.is_empty() for outlet in outlets):
                return True
            if left_s <= 0:
                return False
            for outlet in outlets:
                outlet.wait_empty(min(left_s, DRAIN_STEP_S))

    def close(self) -> None:
        """Let go of the files; what waits for a terminal is left to its thread."""
        self.follow({})


def wants_colour(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """NO_COLOR, then FORCE_COLOR, then whether a terminal that can is there."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM", "") != "dumb"


def _is_terminal(fd: int) -> bool:
    with suppress(OSError):
        return os.isatty(fd)
    return False


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
