"""Whether there is room for the next attempt: its files, what starts it, its saves."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from watchdog_train.core.room import TornSave, torn_save
from watchdog_train.core.state import State
from watchdog_train.report.words import size_text
from watchdog_train.store.run_directory import refuse_full

SPARE_DESCRIPTORS = 24
"""A launch opens about half as many at a time: pipes, the keeper's orders, what starts it."""
LOOK_S = 1.0
"""Between two tries: each writes."""
ANSWER_S = 0.5
"""For a file system to tell sizes, before the first answer; nothing of ours is watched then."""
MOST_FILES = 20_000


class RestartRoom:
    """What is lacking for a planned restart."""

    def __init__(self, run_dir: Path) -> None:
        self._files = FileRoom(run_dir)
        self._saves = SaveRoom()

    def look(self, state: State, now: float) -> tuple[str | None, str | None]:
        """Why nothing can be started or recorded, why the next save would not fit; or None."""
        due = now >= (state.backoff_until or 0.0)
        files = self._files.lacking(now) if due else None
        return files, self._saves.lacking(torn_save(state), now)


class FileRoom:
    """Whether the run directory can be written, and files can be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = -LOOK_S
        self._lacking: str | None = None

    def lacking(self, now: float) -> str | None:
        """In words; None when nothing is lacking."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._lacking = self._look()
        return self._lacking

    def _look(self) -> str | None:
        try:
            _open_many()
        except OSError as error:
            return f"wtrain can open no more files ({error.strerror or error})"
        try:
            refuse_full(self._path)
        except OSError as error:
            return f"the run directory cannot be written ({error.strerror or error})"
        return None


def _open_many() -> None:
    """What a launch needs, for a moment.

    Raises:
        OSError: the limit of this process, or of the machine, is reached.
    """
    with ExitStack() as opened:
        for _ in range(SPARE_DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


class SaveRoom:
    """Whether a checkpoint fits, measured in a thread: its file system may not answer."""

    def __init__(self) -> None:
        self._save: TornSave | None = None
        self._looked_at = 0.0
        self._thread: threading.Thread | None = None
        self._lacking: str | None = None

    def lacking(self, save: TornSave | None, now: float) -> str | None:
        """Why the next save would end as this one; None when it would not, or nobody knows."""
        is_new = save != self._save
        if is_new:
            self._save, self._lacking = save, None
        if save is None:
            return None
        looks = self._thread is not None and self._thread.is_alive()
        if not looks and (is_new or now - self._looked_at >= LOOK_S):
            self._looked_at = now
            self._thread = threading.Thread(
                target=self._look, args=(save,), name="save-room", daemon=True
            )
            self._thread.start()
            if is_new:
                self._thread.join(ANSWER_S)
        return self._lacking

    def _look(self, save: TornSave) -> None:
        try:
            need = _size(save.whole)
            half = sum(_size(path) for path in save.torn)
            free = shutil.disk_usage(os.path.dirname(save.torn[0])).free
        except OSError:  # nothing is waited for that cannot be measured
            self._lacking = None
            return
        self._lacking = None
        if free + half < need:
            self._lacking = (
                f"{os.path.basename(save.torn[0])} is half-written, the disk has "
                f"{size_text(free)} left and a checkpoint needs {size_text(need)}"
            )


def _size(path: str) -> int:
    """Bytes of a file, or of all files in a directory."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(_sizes(path))


def _sizes(path: str) -> Iterator[int]:
    left = MOST_FILES
    for folder, _, names in os.walk(path):
        for name in names:
            left -= 1
            if left < 0:
                return
            with suppress(OSError):
                yield os.lstat(os.path.join(folder, name)).st_size
