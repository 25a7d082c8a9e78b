"""The process that looks at the GPUs for us: started, listened to, restarted, given up.

Everything here returns at once. A driver that hangs costs us the GPU signals, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from watchdog_train.core.model.gpu import GpuReading
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.helper import Helper

FIRST_ANSWER_S = 60.0
"""A driver without persistence mode initialises every GPU first, which takes seconds for each."""
ANSWER_S = 15.0
STALE_S = 7.0
"""An older reading says nothing about now."""
RETRY_S = (30.0, 120.0, 600.0)
"""Between a failure and the next try; after as many failures in a row it is given up."""


class GpuWatch:
    """Listens to one child; `reading` is the newest line that it said."""

    def __init__(self, children: ChildTable, argv: Sequence[str]) -> None:
        self.trouble: str | None = None
        """Why nothing is known of the GPUs any more; None as long as there is hope."""
        self._helper = Helper(children, "gpu")
        self._argv = tuple(argv)
        self._hears = False
        self._reading: GpuReading | None = None
        self._heard_at = 0.0
        self._answered = False
        self._failures = 0
        self._retry_at = 0.0

    def reading(self, now: float) -> GpuReading | None:
        """The newest look at all devices; None: unknown."""
        if self.trouble is None:
            self._listen(now)
        if self._reading is None or now - self._heard_at > STALE_S:
            return None
        return self._reading

    def close(self) -> None:
        """End the child, if the driver lets it end."""
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
            self._helper.start(self._argv, stays="stdout")
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
        self._answered, self._failures = True, 0

    def _fail(self, now: float, why: str) -> None:
        self._helper.kill()
        self._hears, self._reading = False, None
        if self._failures >= len(RETRY_S):
            self.trouble = f"{why} ({self._failures + 1} tries)"
            return
        self._retry_at = now + RETRY_S[self._failures]
        self._failures += 1
