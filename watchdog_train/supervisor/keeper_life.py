"""Whether the keeper of an attempt lives, and whose its children are when it does not."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_train.core.model import ProcessId, ProcessRow

ORPHANED_S = 2.0


class KeeperLife:
    """What snapshots of the processes say of one keeper."""

    def __init__(self) -> None:
        """Nobody is known yet."""
        self.identity: ProcessId | None = None
        self._died_at: float | None = None

    @property
    def pid(self) -> int:
        """0, which is no process, as long as no keeper is known."""
        return self.identity.pid if self.identity is not None else 0

    def is_dead(self, rows: Mapping[int, ProcessRow]) -> bool:
        """False as long as no keeper is known, too."""
        if self.identity is None:
            return False
        row = rows.get(self.pid)
        return row is None or row.identity != self.identity or row.state in ("Z", "X")

    def is_alive(self, rows: Mapping[int, ProcessRow], now: float) -> bool:
        """Until its children have another parent, as the kernel gives them one.

        A leader is a zombie before its last thread has ended, and has its children until then.
        On Windows they keep their dead parent: it is not waited for.
        """
        if self.identity is None or not self.is_dead(rows):
            return self.identity is not None
        self._died_at = self._died_at or now
        is_parent = any(row.ppid == self.pid for row in rows.values())
        return is_parent and now - self._died_at <= ORPHANED_S
