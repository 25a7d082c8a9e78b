"""Lock files that name their owner, near a process that waits for one. Only reads."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from watchdog_train.core.diagnosis.facts import LockFact
from watchdog_train.core.diagnosis.stacks import Frame, ThreadStack, frame_matches
from watchdog_train.core.model.waits import FileLockWait, ProcessRef
from watchdog_train.system import proc
from watchdog_train.trusted_files import read_regular

_FILES_CAP = 500
_WAITING = (
    "_poll_until_acquired|acquire|wait "
    "(filelock/*|filelock.py|portalocker/*|fasteners/*|*file_baton.py)"
)
_NAMES = ("lock_filename", "lock_file", "lock_file_path", "filename", "path")


def waits_for_lock_file(threads: tuple[ThreadStack, ...]) -> bool:
    """Whether a thread waits for a lock file that may outlive its owner."""
    return any(asks(frame) for thread in threads for frame in thread.frames)


def asks(frame: Frame) -> bool:
    """Whether a library of file locks polls for one in this function."""
    return frame_matches(_WAITING, frame)


def named(variable: str, shown: str | None) -> str | None:
    """The path in a variable of such a function, as py-spy shows it."""
    text = shown or ""
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1] if quoted and variable in _NAMES else None


def polled(pid: int, path: str | None) -> FileLockWait | None:
    """The lock at this path, else the only open file of the process that another has locked.

    A library that polls waits for no lock in the kernel, and may keep no descriptor meanwhile.
    """
    holders = _holders()
    if path is not None:
        path = os.path.join(proc.link(pid, "cwd") or "", path)
        return FileLockWait(path=path, timed=True, complete=False, holders=_of(path, holders, pid))
    files = {file.name for file in proc.open_files(pid) or () if file.name.startswith("/")}
    held = [name for name in files if _of(name, holders, pid)]
    if len(held) != 1:
        return None
    return FileLockWait(path=held[0], timed=True, holders=_of(held[0], holders, pid))


def _holders() -> dict[int, list[int]]:
    """Pids by the inode that each has locked, as the kernel lists them."""
    found: dict[int, list[int]] = {}
    for line in (proc.text("/proc/locks") or "").splitlines():
        words = line.split()
        if len(words) == 8 and words[4].isdigit():
            found.setdefault(int(words[5].rpartition(":")[2]), []).append(int(words[4]))
    return found


def _of(path: str, holders: dict[int, list[int]], but: int) -> tuple[ProcessRef, ...]:
    with suppress(OSError):
        pids = holders.get(os.stat(path).st_ino, [])
        known = {pid: proc.read_stat(pid) for pid in pids if pid != but}
        return tuple(ProcessRef(pid, s.start, s.name) for pid, s in known.items() if s is not None)
    return ()


def find(pid: int) -> tuple[LockFact, ...]:
    """Lock files in the working directory of the process that name a pid of this machine."""
    found = []
    try:
        with os.scandir(proc.link(pid, "cwd") or "") as entries:
            names = [entry.path for entry, _ in zip(entries, range(_FILES_CAP), strict=False)]
    except OSError:
        return ()
    for path in names:
        owner = _owner(path) if path.endswith(".lock") else None
        if owner is not None:
            found.append(LockFact(path=path, owner_alive=proc.exists(owner)))
    return tuple(found)


def _owner(path: str) -> int | None:
    """The pid in a lock file of `pid, host` lines, when it was taken on this machine."""
    found = read_regular(path, 512, follow=True)
    if found is None:
        return None
    lines = found[0].decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or not lines[0].isdigit() or len(lines[0]) > 10:
        return None
    return int(lines[0]) if lines[1].strip() == socket.gethostname() else None
