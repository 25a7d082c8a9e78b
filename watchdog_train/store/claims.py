"""Which run of this user writes checkpoints where: kernel locks in private local memory.

One machine only: memory is asked because a lock beside the checkpoints could hang with their disk.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.store.places import private_runtime_directory, shared_bases
from watchdog_train.trusted_files import open_regular
from watchdog_train.whole_files import as_json, read_json

PURPOSE = "claims"
_MAX_BYTES = 8192
_TRIES = 8
_LOOK_S = 0.02
_MOST_LOCKS = 4096

Release = Callable[[], None]


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes into a directory."""

    run_id: str
    pid: int
    directory: str
    job: str | None = None
    """Of which the run is a task: its tasks share their directories."""


def claims_directory(*, make: bool) -> Path | None:
    """Where the locks lie; the same for every run of this user, in whatever session."""
    return private_runtime_directory(PURPOSE, "locks", make=make, bases=shared_bases())


def claim(directory: str, who: Claimant) -> Release | Claimant | None:
    """Take a directory for a run, without waiting.

    Returns:
        How to release it; or who has it; None where nothing can be locked.
    """
    if sys.platform == "win32":
        return None
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]
    with suppress(OSError):
        for number in range(_TRIES):
            folder = claims_directory(make=True)
            if folder is None:
                return None
            path = folder / f"{name}.lock"
            try:
                fd = open_regular(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # whoever was the last has removed the folder just now
                continue
            answer = _take(fd, path, who)
            if answer == "again":
                continue
            if isinstance(answer, Claimant) and number == 0:
                time.sleep(_LOOK_S)  # `wtrain clean` asks by holding it for a moment
                continue
            return answer
    return None


def is_free(path: Path, *, remove: bool = False) -> bool:
    """Whether nobody holds this lock file; with `remove` it is gone then."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fd = open_regular(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            path.unlink()
            _tidy(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _tidy(path: Path) -> None:
    """The last one takes the folders along."""
    with suppress(OSError):
        path.parent.rmdir()
        path.parent.parent.rmdir()


def forget(run_id: str) -> None:
    """Remove what a supervisor of this run has left that was killed: locks that nobody holds."""
    folder = claims_directory(make=False)
    if folder is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _MOST_LOCKS):
            path = Path(entry.path)
            claimant = read_claimant(path)
            if claimant is not None and claimant.run_id == run_id:
                is_free(path, remove=True)


def read_claimant(path: Path) -> Claimant | None:
    """Who has taken a lock file last."""
    return read_json(path, Claimant, cap_bytes=_MAX_BYTES)


def _take(fd: int, path: Path, who: Claimant) -> Release | Claimant | Literal["again"] | None:
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        # It may be about to be written: then nobody knows yet who has it.
        return read_claimant(path) or Claimant(run_id="", pid=0, directory="")
    except OSError:
        os.close(fd)
        return None
    if not _is_in_place(fd, path):  # whoever had it has removed it in this moment
        os.close(fd)
        return "again"
    os.ftruncate(fd, 0)
    os.pwrite(fd, as_json(who), 0)

    def release() -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(fd)
        _tidy(path)

    return release


def _is_in_place(fd: int, path: Path) -> bool:
    with suppress(OSError):
        mine, there = os.fstat(fd), os.stat(path)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
    return False
