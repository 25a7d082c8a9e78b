"""Keeps the machine from going to sleep while a run is watched, by what the platform has for it.

Whatever holds the machine awake ends with this supervisor, however that ends. Must not wait.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

from watchdog_train.core import events as e
from watchdog_train.core.model import Why
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.helper import Helper

SETTLED_S = 5.0
"""A child that lives for so long was not refused."""
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
        self._helper = Helper(children, "keep-awake")
        self._open = wanted
        """Whether something is to be done or to be found out yet."""
        self._began: float | None = None

    def follow(self, now: float) -> Iterator[e.Noticed]:
        """Take the lock; yields that it cannot be had, once."""
        if not self._open:
            return
        if self._began is None:
            self._began = now
            why = self._take()
            if why is not None:
                yield self._cannot(why)
        elif not self._helper.running:
            said = self._helper.last_words()
            yield self._cannot(said or "the program that does it has ended")
        elif now - self._began > SETTLED_S:
            self._open = False

    def close(self) -> None:
        """Let the machine sleep again."""
        self._helper.close()
        if sys.platform == "win32" and self._began is not None:
            import ctypes

            ctypes.windll.kernel32.SetThreadExecutionState(ES_CONTINUOUS)

    def _take(self) -> str | None:
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
        try:
            self._helper.start((program, *argv[1:]), stays="stderr")
        except OSError as error:
            return error.strerror or type(error).__name__
        return None

    def _cannot(self, why: str) -> e.Noticed:
        self._open = False
        return e.Noticed(kind="awake", pids=(), why=Why("may-sleep", problem=why))
