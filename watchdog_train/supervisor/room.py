"""Whether there is room for the next attempt: its files, what starts it, its saves."""

from __future__ import annotations

import _thread
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from watchdog_train.core.fold.state import State
from watchdog_train.core.recovery.restart import TornSave, torn_save
from watchdog_train.errors import WtrainError
from watchdog_train.report.words import size_text
from watchdog_train.store.run_directory import refuse_full
from watchdog_train.supervisor.leftover import size_bytes
from watchdog_train.system import proc

SPARE_DESCRIPTORS = 24
"""A launch opens about half as many at a time: pipes, the keeper's orders, what starts it."""
HELD_DESCRIPTORS = 24
"""Of a supervisor with one attempt and everything else that it may serve, at most."""
NEEDED_TASKS = 24
"""Threads of supervisor and keeper, the training, collectors with py-spy, a scan of checkpoints."""
WATCHING_TASKS = 6
"""To take up or stop a training that lives: it is better watched with few than not at all."""
LOOK_S = 1.0
"""Between two tries: each writes."""
ANSWER_S = 0.5
"""For a file system to tell sizes, before the first answer; nothing of ours is watched then."""


class RestartRoom:
    """What is lacking for a planned restart."""

    def __init__(self, run_dir: Path) -> None:
        self._files = _Tried(lambda: _not_writable(run_dir))
        self._saves = SaveRoom()
        # Tried each time while nothing is lacking: the answer is of use only at the very moment.
        self._descriptors = _Tried(_no_descriptors, lasts_s=0.0)
        self._met: tuple[float, str] | None = None

    def met(self, why: str, now: float) -> None:
        """Something could not be started just now."""
        self._met = (now, f"wtrain can start nothing ({why})")

    def short(self, now: float) -> str | None:
        """Why nothing can be started, not even what looks for checkpoints; or None."""
        if self._met is not None and now - self._met[0] < LOOK_S:
            return self._met[1]
        return self._descriptors.lacking(now)

    def look(self, state: State, now: float) -> tuple[str | None, str | None]:
        """Why nothing can be recorded, why the next save would not fit; or None."""
        due = now >= (state.backoff_until or 0.0)
        files = self._files.lacking(now) if due else None
        return files, self._saves.lacking(torn_save(state), now)


class _Tried:
    """Something that is tried now and then; what is lacking is believed for LOOK_S."""

    def __init__(self, look: Callable[[], str | None], *, lasts_s: float = LOOK_S) -> None:
        """`lasts_s`: for so long it is believed that nothing is lacking."""
        self._look, self._lasts_s = look, lasts_s
        self._looked_at = -LOOK_S
        self._lacking: str | None = None

    def lacking(self, now: float) -> str | None:
        """In words; None when nothing is lacking."""
        if now - self._looked_at >= (self._lasts_s if self._lacking is None else LOOK_S):
            self._looked_at = now
            self._lacking = self._look()
        return self._lacking


def _no_descriptors() -> str | None:
    """Whether files can be opened: the limit is this process's, or the machine's."""
    _, why = _can_open(SPARE_DESCRIPTORS)
    return None if why is None else f"wtrain can open no more files ({why})"


def _not_writable(path: Path) -> str | None:
    try:
        refuse_full(path)
    except OSError as error:
        return f"the run directory cannot be written ({error.strerror or error})"
    return None


def refuse_little_room(tasks: int = NEEDED_TASKS) -> None:
    """Before anything is started.

    Args:
        tasks: so many more threads and processes must be possible.

    Raises:
        WtrainError: too few files, threads or processes, or a /proc of other processes.
    """
    proc.refuse_foreign()
    refuse_few_descriptors()
    refuse_few_tasks(tasks)


def refuse_few_descriptors() -> None:
    """Before anything is started: a supervisor could neither launch nor restart.

    Raises:
        WtrainError: too few files can be opened.
    """
    needed = HELD_DESCRIPTORS + SPARE_DESCRIPTORS
    count, why = _can_open(needed)
    if why is not None:
        raise WtrainError(
            f"only {count} more files can be opened ({why}); wtrain needs {needed}, "
            "and the training needs its own",
            context="limit of open files",
            hint="raise it in this shell, then start again: ulimit -n 1024",
            reference="too-few-descriptors",
        )


def refuse_few_tasks(needed: int = NEEDED_TASKS) -> None:
    """Before anything is started: what fails later could leave a training unwatched.

    Raises:
        WtrainError: too few threads can be started; the kernel counts processes with them.
    """
    gate = _thread.allocate_lock()
    count = 0
    with gate:
        try:
            while count < needed:
                _thread.start_new_thread(_pass, (gate,))
                count += 1
        except RuntimeError:
            pass
    if count < needed:
        raise WtrainError(
            f"only {count} more processes and threads can be started; wtrain needs {needed}, "
            "and the training needs its own",
            context="limit of processes",
            hint="raise it, then start again: ulimit -u 4096; of a container: --pids-limit",
            reference="too-few-processes",
        )


def _pass(gate: _thread.LockType) -> None:
    with gate:
        pass


def start_thread(target: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread, or None where no more can be started now: try again later."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _can_open(most: int) -> tuple[int, str | None]:
    """How many files can be opened now, up to so many; and why no more."""
    count = 0
    with ExitStack() as opened:
        try:
            while count < most:
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
                count += 1
        except OSError as error:
            return count, error.strerror or str(error)
    return count, None


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
            self._thread = start_thread(lambda: self._look(save), "save-room")
            if is_new and self._thread is not None:
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
    return size_bytes(Path(path))
