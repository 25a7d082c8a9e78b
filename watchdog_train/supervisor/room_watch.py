"""Measures now and then what is left of disks and memory, in a thread, so that nobody waits.

A file system that does not answer holds the thread and nothing else: then nothing is known of it.
A child process would cost 40 ms of CPU each time, more than all our looks in between.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress

from watchdog_train.core.notices.ahead import DiskRoom, Room
from watchdog_train.supervisor.room import start_thread
from watchdog_train.system import proc
from watchdog_train.system.cgroup import cgroup_cache_bytes, cgroup_memory

EVERY_S = 30.0
MOST_PLACES = 6


class RoomWatch:
    """The newest measurement; at most one thread at a time."""

    def __init__(self) -> None:
        self._newest: Room | None = None
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def newest(self, now: float, places: Sequence[str]) -> Room | None:
        """Returns at once; begins another measurement when it is time."""
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = now + EVERY_S
            arguments = (now, tuple(places)[:MOST_PLACES])
            self._thread = start_thread(lambda: self._measure(*arguments), "room")
        return self._newest

    def _measure(self, at: float, places: tuple[str, ...]) -> None:
        memory = _memory()
        self._newest = Room(
            at=at,
            disks=_disks(places),
            memory_free_bytes=memory[0] if memory is not None else None,
            memory_total_bytes=memory[1] if memory is not None else None,
        )


def _disks(places: tuple[str, ...]) -> tuple[DiskRoom, ...]:
    """One for each file system, by the first place that is on it."""
    found: dict[int, DiskRoom] = {}
    for place in places:
        with suppress(OSError):
            device = os.stat(place).st_dev
            if device in found:
                continue
            usage = shutil.disk_usage(place)
            found[device] = DiskRoom(path=place, free_bytes=usage.free, total_bytes=usage.total)
    return tuple(found.values())


def _memory() -> tuple[int, int] | None:
    """Free and in all: of the machine, or of the container where that has less left."""
    told = proc.fields("/proc/meminfo")
    try:
        free, total = (1024 * int(told[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (LookupError, ValueError):
        import psutil  # 6 ms and 2 MiB that Linux does not need

        try:
            machine = psutil.virtual_memory()
        except (OSError, psutil.Error):
            return None
        free, total = int(machine.available), int(machine.total)
    with suppress(OSError):
        group = cgroup_memory()
        limit = group["limit_bytes"] if group is not None else None
        used = group["used_bytes"] if group is not None else None
        if limit is not None and used is not None and 0 < limit < total:
            left = max(0, limit - used + cgroup_cache_bytes())
            if left < free:
                return min(left, limit), limit
    return free, total
