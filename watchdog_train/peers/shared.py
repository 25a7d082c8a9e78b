"""Records that several machines share; a thread reads and writes them.

A file server may hang, a network may be cut: the loop of a supervisor gets what the thread has last
seen, and must not wait for it without a limit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from watchdog_train.peers.protocol import SlowRecords

TURN_S = 0.5
"""Between two rounds of the thread, among few machines."""
RECORDS_A_SECOND = 128
"""Read at most: 256 supervisors of one job then ask for 32,768 small files a second in all."""
LAST_WORD_S = 5.0
"""For the last record to be written, and the directory to be removed."""
FORGET_S = 600.0


class SharedRecords:
    """One record a task, read and written by a thread of its own."""

    def __init__(self, records: SlowRecords, task: int, tasks: int) -> None:
        self._records = records
        self._task = task
        self._others = [number for number in range(tasks) if number != task]
        self._changed = threading.Condition()
        self._found: dict[int, bytes] = {}
        self._pending: bytes | None = None
        self._asked: dict[str, float] = {}
        self._visible: dict[str, bool] = {}
        self._rounds = 0
        self._wanted = 0
        """Rounds that somebody waits for."""
        self._failed: OSError | None = None
        self._end: Callable[[], None] | None = None
        self._turn_s = max(TURN_S, tasks / RECORDS_A_SECOND)
        # A daemon: one that hangs in the kernel must not keep us from ending.
        self._thread = threading.Thread(target=self._work, name="peers", daemon=True)
        self._thread.start()

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of this task, soon.

        Raises:
            OSError: the one before could not be written.
        """
        if task != self._task:
            raise ValueError(f"task {task} is not ours")
        with self._changed:
            self._pending = record
            self._changed.notify_all()
            failed = self._failed
        if failed is not None:
            raise failed

    @property
    def stays(self) -> bool:
        """As the place where they lie says."""
        return self._records.stays

    @property
    def helper_pids(self) -> frozenset[int]:
        """Those of what lies behind it."""
        return self._records.helper_pids

    def read(self) -> Mapping[int, bytes]:
        """The newest record of each task, as the thread has seen it."""
        with self._changed:
            return dict(self._found)

    def read_now(self, timeout_s: float) -> Mapping[int, bytes]:
        """As read(), after a round that began from now on, or the time limit."""
        with self._changed:
            wanted = self._rounds + 2
            self._wanted = max(self._wanted, wanted)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rounds >= wanted, timeout_s)
            return dict(self._found)

    def sees(self, path: str) -> bool | None:
        """Whether this machine sees a path; None until the file system has answered."""
        with self._changed:
            self._asked[path] = time.monotonic()
            return self._visible.get(path)

    def remove(self) -> None:
        """Remove them, within a time limit: a file server may hang."""
        self._finish(self._records.remove)

    def close(self) -> None:
        """Ask nothing any more, within the same limit."""
        self._finish(self._records.close)

    def _finish(self, end: Callable[[], None]) -> None:
        with self._changed:
            self._end = self._end or end
            self._changed.notify_all()
        self._thread.join(LAST_WORD_S)

    def flush(self) -> None:
        """Wait for the newest record to be written, within a time limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None, LAST_WORD_S)

    def _work(self) -> None:
        due = 0.0
        while True:
            self._write()
            with self._changed:
                end, hurried = self._end, self._rounds < self._wanted
            if end is not None:
                return end()
            # Not after each word of ours: that would be one read of everybody a second and node.
            if hurried or time.monotonic() >= due:
                due = time.monotonic() + self._turn_s
                self._look()
            with self._changed:
                if self._pending is None and self._end is None and self._rounds >= self._wanted:
                    self._changed.wait(max(0.0, due - time.monotonic()))

    def _look(self) -> None:
        """One round: everybody's records, and what we were asked about the file system."""
        found = self._records.read_of([*self._others, self._task])
        with self._changed:
            self._found = dict(found)
            self._rounds += 1
            now = time.monotonic()
            self._asked = {p: at for p, at in self._asked.items() if now - at < FORGET_S}
            asked = list(self._asked)
            self._changed.notify_all()
        visible = {path: os.path.exists(path) for path in asked}
        with self._changed:
            self._visible = visible

    def _write(self) -> None:
        with self._changed:
            record = self._pending
        if record is None:
            return
        failed = None
        try:
            self._records.publish(self._task, record)
        except OSError as error:
            failed = error
        with self._changed:
            if self._pending is record:
                self._pending = None
            self._failed = failed
            self._changed.notify_all()
