"""Remembers what the job has held on its GPUs, and asks who holds it before the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec

from watchdog_train.core.model import ProcessId
from watchdog_train.core.model.gpu import GpuClaim, GpuHold, GpuHolder, GpuReading
from watchdog_train.core.recovery.gpu_memory import claimed, hold, strangers
from watchdog_train.report.why_text import holders_text
from watchdog_train.supervisor.gpu_watch import GpuWatch
from watchdog_train.system.protocol import ProcessSystem

MOST_NAMED = 8


class GpuMemory:
    """One run's claim to GPU memory, over all of its attempts."""

    def __init__(self, watch: GpuWatch, system: ProcessSystem, name: Callable[[int], str]) -> None:
        self._watch = watch
        self._system = system
        self._name = name
        self._claim = GpuClaim()
        self._asked_at: float | None = None

    def follow(self, reading: GpuReading, pids: AbstractSet[int]) -> None:
        """A look while the job runs."""
        self._asked_at = None
        self._claim = claimed(self._claim, reading, pids)

    def held(self, now: float, ever: AbstractSet[ProcessId]) -> GpuHold | None:
        """Who holds it now that the job is gone; None: it has used none, or nobody can be asked.

        Args:
            now: monotonic seconds.
            ever: all processes that ever belonged to the run.
        """
        if not self._claim.needs or self._watch.trouble is not None:
            return None
        if self._asked_at is None:
            self._asked_at = now
        reading = self._watch.reading(now)
        if reading is None or reading.at < self._asked_at:  # of a time when the job lived
            return GpuHold(answered=False, asked_at=self._asked_at)
        found = hold(self._claim, reading, self._still_ours(reading, ever))
        return msgspec.structs.replace(
            found, ours=self._named(found.ours), others=self._named(found.others)
        )

    def others(self, now: float, ever: AbstractSet[ProcessId]) -> tuple[str, ...]:
        """Who else has memory on the job's devices, for a person; as far as it is known."""
        reading = self._watch.reading(now)
        if reading is None:
            return ()
        found = strangers(self._claim, reading, self._still_ours(reading, ever))
        return tuple(holders_text((one,)) for one in self._named(found)[:MOST_NAMED])

    def _still_ours(self, reading: GpuReading, ever: AbstractSet[ProcessId]) -> set[int]:
        """A pid of ours that the driver names: ours, unless somebody else has the pid by now."""
        listed = {one.pid for device in reading.devices for one in device.processes or ()}
        starts = {who.pid: who for who in ever if who.pid in listed}
        return {pid for pid, who in starts.items() if self._system.identity(pid) in (None, who)}

    def _named(self, holders: tuple[GpuHolder, ...]) -> tuple[GpuHolder, ...]:
        return tuple(msgspec.structs.replace(one, name=self._name(one.pid)) for one in holders)
