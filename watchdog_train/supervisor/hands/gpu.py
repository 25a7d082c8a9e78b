"""The GPUs as the driver shows them, and the memory on them that a job holds or waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from watchdog_train.core.detection.gpu import own_devices
from watchdog_train.core.model import ProcessId
from watchdog_train.core.model.gpu import (
    GpuClaim,
    GpuHold,
    GpuHolder,
    GpuReading,
    GpuSeen,
    GpuXid,
)
from watchdog_train.core.recovery.gpu_memory import claimed, hold, strangers
from watchdog_train.report.why_text import holders_text
from watchdog_train.supervisor.children import ChildTable, Helper
from watchdog_train.system.protocol import ProcessSystem

FIRST_ANSWER_S = 60.0
"""A driver without persistence mode initialises every GPU first, which takes seconds for each."""
ANSWER_S = 15.0
STALE_S = 7.0
"""Maximum age of a reading that still counts as present."""
RETRY_S = (30.0, 120.0, 600.0)
"""Waits after the first, second and third failure in a row; the fourth one is final."""


class GpuWatch:
    """Reads from one child; `reading` is its newest line."""

    def __init__(self, children: ChildTable, argv: Sequence[str]) -> None:
        self.trouble: str | None = None
        """Why nothing is known of the GPUs any more; None while a try is left."""
        self.xids: tuple[GpuXid, ...] = ()
        self._helper = Helper(children, "gpu")
        self._argv = tuple(argv)
        self._hears = False
        self._reading: GpuReading | None = None
        self._heard_at = 0.0
        self._answered = False
        self._failures = 0
        self._retry_at = 0.0

    def reading(self, now: float) -> GpuReading | None:
        """The newest reading; None without one, or if it is older than STALE_S."""
        if self.trouble is None:
            self._listen(now)
        if self._reading is None or now - self._heard_at > STALE_S:
            return None
        return self._reading

    def close(self) -> None:
        """Stop the child, if the driver allows it."""
        self._helper.kill()

    def _listen(self, now: float) -> None:
        if not self._hears:
            if now < self._retry_at:
                return
            if self._helper.running:
                self._fail(now, "the process that asks the driver cannot be ended")
            else:
                self._start(now)
            return
        lines = self._helper.hear()
        if lines is None:
            self._fail(now, "the process that asks the driver has ended")
        elif lines:
            self._take(lines[-1], now)
        elif now - self._heard_at > (limit_s := ANSWER_S if self._answered else FIRST_ANSWER_S):
            self._fail(now, f"the driver has not answered for {limit_s:.0f} s")

    def _start(self, now: float) -> None:
        try:
            self._helper.start(self._argv, stays=True)
        except OSError as error:
            self._fail(now, f"it cannot be asked: {error.strerror}")
            return
        self._hears, self._answered, self._heard_at = True, False, now

    def _take(self, line: bytes, now: float) -> None:
        try:
            reading = msgspec.json.decode(line, type=GpuReading)
        except (msgspec.DecodeError, RecursionError):
            self._fail(now, "the answer could not be read")
            return
        if reading.problem is not None:
            self._helper.kill()
            self.trouble = reading.problem
            return
        self._reading, self._heard_at = reading, now
        self.xids = reading.xids or self.xids  # a new process hears of new ones alone
        self._answered, self._failures = True, 0

    def _fail(self, now: float, why: str) -> None:
        self._helper.kill()
        self._hears, self._reading = False, None
        if self._failures >= len(RETRY_S):
            self.trouble = f"{why} ({self._failures + 1} tries)"
            return
        self._retry_at = now + RETRY_S[self._failures]
        self._failures += 1


MOST_NAMED = 8


class GpuMemory:
    """One run's use of GPU memory, over all of its attempts."""

    def __init__(self, watch: GpuWatch, system: ProcessSystem, name: Callable[[int], str]) -> None:
        self.watch = watch
        self._system = system
        self._name = name
        self._claim = GpuClaim()
        self._devices = set[int]()
        self._asked_at: float | None = None

    def follow(self, reading: GpuReading, pids: AbstractSet[int]) -> None:
        """Note what the running job uses."""
        self._asked_at = None
        self._claim = claimed(self._claim, reading, pids)
        self._devices |= {device.index for device in own_devices(reading, pids)}

    def held(self, now: float, ever: AbstractSet[ProcessId]) -> GpuHold | None:
        """Who holds the job's GPU memory after its exit; None: it used none, or unknown.

        `ever`: all processes that ever belonged to the run.
        """
        if not self._claim.needs or self.watch.trouble is not None:
            return None
        if self._asked_at is None:
            self._asked_at = now
        reading = self.watch.reading(now)
        if reading is None or reading.at < self._asked_at:  # of a time when the job lived
            return GpuHold(answered=False, asked_at=self._asked_at)
        found = hold(self._claim, reading, self._still_ours(reading, ever))
        return msgspec.structs.replace(
            found, ours=self._named(found.ours), others=self._named(found.others)
        )

    def seen(self, now: float, ever: AbstractSet[ProcessId]) -> GpuSeen:
        """Who else has memory on the job's devices, and known errors of these."""
        reading = self.watch.reading(now)
        xids = tuple(xid for xid in self.watch.xids if xid.index in {None, *self._devices})
        if reading is None:
            return GpuSeen(xids=xids)
        found = self._named(strangers(self._claim, reading, self._still_ours(reading, ever)))
        others = tuple(holders_text((one,)) for one in found[:MOST_NAMED])
        return GpuSeen(others=others, xids=xids)

    def _still_ours(self, reading: GpuReading, ever: AbstractSet[ProcessId]) -> set[int]:
        """Our pids that the driver names, unless the pid belongs to another process by now."""
        listed = {one.pid for device in reading.devices for one in device.processes or ()}
        starts = {who.pid: who for who in ever if who.pid in listed}
        return {pid for pid, who in starts.items() if self._system.identity(pid) in (None, who)}

    def _named(self, holders: tuple[GpuHolder, ...]) -> tuple[GpuHolder, ...]:
        return tuple(msgspec.structs.replace(one, name=self._name(one.pid)) for one in holders)
