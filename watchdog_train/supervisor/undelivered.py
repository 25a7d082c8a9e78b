"""What one channel has not been told yet: collected, sent together, kept when it did not arrive.

Pure: times come from the caller. A message may arrive twice (a service took it and its answer was
lost), never be lost while the run lives, but for the oldest of very many, which are counted.
"""

from __future__ import annotations

import msgspec

from watchdog_train.report.notify_words import News, Topic

MOST_LINES = 20
RETRY_FIRST_S = 60.0
RETRY_MOST_S = 900.0
"""After each failure in a row twice as long: a network that is away at night comes back."""


class Undelivered(msgspec.Struct):
    """The lines for one channel, oldest first."""

    every_s: float
    """Between two messages; the last one of a run does not wait."""
    lines: list[News] = []
    left_out: int = 0
    on_the_way: tuple[News, ...] = ()
    left_out_told: int = 0
    """Of those left out: what the message on the way says."""
    failures: int = 0
    """In a row."""
    not_before_s: float = float("-inf")

    def keep(self, told: News) -> None:
        """One more line; the last one of a run opens the way for all."""
        self.lines.append(told)
        self._cap()
        if told.last:
            self.not_before_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether there is something to send, and its time has come."""
        return bool(self.lines) and not self.on_the_way and now_s >= self.not_before_s

    def take(self, now_s: float) -> tuple[News, ...]:
        """What is sent now; to be answered by arrived() or failed()."""
        self.on_the_way, self.lines = tuple(self.lines), []
        self.left_out_told = self.left_out
        self.not_before_s = now_s + self.every_s
        return self.on_the_way

    def text(self) -> str:
        """The body of the message on the way."""
        lines = [each.line for each in self.on_the_way]
        if self.left_out_told:
            lines.insert(0, f"({self.left_out_told} earlier messages are left out)")
        return "\n".join(lines)

    def topics(self) -> tuple[Topic, ...]:
        """Of the message on the way, oldest first."""
        return tuple(each.topic for each in self.on_the_way)

    def arrived(self) -> None:
        """The service took it."""
        self.left_out -= self.left_out_told
        self.on_the_way, self.failures = (), 0

    def failed(self, now_s: float) -> None:
        """Nobody was told: it is sent again with what comes meanwhile, later each time."""
        hurries = any(each.last for each in self.lines)
        self.lines[:0] = self.on_the_way
        self.on_the_way = ()
        self._cap()
        wait_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        self.not_before_s = float("-inf") if hurries else now_s + max(self.every_s, wait_s)

    def _cap(self) -> None:
        over = len(self.lines) - MOST_LINES
        if over > 0:
            del self.lines[:over]
            self.left_out += over
