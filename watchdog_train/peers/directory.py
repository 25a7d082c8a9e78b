"""Records as files of a private directory: replaced whole, never locked.

Must not conclude anything from a file's times; a sequence number inside the record tells.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.trusted_files import open_read
from watchdog_train.whole_files import replace_whole

RECORD_CAP_BYTES = 1 << 20
_FILE = re.compile(r"task-(\d{1,6})\.json")


class DirectoryRecords:
    """One file a task."""

    stays = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def helper_pids(self) -> frozenset[int]:
        """Files need no process."""
        return frozenset()

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of this task.

        Raises:
            OSError: the directory is full or gone for good.
        """
        # A peer that was the last to end may have removed it in this moment.
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_whole(self._path / f"task-{task}.json", record)

    def read(self) -> Mapping[int, bytes]:
        """The newest record of each task; one that cannot be read now is left out."""
        found: dict[int, bytes] = {}
        try:
            names = os.listdir(self._path)
        except OSError:
            return found
        for name in names:
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            record = self._record(name)
            if record is not None:
                found[int(match[1])] = record
        return found

    def read_now(self, timeout_s: float) -> Mapping[int, bytes]:  # noqa: ARG002 - local memory
        """The same."""
        return self.read()

    def sees(self, path: str) -> bool | None:
        """Whether it is there."""
        return os.path.exists(path)

    def flush(self) -> None:
        """Nothing is held back."""

    def read_of(self, tasks: Iterable[int]) -> Mapping[int, bytes]:
        """The newest record of each of these, without asking for the directory's list of names.

        A network file system may give an old list for a minute, and looks up a name anew.
        """
        found = {task: self._record(f"task-{task}.json") for task in tasks}
        return {task: record for task, record in found.items() if record is not None}

    def _record(self, name: str) -> bytes | None:
        """What a file of this user says; None of what is no plain file, or is too long."""
        with suppress(OSError), open_read(self._path / name, trusted=True) as file:
            record = file.read(RECORD_CAP_BYTES + 1)
            return record if len(record) <= RECORD_CAP_BYTES else None
        return None

    def close(self) -> None:
        """Nothing is held."""

    def remove(self) -> None:
        """Remove the directory, and the one above it when no other job is left."""
        shutil.rmtree(self._path, ignore_errors=True)
        with suppress(OSError):
            self._path.parent.rmdir()
