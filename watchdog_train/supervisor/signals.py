"""Signals to the supervisor become values in a queue; a handler does nothing else.

First SIGINT, SIGTERM: a request to stop; a second one of either: now. SIGHUP: continue without the
terminal. SIGQUIT: evidence now. SIGUSR1, SIGUSR2: forwarded to the root when it handles them,
else answered by a save-request. SIGTSTP: once the terminal is left tidy, we stop; training
continues.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections import deque
from types import FrameType
from typing import Any

_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTSTP")


class SignalQueue:
    """Installed while a session holds a run; `wakeup_fd` becomes readable when a signal arrived."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque(maxlen=64)
        self._previous: dict[int, Any] = {}
        # Not a pipe: on Windows select() takes nothing but sockets, and no pipe is non-blocking.
        self._read_end, self._write_end = socket.socketpair()
        for end in (self._read_end, self._write_end):
            end.setblocking(False)
        self.wakeup_fd = self._read_end.fileno()
        self._previous_wakeup = -1

    def install(self) -> None:
        """Install the handlers of the table; main thread only."""
        self._previous_wakeup = signal.set_wakeup_fd(
            self._write_end.fileno(), warn_on_full_buffer=False
        )
        for name in _HANDLED:
            number = getattr(signal, name, None)
            if number is not None:
                self._previous[number] = signal.signal(number, self._queue)
        child = getattr(signal, "SIGCHLD", None)
        if child is not None:
            # A handler that does nothing: its arrival wakes the loop through the wakeup fd.
            self._previous[child] = signal.signal(child, lambda _number, _frame: None)

    def _queue(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)

    def take(self) -> list[int]:
        """Signals that arrived since the last call, oldest first."""
        with contextlib.suppress(BlockingIOError):
            while self._read_end.recv(4096):
                pass
        taken = []
        while self._pending:
            taken.append(self._pending.popleft())
        return taken

    def only_woken(self) -> bool:
        """Read the wakeup fd; whether everything in it is from wake()."""
        with contextlib.suppress(BlockingIOError):
            return not self._read_end.recv(4096).strip(b"\0")
        return True

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        with contextlib.suppress(OSError):  # full, or closed
            self._write_end.send(b"\0")

    def stop_here(self) -> None:
        """Ctrl-Z: stop as a job does, and continue when the shell says so."""
        if sys.platform == "win32" or self._previous.get(signal.SIGTSTP) is signal.SIG_IGN:
            return
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._queue)

    def restore(self) -> None:
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()
        self._read_end.close()
        self._write_end.close()
