"""Which run of this user writes checkpoints where: one file of each supervisor in local memory.

One machine only: memory is asked because a file beside the checkpoints could hang with their disk.
What a killed supervisor has left is told by its pid, and removed by `wtrain clean`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from watchdog_train.core.model import ProcessId, Value
from watchdog_train.store.places import (
    private_runtime_directory,
    release_runtime_directory,
    shared_bases,
)
from watchdog_train.trusted_files import names
from watchdog_train.whole_files import read_json, replace_json

PURPOSE = "claims"
_FILE = "claims.json"
_MAX_BYTES = 1 << 20
_MOST_RUNS = 4096


class Claims(Value):
    """What a supervisor says of its training."""

    run_id: str
    supervisor: ProcessId
    directories: tuple[str, ...]
    """Where the training writes to."""
    job: str | None = None
    """Of which the run is a task: its tasks share their directories."""


def claims_directory(run_id: str, *, make: bool) -> Path | None:
    """Where a run says it; beside those of all runs of this user, in whatever session."""
    return private_runtime_directory(PURPOSE, run_id, make=make, bases=shared_bases())


def publish(mine: Claims) -> Iterator[Claims]:
    """Say it, and hear what the others say, the dead included.

    Raises:
        OSError: there is no place for it.
    """
    folder = claims_directory(mine.run_id, make=True)
    if folder is None:
        return
    # Written first: of two that begin at the same time each may hear of the other, none of nobody.
    replace_json(folder / _FILE, mine)
    for name in sorted(names(folder.parent))[:_MOST_RUNS]:
        other = read_json(folder.parent / name / _FILE, Claims, cap_bytes=_MAX_BYTES)
        if other is not None and other.run_id != mine.run_id:
            yield other


def forget(run_id: str) -> None:
    """Take back what supervisors of this run have said, also one that was killed."""
    folder = claims_directory(run_id, make=False)
    if folder is not None:
        release_runtime_directory(folder, with_content=True)
