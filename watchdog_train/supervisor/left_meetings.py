"""What the supervisors of a job have told each other, when all of them were killed.

A folder is removable only where nobody may still write into it. On this machine a pid tells; of a
supervisor on another one nothing does but its word, which a living one replaces every second.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
LOOK_S = 4.0
"""Between two looks at words from other machines: a living supervisor says one a second."""
_NAMED = 4


def left_meetings(
    machine: Machine,
    system: ProcessSystem,
    *,
    older_than_s: float | None,
    also: Iterable[Path] = (),
    wait: Callable[[float], None] = time.sleep,
) -> list[Leftover]:
    """Folders of jobs whose supervisors are all gone, and those of which that cannot be told.

    Args:
        machine: what is known of this user's runs; their logs name the directories of jobs.
        system: this machine.
        older_than_s: takes the place of SILENT_S.
        also: directories of jobs that no log here names.
        wait: between two looks; only where a word decides.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = f"wtrain-{user}-jobs"
    local = {base / name for base in runtime_bases()}
    shared = {place / name for place in (*map(Path, machine.meetings), *also)} - local
    found = [
        judged
        for top in sorted(local | shared)
        for path in _folders(top)
        if (judged := _judge(path, machine, system, older_than_s, local=top in local)) is not None
    ]
    by_word = [one for one in found if one.by_word]
    if any(one.leftover.removable for one in by_word):
        wait(LOOK_S)
    changed = [one for one in by_word if _words(Path(one.leftover.what)) != one.words]
    return [one.leftover for one in found if one not in changed]


@dataclass(frozen=True)
class _Judged:
    """A folder, and what was said in it."""

    leftover: Leftover
    words: Mapping[int, bytes]
    by_word: bool
    """Only its words tell: they must not change."""


def _folders(top: Path) -> Iterable[Path]:
    """Private folders of this user that are not just being made."""
    for name in names_in(top):
        path = top / name
        try:
            about = path.lstat()
        except OSError:
            continue
        ours = not hasattr(os, "getuid") or about.st_uid == os.getuid()
        if ours and stat.S_ISDIR(about.st_mode) and time.time() - about.st_mtime >= FRESH_S:
            yield path


def _words(path: Path) -> dict[int, bytes]:
    return dict(DirectoryRecords(path).read())


def _judge(
    path: Path, machine: Machine, system: ProcessSystem, older_than_s: float | None, *, local: bool
) -> _Judged | None:
    """None: somebody of it lives."""
    words = _words(path)
    told = [one for one in map(decode, words.values()) if one is not None]
    here, unknown = machine_of(system), []
    for one in told:
        lives = _lives(one, here, machine, system, local=local)
        if lives:
            return None
        if lives is None:
            unknown.append(one)
    silent_s = _silent_s(path, words)
    size = size_bytes(path)
    gone = ", ".join(_named(one) for one in told[:_NAMED]) or "nobody has told anything"
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    if not unknown and told:
        why = f"no supervisor of the {len(told)} tasks of this job lives: {gone}{more}"
        return _Judged(Leftover(kind="job", what=str(path), why=why, bytes=size), words, False)
    if silent_s < FRESH_S:
        return None
    limit_s = SILENT_S if older_than_s is None else max(FRESH_S, older_than_s)
    days = f"{silent_s / 86400:.1f} days"
    if silent_s >= limit_s:
        why = f"nothing was said here for {days}: {gone}{more}"
        return _Judged(Leftover(kind="job", what=str(path), why=why, bytes=size), words, True)
    named = ", ".join(_named(one) for one in unknown[:_NAMED])
    why = (
        f"{named or 'a supervisor on another machine'} may live on another machine; the last word "
        f"is {days} old: it goes after {SILENT_S / 86400:.0f} days, or with --older-than TIME"
    )
    left = Leftover(kind="job", what=str(path), why=why, bytes=size, removable=False)
    return _Judged(left, words, True)


def _lives(
    one: Summary, here: str, machine: Machine, system: ProcessSystem, *, local: bool
) -> bool | None:
    """Whether the supervisor of a record lives; None where that cannot be told from here."""
    if one.run_id in machine.held:
        return True
    if one.finished is not None:
        return False
    if one.machine and one.machine != here:
        # Of two machines with one name the boot tells nothing; a local folder is of this machine.
        return False if local and _boot(one.machine) != _boot(here) else None
    return system.is_alive(ProcessId(one.pid, one.start)) is not False


def _boot(machine: str) -> str:
    return machine.rpartition("/")[0].rpartition("/")[2]


def _named(one: Summary) -> str:
    return f"task {one.task} (pid {one.pid} on {one.host[:64]})"


def _silent_s(path: Path, words: Mapping[int, bytes]) -> float:
    """Since the newest record was written, or since the folder was made where there is none."""
    names = [f"task-{number}.json" for number in words] or ["."]
    try:
        newest = max((path / name).stat().st_mtime for name in names)
    except OSError:
        return 0.0  # replaced or removed in this moment: somebody is there
    return time.time() - newest
