"""One supervisor per run: a kernel lock, which is released at any exit of its holder.

Must not take the holder from the text in lock.json, which only names the last one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from watchdog_train.core.model import Value
from watchdog_train.errors import WtrainError
from watchdog_train.system.file_systems import private_runtime_directory, why_denied
from watchdog_train.trusted_files import open_regular, remove
from watchdog_train.whole_files import read_json, replace_json

_RETRY_FOR_S = 1.0
"""A reader that asks whether the lock is held has it for some microseconds."""
_RETRY_EVERY_S = 0.02
_MAX_BYTES = 4096
_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Answers of a network file system without locks."""

Answer = Callable[[], None] | Literal["held", "no-locks"]
"""How to release the lock that was taken, or why it was not."""


class Holder(Value):
    pid: int
    start: int
    host: str
    boot_id: str | None = None


class RunLock:
    """The lock of a run directory; on a file system without locks, one of this host only."""

    def __init__(self, path: Path, who: Holder) -> None:
        self.path = path
        self._who = who
        self._release: Callable[[], None] | None = None

    def acquire(self) -> None:
        """Take the run; WtrainError if another supervisor holds it, or no lock can be made."""
        deadline = time.monotonic() + _RETRY_FOR_S
        try:
            answer = _take(self.path)
            while answer == "held" and time.monotonic() < deadline:
                time.sleep(_RETRY_EVERY_S)
                answer = _take(self.path)
            if not isinstance(answer, str):
                self._release = answer
                replace_json(_holder_file(self.path), self._who)
                return
        except OSError as error:
            self.release()
            raise WtrainError(
                f"the run cannot be locked: {error.strerror or error}",
                context=str(self.path),
                hint="choose another place with --runs-dir DIR",
                reference="run-unlockable",
            ) from error
        raise _refusal(self.path, answer)

    def release(self) -> None:
        """Harmless if it is not held."""
        if self._release is not None:
            with contextlib.suppress(OSError):
                remove(_holder_file(self.path))
            self._release()
            self._release = None


def is_held(path: Path) -> bool | None:
    """Whether a living process holds the lock; None if unknown."""
    try:
        answer = _take(path, probe=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    if isinstance(answer, str):
        return True if answer == "held" else None
    answer()
    return False


def read_holder(path: Path) -> Holder | None:
    """The last holder, living or dead; None if unknown."""
    return read_json(_holder_file(path), Holder, cap_bytes=_MAX_BYTES)


def _take(path: Path, *, probe: bool = False) -> Answer:
    answer = _take_one(path, probe=probe)
    if answer != "no-locks":
        return answer
    # Only supervisors of this host can then exclude each other; better than no lock, and
    # unlike a lock that is a mere file it ends with its holder.
    local = private_runtime_directory("lock", path.parent.name, make=not probe)
    return "no-locks" if local is None else _take_one(local / path.name, probe=probe)


if sys.platform == "win32":

    def _take_one(path: Path, *, probe: bool) -> Answer:
        import filelock

        if probe and not path.exists():
            raise FileNotFoundError(path)
        lock = filelock.FileLock(path, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            return "held"
        return lock.release

else:
    # Not filelock: it takes 90 ms to import, and where flock is missing it changes to a lock
    # file, which stays behind when its holder is killed.
    import fcntl

    def _take_one(path: Path, *, probe: bool) -> Answer:
        fd = open_regular(path, os.O_RDWR | (0 if probe else os.O_CREAT))
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if probe else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return "held"
            if error.errno in _NO_LOCKS_HERE:
                return "no-locks"
            raise
        return lambda: os.close(fd)


def _holder_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _refusal(path: Path, answer: str) -> WtrainError:
    if answer == "no-locks":
        return WtrainError(
            f"this file system has no locks, and no local directory can be made for one: "
            f"{why_denied('lock')}",
            context=str(path),
            hint="choose another place with --runs-dir DIR",
            reference="run-unlockable",
        )
    who = read_holder(path)
    named = f"pid {who.pid} on {who.host}" if who else "another process"
    return WtrainError(
        f"this run is supervised already, by {named}",
        context=str(path.parent),
        hint="wtrain status shows it; wtrain stop ends it",
        reference="run-held",
    )
