"""Lock files that name their owner, near a process that waits for one. Only reads."""

from __future__ import annotations

import os
import socket

from watchdog_train.core.diagnosis.facts import LockFact
from watchdog_train.core.diagnosis.stacks import ThreadStack, frame_matches
from watchdog_train.system import proc
from watchdog_train.trusted_files import read_regular

_FILES_CAP = 500
_WAITING = "_poll_until_acquired|acquire (filelock/*)"


def waits_for_lock_file(threads: tuple[ThreadStack, ...]) -> bool:
    """Whether a thread waits for a lock file that may outlive its owner."""
    return any(frame_matches(_WAITING, frame) for thread in threads for frame in thread.frames)


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
