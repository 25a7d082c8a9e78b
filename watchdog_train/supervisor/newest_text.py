"""A file that a thread writes, so that the loop does not wait for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from watchdog_train.supervisor.room import start_thread


class NewestText:
    """One file at a time; of several texts only the newest waits for its turn."""

    def __init__(self, write: Callable[[Path, bytes], None]) -> None:
        """`write` may raise an OSError, which becomes `trouble`."""
        self.trouble: str | None = None
        """Why the newest text that had its turn was not written; None when it was."""
        self._write = write
        self._waiting: tuple[Path, str] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, path: Path, text: str) -> None:
        """Returns at once."""
        with self._changed:
            self._waiting = (path, text)
            if self._thread is None:
                self._thread = start_thread(self._run, path.name)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until nothing waits, or for so long; whether nothing waits."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                waiting = self._waiting
            if waiting is None:
                continue
            path, text = waiting
            try:
                self._write(path, text.encode("utf-8", "replace"))
                self.trouble = None
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__
            with self._changed:
                if self._waiting is waiting:
                    self._waiting = None
                self._changed.notify_all()
