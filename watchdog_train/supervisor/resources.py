"""What is left of descriptors, processes, disk space and memory: for the next attempt, and now."""

from __future__ import annotations

import _thread
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from watchdog_train.core.fold.state import State
from watchdog_train.core.notices.warnings import DiskRoom, Room
from watchdog_train.core.recovery.restart import TornSave, torn_save
from watchdog_train.errors import WtrainError
from watchdog_train.report.words import size_text
from watchdog_train.store.run_directory import refuse_full
from watchdog_train.system import proc
from watchdog_train.system.cgroup import cgroup_cache_bytes, cgroup_memory

SPARE_DESCRIPTORS = 24
"""A launch opens about half as many at a time: pipes, the keeper's orders, those of Popen."""
HELD_DESCRIPTORS = 24
"""Maximum of a supervisor with one attempt and everything else that it may serve."""
NEEDED_TASKS = 24
"""Threads of supervisor and keeper, the training, collectors with py-spy, a scan of checkpoints."""
WATCHING_TASKS = 6
"""To adopt or stop a training that lives: watching it with few is better than not watching it."""
LOOK_S = 1.0
"""Between two tries: each writes."""
ANSWER_S = 0.5
"""Wait for sizes of a file system, before the first answer; no process is watched then."""


class RestartRoom:
    """Which resources are missing for a planned restart."""

    def __init__(self, run_dir: Path) -> None:
        self._files = _Tried(lambda: _not_writable(run_dir))
        self._saves = SaveRoom()
        # Tried each time while nothing is missing: the answer is valid only at that moment.
        self._descriptors = _Tried(_no_descriptors, lasts_s=0.0)
        self._met: tuple[float, str] | None = None

    def met(self, why: str, now: float) -> None:
        self._met = (now, f"wtrain can start nothing ({why})")

    def short(self, now: float) -> str | None:
        """Why nothing can be started, not even a scan of checkpoints; or None."""
        if self._met is not None and now - self._met[0] < LOOK_S:
            return self._met[1]
        return self._descriptors.lacking(now)

    def look(self, state: State, now: float) -> tuple[str | None, str | None]:
        """Why nothing can be recorded, why the next save would not fit; or None."""
        due = now >= (state.backoff_until or 0.0)
        files = self._files.lacking(now) if due else None
        return files, self._saves.lacking(torn_save(state), now)


class _Tried:
    """A check that runs now and then; a problem counts for LOOK_S."""

    def __init__(self, look: Callable[[], str | None], *, lasts_s: float = LOOK_S) -> None:
        """`lasts_s`: how long a check without a problem counts."""
        self._look, self._lasts_s = look, lasts_s
        self._looked_at = -LOOK_S
        self._lacking: str | None = None

    def lacking(self, now: float) -> str | None:
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
    """Raise WtrainError if too few files, threads or processes are left, or /proc is foreign."""
    proc.refuse_foreign()
    refuse_few_descriptors()
    refuse_few_tasks(tasks)


def refuse_few_descriptors() -> None:
    """Raise WtrainError if so few files can be opened that no launch or restart would work."""
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
    """Raise WtrainError if too few threads (or processes, which count too) can be started.

    A later failure could leave a training unwatched.
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
    """How many files can be opened now, up to `most`; and why no more."""
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
        """Why the next save would fail as this one; None if it would not, or unknown."""
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


MOST_FILES_COUNTED = 20_000


def size_bytes(path: Path) -> int:
    """Of the files below it, up to the number that is counted."""
    total = count = 0
    for directory, _, files in os.walk(path):
        for name in files:
            count += 1
            if count > MOST_FILES_COUNTED:
                return total
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total


MEASURE_EVERY_S = 30.0
MOST_PLACES = 6


class ResourceMeter:
    """The newest measurement of disks and memory; at most one thread at a time.

    A file system that does not answer blocks only the thread: it is unknown then. A child process
    would cost 40 ms of CPU each time, more than all samples in between.
    """

    def __init__(self) -> None:
        self._newest: Room | None = None
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def newest(self, now: float, places: Sequence[str]) -> Room | None:
        """Returns at once; begins another measurement when it is time."""
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = now + MEASURE_EVERY_S
            arguments = (now, tuple(places)[:MOST_PLACES])
            self._thread = start_thread(lambda: self._measure(*arguments), "room")
        return self._newest

    def _measure(self, at: float, places: tuple[str, ...]) -> None:
        memory = _memory()
        self._newest = Room(
            at=at,
            disks=_disks(places),
            memory_free_bytes=memory[0] if memory is not None else None,
            memory_total_bytes=memory[1] if memory is not None else None,
        )


def _disks(places: tuple[str, ...]) -> tuple[DiskRoom, ...]:
    """One for each file system, by the first place that is on it."""
    found: dict[int, DiskRoom] = {}
    for place in places:
        with suppress(OSError):
            device = os.stat(place).st_dev
            if device in found:
                continue
            usage = shutil.disk_usage(place)
            found[device] = DiskRoom(path=place, free_bytes=usage.free, total_bytes=usage.total)
    return tuple(found.values())


def _memory() -> tuple[int, int] | None:
    """Free and total: of the machine, or of the container if that has less left."""
    told = proc.fields("/proc/meminfo")
    try:
        free, total = (1024 * int(told[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (LookupError, ValueError):
        import psutil  # 6 ms and 2 MiB that Linux does not need

        try:
            machine = psutil.virtual_memory()
        except (OSError, psutil.Error):
            return None
        free, total = int(machine.available), int(machine.total)
    with suppress(OSError):
        group = cgroup_memory()
        limit = group["limit_bytes"] if group is not None else None
        used = group["used_bytes"] if group is not None else None
        if limit is not None and used is not None and 0 < limit < total:
            left = max(0, limit - used + cgroup_cache_bytes())
            if left < free:
                return min(left, limit), limit
    return free, total
