"""What the supervisors of a job have told each other, when all of them were killed.

A folder is removable only where nobody may still write into it. On this machine a pid tells; of a
supervisor on another one nothing does but its word, which a living one replaces every second.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from watchdog_train.core.job.peers import Summary
from watchdog_train.core.model import ProcessId
from watchdog_train.peers.directory import DirectoryRecords
from watchdog_train.store.places import runtime_bases
from watchdog_train.supervisor.job import decode, machine_of
from watchdog_train.supervisor.leftover import FRESH_S, Leftover, names_in, size_bytes
from watchdog_train.supervisor.machine import Machine
from watchdog_train.system.protocol import ProcessSystem

SILENT_S = 7 * 86400.0
"""A supervisor on another machine whose record is older than this has ended: a job that is cut off
from its file server for a week has not trained for a week."""
_NAMED = 4


def left_meetings(
    machine: Machine, system: ProcessSystem, *, older_than_s: float | None
) -> Iterator[Leftover]:
    """Folders of jobs whose supervisors are all gone; `older_than_s` takes SILENT_S's place."""
    name = f"wtrain-{os.getuid() if hasattr(os, 'getuid') else 0}-jobs"
    here = machine_of(system)
    for top in sorted({place / name for place in (*runtime_bases(), *map(Path, machine.meetings))}):
        for path in _folders(top):
            words = dict(DirectoryRecords(path).read())
            told = [one for one in map(decode, words.values()) if one is not None]
            lives = {_lives(one, here, machine, system) for one in told}
            limit_s = SILENT_S if older_than_s is None else max(FRESH_S, older_than_s)
            silent_s = _silent_s(path, words)
            if True in lives or (lives != {False} and silent_s < limit_s):
                continue
            named = [f"task {one.task} (pid {one.pid} on {one.host[:64]})" for one in told]
            gone = ", ".join(named[:_NAMED]) or "no supervisor has written here"
            why = f"no supervisor of this job has written for {silent_s / 86400:.1f} days: {gone}"
            yield Leftover(kind="job", what=str(path), why=why, bytes=size_bytes(path))


def _folders(top: Path) -> Iterable[Path]:
    """Private folders of this user that are not just being made."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    for name in names_in(top):
        path = top / name
        try:
            about = path.lstat()
        except OSError:
            continue
        fresh = time.time() - about.st_mtime < FRESH_S
        if stat.S_ISDIR(about.st_mode) and about.st_uid == user and not fresh:
            yield path


def _lives(one: Summary, here: str, machine: Machine, system: ProcessSystem) -> bool | None:
    """Whether the supervisor of a record lives; None where that cannot be told from here."""
    if one.run_id in machine.held:
        return True
    if one.finished is not None:
        return False
    if one.machine and one.machine != here:
        return None
    return system.is_alive(ProcessId(one.pid, one.start)) is not False


def _silent_s(path: Path, words: Iterable[int]) -> float:
    """Since a record was written, or the folder was made."""
    try:
        times = [path.stat(), *((path / f"task-{number}.json").stat() for number in words)]
    except OSError:
        return 0.0  # replaced or removed in this moment: somebody is there
    return time.time() - max(about.st_mtime for about in times)
