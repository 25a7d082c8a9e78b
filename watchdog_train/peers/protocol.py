"""What a backend has to offer: each task replaces its own record, and reads those of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Records(Protocol):
    """The records of one job. No call blocks: a slow backend answers with what it has."""

    def publish(self, task: int, record: bytes) -> None:
        """Replace the record of this task as a whole.

        Raises:
            OSError: it cannot be told.
        """

    def read(self) -> Mapping[int, bytes]:
        """The newest record of each task; of a task that never published there is none."""

    def remove(self) -> None:
        """The job is over for everybody: leave nothing of it behind."""
