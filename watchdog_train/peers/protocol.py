"""What a backend has to offer: each task replaces its own record, and reads those of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Told(Protocol):
    """What every backend offers for our own record."""

    @property
    def stays(self) -> bool:
        """Whether what we have said can be read when we have ended."""

    @property
    def helper_pids(self) -> frozenset[int]:
        """Children of this process that do its work: they belong to no training."""

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of this task as a whole.

        Raises:
            OSError: it cannot be told.
        """

    def remove(self) -> None:
        """The job is over for everybody: leave nothing of it behind."""

    def close(self) -> None:
        """We end: let go of what is held for us."""


class Records(Told, Protocol):
    """The records of one job. A slow backend answers at once with what it has, but for read_now,
    flush and remove, which have limits of their own.
    """

    def read(self) -> Mapping[int, bytes]:
        """The newest record of each task; of a task that never published there is none."""

    def read_now(self, timeout_s: float) -> Mapping[int, bytes]:
        """What read() says after one more look, or after the time limit."""

    def sees(self, path: str) -> bool | None:
        """Whether a path is to be seen on this machine; None until that is known."""

    def flush(self) -> None:
        """Wait for what was published to be told."""


class SlowRecords(Told, Protocol):
    """Where records lie that take time to reach: a thread asks it, never a supervisor's loop.

    Every call has an end of its own.
    """

    def read_of(self, tasks: Iterable[int]) -> Mapping[int, bytes]:
        """The newest record of each of these that can be read now."""
