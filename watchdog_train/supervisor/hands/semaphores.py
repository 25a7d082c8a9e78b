"""POSIX semaphores made by members of an attempt, recorded because their maker is unknown later.

Their names show no owner, and a process loses its mappings at exit. So a new one is searched by its
inode in the memory of the processes alive then: its maker has it under a name that is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from watchdog_train.core.model import ProcessId
from watchdog_train.system.protocol import ProcessSystem

PREFIX = "sem."
MAPPED = "{} /dev/shm/"
EVERY_S = 0.25
"""The list may have thousands of tensors in it."""
READ_AT_ONCE = 4
"""Processes whose mappings are read in one sample: 3 ms each with torch."""


class Semaphores:
    def __init__(self, system: ProcessSystem) -> None:
        self._system = system
        self.forget()

    def forget(self) -> None:
        """Another attempt begins: what exists now was made by others."""
        self._next = 0.0
        self._known = self._listed()
        self._made: dict[str, int] = {}
        self._open: dict[str, list[ProcessId]] = {}
        """Names without a known maker, and members whose mappings were not read for them yet."""

    def _listed(self) -> dict[str, int]:
        listed = self._system.shared_memory_names() or {}
        return {name: inode for name, inode in listed.items() if name.startswith(PREFIX)}

    def look(self, members: Iterable[ProcessId], now: float) -> None:
        """Read the mappings of living members for new names."""
        if now < self._next:
            return
        self._next = now + EVERY_S
        before, self._known = self._known, self._listed()
        new = {name for name, inode in self._known.items() if before.get(name) != inode}
        living = list(members) if new else []
        self._open.update((name, list(living)) for name in new)
        self._open = {
            name: left for name, left in self._open.items() if left and name in self._known
        }
        asked = list(dict.fromkeys(who for left in self._open.values() for who in left))
        for who in asked[:READ_AT_ONCE]:
            mapped = tuple(self._system.shared_mappings(who.pid) or ())
            for name, left in list(self._open.items()):
                inode = self._known[name]
                if any(each.startswith(MAPPED.format(inode)) for each in mapped):
                    self._made[name] = inode
                    del self._open[name]
                elif who in left:
                    left.remove(who)

    def unused(self) -> frozenset[str]:
        """Names made by members that no process maps any more."""
        listed = self._listed()
        made = {name: inode for name, inode in self._made.items() if listed.get(name) == inode}
        mapped = mapped_names(self._system) if made else None
        if mapped is None:
            return frozenset()
        return frozenset(
            name for name, inode in made.items() if "\n" + MAPPED.format(inode) not in mapped
        )


def mapped_names(system: ProcessSystem) -> str | None:
    """Shared memory of this user's processes: a line `INODE PATH` each; None: unknown."""
    if system.shared_mappings(os.getpid()) is None:
        return None
    names: set[str] = set()
    for row in system.all_processes().values():
        if hasattr(os, "getuid") and system.user_id(row.pid) == os.getuid():
            names.update(system.shared_mappings(row.pid) or ())
    return "".join(f"\n{name}" for name in sorted(names)) + "\n"
