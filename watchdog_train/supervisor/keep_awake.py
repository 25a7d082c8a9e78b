"""Keeps the machine from going to sleep while a run is watched, by what the platform has for it.

Whatever holds the machine awake ends with this supervisor, however that ends. Must not wait.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress

from watchdog_train.core import events as e
from watchdog_train.supervisor.children import Child, ChildTable

CHILD = "keep-awake"
SETTLED_S = 5.0
"""A child that lives for so long was not refused."""
WORDS_CAP_BYTES = 500
ES_CONTINUOUS, ES_SYSTEM_REQUIRED = 0x80000000, 0x00000001
"""SetThreadExecutionState, winbase.h."""


def command(platform: str, pid: int) -> tuple[str, ...] | None:
    """What to run, None where no program does it; systemd-inhibit(1), caffeinate(8).

    `cat` ends when our end of its stdin is closed, and the lock with it.
    """
    if platform == "linux":
        what = "--what=idle:sleep"
        return ("systemd-inhibit", what, "--who=wtrain", "--why=training", "--mode=block", "cat")
    if platform == "darwin":
        return ("caffeinate", "-i", "-m", "-s", "-w", str(pid))
    return None


class KeepAwake:
    """One lock against sleep, for as long as this supervisor lives."""

    def __init__(self, children: ChildTable, *, wanted: bool) -> None:
        self._children = children
        self._open = wanted
        """Whether something is to be done or to be found out yet."""
        self._child: Child | None = None
        self._began = 0.0
        self._stdin = self._words = -1

    def follow(self, now: float) -> Iterator[e.Noticed]:
        """Take the lock; yields that it cannot be had, once."""
        if not self._open:
            return
        if self._child is None:
            why = self._take(now)
            if why is not None:
                yield self._cannot(why)
        elif self._child not in self._children.running():
            with suppress(OSError):
                said = os.read(self._words, WORDS_CAP_BYTES).decode("utf-8", "replace").strip()
                yield self._cannot(" ".join(said.split()) or "the program that does it has ended")
        elif now - self._began > SETTLED_S:
            self._open = False

    def close(self) -> None:
        """Let the machine sleep again."""
        for fd in (self._stdin, self._words):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._words = -1
        if sys.platform == "win32" and self._began:
            import ctypes

            ctypes.windll.kernel32.SetThreadExecutionState(ES_CONTINUOUS)

    def _take(self, now: float) -> str | None:
        self._began = now
        if sys.platform == "win32":
            import ctypes

            self._open = False
            state = ES_CONTINUOUS | ES_SYSTEM_REQUIRED
            done = ctypes.windll.kernel32.SetThreadExecutionState(state)
            return None if done else "SetThreadExecutionState was refused"
        argv = command(sys.platform, os.getpid())
        if argv is None:
            return f"nothing does it on {sys.platform}"
        program = shutil.which(argv[0])
        if program is None:
            return f"{argv[0]} is not here"
        stdin, self._stdin = os.pipe()
        self._words, stderr = os.pipe()
        try:
            os.set_blocking(self._words, False)
            self._child = self._children.spawn(
                (program, *argv[1:]), name=CHILD, deadline_s=None, stdin=stdin, stderr=stderr
            )
        except OSError as error:
            return error.strerror or type(error).__name__
        finally:
            os.close(stdin)
            os.close(stderr)
        return None

    def _cannot(self, why: str) -> e.Noticed:
        self._open = False
        told = f"the machine is not kept awake: {why}; see that it does not go to sleep by itself"
        return e.Noticed(kind="awake", pids=(), why=told)
