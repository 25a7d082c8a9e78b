"""Tells a run directory from a copy of it, by a random id inside that a copy takes along.

Device numbers are not compared: a reboot or another mount of the same file server changes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from watchdog_train.core.model import Value
from watchdog_train.whole_files import read_json, replace_json

_FILE = "identity.json"
_MAX_BYTES = 65_536


class _Identity(Value):
    id: str
    path: str
    """The run directory as the last supervisor found it."""


class _Pid(Value):
    """Of lock.json and of keeper.json."""

    pid: int | None = None
    keeper_pid: int | None = None


def sign(run_dir: Path) -> None:
    """Record where this run directory is, and give it an id if it has none.

    Raises:
        OSError: it cannot be written.
    """
    known = _read(run_dir)
    path = os.path.realpath(run_dir)
    if known is None or known.path != path:
        fresh = _Identity(id=known.id if known else os.urandom(16).hex(), path=path)
        replace_json(run_dir / _FILE, fresh)


def original_of(run_dir: Path) -> Path | None:
    """The directory that this one is a copy of; None if it is the original, or that is unknown.

    The directory in which a living supervisor or keeper works is the original, wherever it is now.
    Otherwise the recorded one is, if it still exists with the same id.
    """
    known = _read(run_dir)
    if known is None:
        return None
    for other in (*_in_use(run_dir), Path(known.path)):
        theirs = _read(other)
        if theirs is not None and theirs.id == known.id:
            return None if _mark(other) == _mark(run_dir) else other
    return None


def _read(run_dir: Path) -> _Identity | None:
    return read_json(run_dir / _FILE, _Identity, cap_bytes=_MAX_BYTES)


def _mark(run_dir: Path) -> tuple[int, ...]:
    """The same through every mount; a copy has inodes of its own, or was changed later."""
    try:
        about = (run_dir / _FILE).stat()
        return run_dir.stat().st_ino, about.st_ino, about.st_ctime_ns
    except OSError:
        return ()


def _in_use(run_dir: Path) -> Iterator[Path]:
    """Directories in which the processes work that the files of this one name, if they live."""
    from watchdog_train.system import current  # what has no identity needs no system

    system = current()
    records = sorted((run_dir / "attempts").glob("*/keeper.json"))[-1:]
    for record in (run_dir / "lock.json", *records):
        named = read_json(record, _Pid, cap_bytes=_MAX_BYTES) or _Pid()
        pid = named.keeper_pid or named.pid
        for path in (Path(file.name) for file in system.open_files(pid) or ()) if pid else ():
            if path.name == "lock":
                yield path.parent
            elif path.parent.parent.name == "attempts":
                yield path.parents[2]
