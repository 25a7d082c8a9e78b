"""Records as files of a private directory on one machine: replaced whole, never locked.

Must not conclude anything from a file's times; a sequence number inside the record tells.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.whole_files import replace_whole

RECORD_CAP_BYTES = 1 << 20
_FILE = re.compile(r"task-(\d{1,6})\.json")


class DirectoryRecords:
    """One file a task."""

    def __init__(self, path: Path) -> None:
        self._path = path

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
            with suppress(OSError), (self._path / name).open("rb") as file:
                found[int(match[1])] = file.read(RECORD_CAP_BYTES)
        return found

    def remove(self) -> None:
        """Remove the directory, and the one above it when no other job is left."""
        shutil.rmtree(self._path, ignore_errors=True)
        with suppress(OSError):
            self._path.parent.rmdir()
