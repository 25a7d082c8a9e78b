"""Search logs: which pattern, first in time, and whether work continued after it. Pure.

Progress after a line makes it a warning, not a cause. The first failure in time is the cause, and
not the last lines: timeouts print minutes after the failure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import itemgetter

from watchdog_train.core.diagnosis.facts import LogText
from watchdog_train.core.diagnosis.log_lines import (
    LogLine,
    advances,
    progress_of,
    rank_of,
    read_line,
)
from watchdog_train.core.model import Value

_HITS_CAP = 200
_END_LINES = 2
_NAMED = re.compile(r"\w*(?:loss|norm|ppl|perplexity)\w*(?=\W{0,6}(?:nan|inf))", re.IGNORECASE)
_MOVES = 3
"""With this many rising values in a row it moved until the end of the log."""
MOVED_ON = 2
"""After this many steps of progress a crash line was a warning; one may come from a buffer."""


class Hit(Value):
    line: LogLine
    log: int
    position: int
    rank: int | None
    progress_after: int


class LogIndex:
    """The logs of one piece of evidence, prepared once for many patterns; `^` is a line's."""

    def __init__(self, logs: Sequence[LogText]) -> None:
        self._logs = [_Prepared(number, log) for number, log in enumerate(logs)]

    def first(self, pattern: str, *, crashed: bool) -> Hit | None:
        """The first failure in time among the matching lines.

        Lines with work after them count only in a crash, and only if all lines have work after
        them.
        """
        found = [hit for log in self._logs for hit in log.hits(pattern)]
        allowed = MOVED_ON if crashed else 1
        fresh = [hit for hit in found if hit.progress_after < allowed]
        return _earliest(fresh or (found if crashed else []))

    def at_end(self, pattern: str) -> Hit | None:
        """The first matching line with which a log ends."""
        found = (
            hit
            for log in self._logs
            for hit in log.hits(pattern)
            if hit.position >= len(log.lines) - _END_LINES
        )
        return next(found, None)

    def stays(self, pattern: str) -> Hit | None:
        """The second last matching line, if no later line has a number for what it names."""
        for log in self._logs:
            hits = log.hits(pattern)[-2:]
            if len(hits) < 2:
                continue
            name = _NAMED.search(hits[-1].line.text)
            number = re.compile(rf"{re.escape(name[0])}\W{{0,6}}[-+]?\d" if name else r"\A\d\Z")
            if not any(number.search(line.text) for line in log.lines[hits[0].position :]):
                return hits[0]
        return None

    def moves(self) -> bool:
        """Whether the counter printed last still grew at the end of some log."""
        return any(log.moves() for log in self._logs)

    def lines(self) -> Iterator[tuple[LogLine, int | None]]:
        for log in self._logs:
            for line in log.lines:
                yield line, line.rank if line.rank is not None else log.rank


class _Prepared:
    def __init__(self, number: int, log: LogText) -> None:
        self.number = number
        self.rank = log.rank
        self.lines = [read_line(raw) for raw in log.lines]
        self._text = "\n".join(line.text for line in self.lines)
        self._starts = list(accumulate((len(line.text) + 1 for line in self.lines), initial=0))
        self._progress = advances(self.lines)

    def hits(self, pattern: str) -> list[Hit]:
        """Searches the complete text first: most patterns are in no line."""
        return list(islice(self._hits(re.compile(pattern, re.MULTILINE)), _HITS_CAP))

    def _hits(self, pattern: re.Pattern[str]) -> Iterator[Hit]:
        at = 0
        while at <= len(self._text) and (match := pattern.search(self._text, at)):
            position = bisect_right(self._starts, match.start()) - 1
            line = self.lines[position]
            at = self._starts[position] + len(line.text) + 1
            if pattern.search(line.text) is None:
                continue  # it ran over the end of a line: that may hide what the next one holds
            # Of the same printer: other ranks continue for a while after one has failed.
            after = self._progress[bisect_right(self._progress, position) :]
            yield Hit(
                line=line,
                log=self.number,
                position=position,
                rank=self.rank if self.rank is not None else rank_of(line),
                progress_after=sum(self.lines[each].rank == line.rank for each in after),
            )

    def moves(self) -> bool:
        counted = [value for line in self.lines if (value := progress_of(line.text)) is not None]
        if not counted:
            return False
        label, _ = counted[-1]
        values = [value for name, value in counted if name == label][-_MOVES:]
        grew = label == "trainer" or all(a < b for a, b in pairwise(values))
        return len(values) == _MOVES and grew


def _earliest(hits: Sequence[Hit]) -> Hit | None:
    """The first in time; if clocks differ or are missing, the first in its log."""
    clocks = {hit.line.clock for hit in hits}
    timed = [hit for hit in hits if len(clocks) == 1 or hit.line.clock == "date"]
    order = [((hit.line.at or 0.0, hit.position, hit.log), hit) for hit in timed]
    return min(order, key=itemgetter(0))[1] if order else next(iter(hits), None)
