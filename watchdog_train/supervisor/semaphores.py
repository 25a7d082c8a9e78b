"""POSIX semaphores that members of an attempt have made: nobody else can say later whose they are.

Their names tell nothing, and with a process go its mappings. So a new name is looked for in the
memory of those who live when it appears.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.core.model import ProcessId
from watchdog_train.supervisor.machine import mapped_names
from watchdog_train.system.protocol import ProcessSystem

PREFIX = "sem."
PLACE = "/dev/shm/"  # noqa: S108 - as the kernel shows a mapping
READ_AT_ONCE = 16
"""Processes whose mappings are read at one look."""


class Semaphores:
    """Of one attempt at a time."""

    def __init__(self, system: ProcessSystem) -> None:
        self._system = system
        self.forget()

    def forget(self) -> None:
        """Another attempt begins: what exists now was made by others."""
        self._known = self._names()
        self._made: set[str] = set()
        self._open: dict[str, list[ProcessId]] = {}
        """Names whose maker is unknown, and who has not been looked at for them."""

    def _names(self) -> frozenset[str]:
        names = self._system.shared_memory_names() or ()
        return frozenset(name for name in names if name.startswith(PREFIX))

    def look(self, members: Iterable[ProcessId]) -> None:
        """Ask living members for what is new."""
        names = self._names()
        new = names - self._known
        self._known |= new
        if new:
            living = list(members)
            self._open.update((name, list(living)) for name in new)
        self._open = {name: left for name, left in self._open.items() if left and name in names}
        asked = list(dict.fromkeys(who for left in self._open.values() for who in left))
        for who in asked[:READ_AT_ONCE]:
            mapped = self._system.shared_mappings(who.pid) or ()
            paths = {each.partition(" ")[2] for each in mapped}
            for name, left in list(self._open.items()):
                if PLACE + name in paths:
                    self._made.add(name)
                    del self._open[name]
                elif who in left:
                    left.remove(who)

    def unused(self) -> frozenset[str]:
        """Those that members have made and nobody has mapped any more."""
        mapped = mapped_names(self._system) if self._made else None
        if mapped is None:
            return frozenset()
        return frozenset(name for name in self._made if f"{PLACE}{name}\n" not in mapped)
