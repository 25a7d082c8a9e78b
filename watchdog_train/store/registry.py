"""The list of this user's runs that have not ended, and where each writes checkpoints.

A hint, not a truth: each entry points at a run directory, which decides.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from watchdog_train.core.model import ProcessId, Value
from watchdog_train.store.lock import Holder, is_held
from watchdog_train.store.run_paths import RunDirectory, newest_last
from watchdog_train.system.file_systems import (
    private_runtime_directory,
    release_runtime_directory,
    shared_bases,
    state_directory,
)
from watchdog_train.trusted_files import names
from watchdog_train.whole_files import read_json, replace_json

_MAX_BYTES = 65_536
_MAX_ENTRIES = 10_000


class LiveRun(Holder):
    """A run that was started and was not seen to end."""

    run_id: str
    run_dir: str
    training_key: str | None = None
    """The same for two runs of the same training."""
    slot_dir: str | None = None
    """Where its control page is; the run directory says it too, but may be far away."""
    supervised: bool | None = None
    """Whether a supervisor holds its lock now; None if unknown. Not in the file."""

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(Path(self.run_dir))


def register(
    run: RunDirectory,
    supervisor: ProcessId,
    *,
    boot_id: str | None = None,
    training_key: str | None = None,
    slot_dir: Path | None = None,
) -> bool:
    """List a run, or renew its entry at adoption; False when the list cannot be written.

    Never an error: a home directory that is full must not keep training from starting.
    """
    entry = LiveRun(
        run_id=run.run_id,
        run_dir=str(run.path.absolute()),
        pid=supervisor.pid,
        start=supervisor.start,
        host=socket.gethostname(),
        boot_id=boot_id,
        training_key=training_key,
        slot_dir=str(slot_dir) if slot_dir is not None else None,
    )
    target = entry_path(run.run_id)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(target, entry)
    except OSError:
        return False
    return True


def forget(run: RunDirectory) -> None:
    with contextlib.suppress(OSError):
        entry_path(run.run_id).unlink(missing_ok=True)


def live_runs(*, boot_id: str | None = None) -> tuple[LiveRun, ...]:
    """The listed runs of this host, oldest first; an earlier boot's have ended with it.

    A run without a supervisor is listed too: its training may live. Entries whose directory is gone
    are dropped; entries of other hosts, which share the home directory, are left alone.
    """
    found: dict[str, LiveRun] = {}
    for path, entry in _entries_here():
        earlier_boot = None not in {boot_id, entry.boot_id} and boot_id != entry.boot_id
        if earlier_boot or not entry.directory.path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            continue
        held = is_held(entry.directory.lock)
        found[entry.run_id] = msgspec.structs.replace(entry, supervised=held)
    order = newest_last(entry.directory for entry in found.values())
    return tuple(found[run.run_id] for run in order)


def entries_here(runs_dir: Path | None = None) -> tuple[LiveRun, ...]:
    """The entries of this host (or one place), oldest first; no run directory is read."""
    place = os.path.abspath(runs_dir) if runs_dir is not None else None
    found = {
        entry.run_id: entry
        for _, entry in _entries_here()
        if place in (None, os.path.dirname(entry.run_dir))
    }
    order = sorted(found.values(), key=lambda entry: (entry.directory.stamp, entry.run_id))
    return tuple(order)


def entry_of(run_id: str) -> LiveRun | None:
    entry = read_json(entry_path(run_id), LiveRun, cap_bytes=_MAX_BYTES)
    return entry if entry is not None and entry.run_id == run_id else None


def entry_path(run_id: str) -> Path:
    return state_directory() / "runs" / f"{run_id}.json"


def _entries_here() -> Iterator[tuple[Path, LiveRun]]:
    """The valid entries of this host, each with its file."""
    host, folder = socket.gethostname(), state_directory() / "runs"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    chosen = sorted(name for name in names if name.endswith(".json") and name[0] != ".")
    for name in chosen[:_MAX_ENTRIES]:
        entry = read_json(folder / name, LiveRun, cap_bytes=_MAX_BYTES)
        if entry is not None and entry.host == host:
            run_dir = Path(entry.run_dir)
            if run_dir.is_absolute() and run_dir.name == entry.run_id:
                yield folder / name, entry


CLAIMS_PURPOSE = "claims"
CLAIMS_FILE = "claims.json"
CLAIMS_CAP_BYTES = 1 << 20
MOST_CLAIMS = 4096


class Claims(Value):
    """Where a supervisor's training writes checkpoints: one file of each in local memory.

    One machine only: a file next to the checkpoints could hang with their disk. What a killed
    supervisor has left is recognised by its pid, and removed by `wtrain clean`.
    """

    run_id: str
    supervisor: ProcessId
    directories: tuple[str, ...]
    job: str | None = None
    """The job of this task: its tasks share their directories."""


def claims_directory(run_id: str, *, make: bool) -> Path | None:
    """The folder of a run's claims, next to those of all runs of the user, in any session."""
    return private_runtime_directory(CLAIMS_PURPOSE, run_id, make=make, bases=shared_bases())


def publish_claims(mine: Claims) -> Iterator[Claims]:
    """Record ours, and yield all others, the dead included; OSError without a place."""
    folder = claims_directory(mine.run_id, make=True)
    if folder is None:
        return
    # Written first: of two that begin at the same time at least one reads the other's.
    replace_json(folder / CLAIMS_FILE, mine)
    for name in sorted(names(folder.parent))[:MOST_CLAIMS]:
        other = read_json(folder.parent / name / CLAIMS_FILE, Claims, cap_bytes=CLAIMS_CAP_BYTES)
        if other is not None and other.run_id != mine.run_id:
            yield other


def forget_claims(run_id: str) -> None:
    """Remove claims by supervisors of this run, also one that was killed."""
    folder = claims_directory(run_id, make=False)
    if folder is not None:
        release_runtime_directory(folder, with_content=True)
