"""What the processes of an attempt have used together: CPU time and I/O, totals that only grow."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from watchdog_train.core.model import ProcessId, ProcessRow


class _Used(msgspec.Struct):
    own_s: float = 0.0
    reaped_s: float = 0.0
    """Of its reaped children."""
    io_bytes: int = 0
    parent: int = 0


class _Again(msgspec.Struct):
    """CPU time of ended children that is in the sum already.

    The kernel adds it to their parent's reaped time, where it would count a second time: all of a
    training's CPU time as a peak of one sample. It does so before they leave the list of
    processes, so the parent's number has it in this sample or the next, and not later.
    """

    seconds: float = 0.0
    looks: int = 2


class Accounts(msgspec.Struct):
    """Sums over all processes so far, exited ones included."""

    cpu_s: float = 0.0
    io_bytes: int = 0
    cpu_known: bool = True
    io_known: bool = True
    _used: dict[ProcessId, _Used] = {}
    _again: dict[int, _Again] = {}
    """By the pid of the parent."""

    def begin(self, gone: Iterable[ProcessId]) -> None:
        """Begin a sample in which these processes are gone."""
        for parent, again in list(self._again.items()):
            again.looks -= 1
            if not again.looks:
                del self._again[parent]
        for who in gone:
            self._again.pop(who.pid, None)
            used = self._used.pop(who, None)
            if used is not None:
                again = self._again.setdefault(used.parent, _Again())
                again.seconds += used.own_s + used.reaped_s
                again.looks = 2

    def count(self, row: ProcessRow) -> None:
        """Add what a living process did since its last sample."""
        before = self._used.get(row.identity)
        if row.cpu_s is None:
            self.cpu_known = False
        if row.io_bytes is None and before is not None:
            self.io_known = False
        before = before or _Used()
        now = _Used(
            own_s=max(row.cpu_s or 0.0, before.own_s),
            reaped_s=max(row.reaped_cpu_s or 0.0, before.reaped_s),
            io_bytes=max(row.io_bytes or 0, before.io_bytes),
            parent=row.ppid,
        )
        reaped_s = now.reaped_s - before.reaped_s
        again = self._again.get(row.pid)
        if again is not None:
            known_s = min(reaped_s, again.seconds)
            again.seconds -= known_s
            reaped_s -= known_s
        self.cpu_s += now.own_s - before.own_s + reaped_s
        self.io_bytes += now.io_bytes - before.io_bytes
        self._used[row.identity] = now
