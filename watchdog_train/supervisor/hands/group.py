"""The system's own list of an attempt's processes, where it keeps one: a Job object of Windows.

A second source of membership beside ancestry and token, and the way to end what refuses to be
ended one by one. Without it everything else works on; why it is lacking is told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from watchdog_train.supervisor.hands.records import read_keeper
from watchdog_train.system.protocol import ProcessGroup, ProcessSystem


class AttemptGroup:
    """Of one attempt at a time."""

    def __init__(self, system: ProcessSystem) -> None:
        self._system = system
        self._group: ProcessGroup | None = None
        self._asked = False
        self.trouble: str | None = None
        """Why there is none where there should be one."""

    def follow(self, attempt_dir: Path, run_id: str, attempt: int) -> None:
        """Open what the keeper has made, as soon as it has said so.

        The name is not taken from its record: training may have written there, and whoever is in
        another run's group must not become a member of this one.
        """
        if self._asked:
            return
        record = read_keeper(attempt_dir)
        if record is None:
            return
        self._asked = True
        if record.job_problem is not None:
            self.trouble = record.job_problem
        elif record.job is None:
            return
        elif record.job != self._system.group_name(run_id, attempt):
            self.trouble = f"{record.job} is no group of this supervisor's"
        else:
            try:
                self._group = self._system.open_group(record.job)
            except OSError as error:
                self.trouble = str(error)

    def pids(self) -> frozenset[int]:
        """Whoever is in it now; nobody where it cannot be asked."""
        if self._group is None:
            return frozenset()
        try:
            return self._group.pids()
        except OSError as error:
            self.trouble = str(error)
            self._let_go()
            return frozenset()

    def end(self, known: frozenset[int]) -> bool:
        """End everybody in it, if all of them are known; whether that was done.

        Args:
            known: pids of everybody who was ever recorded for this attempt.
        """
        group, listed = self._group, self.pids()
        if group is None or not listed or not listed <= known:
            return False
        try:
            group.end_all()
        except OSError as error:
            self.trouble = str(error)
            return False
        return True

    def forget(self, left: Iterable[int] = ()) -> None:
        """The attempt is over; processes of it that are left go where they were without it."""
        self._let_go(left)
        self._asked = False
        self.trouble = None

    def _let_go(self, left: Iterable[int] = ()) -> None:
        if self._group is not None:
            self._group.close(left)
            self._group = None
