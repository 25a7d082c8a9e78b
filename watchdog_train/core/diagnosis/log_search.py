"""Looks for lines in logs: which pattern, first in time, and whether work went on after it. Pure.

Progress after a line makes it a warning, not a cause. The first failure in time is the cause, and
not the last lines: time-outs print minutes after what they wait for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise

from watchdog_train.core.diagnosis.facts import LogText
from watchdog_train.core.diagnosis.log_lines import (
    LogLine,
    advances,
    progress_of,
    rank_of,
    read_line,
)
from watchdog_train.core.model import Value

HITS_CAP = 200
_END_LINES = 2
_STAYS = 2
_NAMED = re.compile(r"\w*(?:loss|norm|ppl|perplexity)\w*(?=\W{0,6}(?:nan|inf))", re.IGNORECASE)
_MOVES = 3
"""So many rising values in a row: it moved until the end of the log."""
MOVED_ON = 2
"""After so many steps of progress a line of a crash was a warning: one may be a buffer's."""


class Hit(Value):
    """A line that fits."""

    line: LogLine
    log: int
    position: int
    rank: int | None
    progress_after: int

    @property
    def order(self) -> tuple[float, int, int]:
        """For hits with the same clock, or none: earlier ones first."""
        return (self.line.at or 0.0, self.position, self.log)


class LogIndex:
    """The logs of one piece of evidence, prepared once for many patterns."""

    def __init__(self, logs: Sequence[LogText]) -> None:
        self._logs = [_Prepared(number, log) for number, log in enumerate(logs)]

    def hits(self, patterns: Sequence[str]) -> Iterator[Hit]:
        """Lines that fit one of the patterns, log by log."""
        either = _either(patterns)
        for log in self._logs:
            yield from islice(log.hits(either), HITS_CAP)

    def first(self, patterns: Sequence[str], *, crashed: bool) -> Hit | None:
        """The first failure in time among the lines that fit.

        Lines with work after them only count in a crash, and then behind those without.
        """
        found = list(self.hits(patterns))
        allowed = MOVED_ON if crashed else 1
        fresh = [hit for hit in found if hit.progress_after < allowed]
        return earliest(fresh or (found if crashed else []))

    def any(self, patterns: Sequence[str]) -> bool:
        """Whether any line fits one of the patterns."""
        return next(self.hits(patterns), None) is not None

    def steps(self) -> int:
        """How often some counter reached a new high, in the log where that was most often."""
        return max((len(log.progress) for log in self._logs), default=0)

    def at_end(self, patterns: Sequence[str]) -> Hit | None:
        """The first line that fits and with which a log ends."""
        hits = self.hits(patterns)
        return next((hit for hit in hits if hit.position in self._logs[hit.log].end), None)

    def stays(self, patterns: Sequence[str]) -> Hit | None:
        """The last but one line that fits, if what it names has no number in any later line."""
        for log in self._logs:
            hits = list(log.hits(_either(patterns)))[-_STAYS:]
            if len(hits) < _STAYS:
                continue
            name = _NAMED.search(hits[-1].line.text)
            number = re.compile(rf"{re.escape(name[0])}\W{{0,6}}[-+]?\d" if name else r"\A\d\Z")
            if not any(number.search(line.text) for line in log.lines[hits[0].position :]):
                return hits[0]
        return None

    def moves(self) -> bool:
        """Whether the counter that was printed last still grew at the end of some log."""
        return any(log.moves for log in self._logs)

    def last_steps(self) -> dict[int, float]:
        """The last step that each rank printed, where at least two ranks print steps."""
        found: dict[int, float] = {}
        for log in self._logs:
            for rank, value in log.last_steps.items():
                found[rank] = max(value, found.get(rank, value))
        return found if len(found) > 1 else {}

    def lines(self) -> Iterator[tuple[LogLine, int | None]]:
        """Every line, with the rank whose log it is in."""
        for log in self._logs:
            for line in log.lines:
                yield line, line.rank if line.rank is not None else log.rank


class _Prepared:
    """One log, taken apart."""

    def __init__(self, number: int, log: LogText) -> None:
        self.number = number
        self.rank = log.rank
        self.lines = [read_line(raw) for raw in log.lines]
        self._text = "\n".join(line.text for line in self.lines)
        self._starts = list(accumulate((len(line.text) + 1 for line in self.lines), initial=0))
        counted = (progress_of(line.text) for line in self.lines)
        self._counted = [value for value in counted if value is not None]
        self.end = range(len(self.lines))[-_END_LINES:]
        found = advances(self.lines)
        self.progress = [position for position, _ in found]
        self.last_steps = {
            rank: value
            for position, value in found
            for rank in [log.rank if log.rank is not None else self.lines[position].rank]
            if rank is not None
        }

    def hits(self, pattern: re.Pattern[str]) -> Iterator[Hit]:
        """Searched in the whole text first: most patterns are in no line at all."""
        at = 0
        while at <= len(self._text) and (match := pattern.search(self._text, at)):
            position = bisect_right(self._starts, match.start()) - 1
            line = self.lines[position]
            at = self._starts[position] + len(line.text) + 1
            if pattern.search(line.text) is None:
                continue  # it ran over the end of a line: that may hide what the next one holds
            yield Hit(
                line=line,
                log=self.number,
                position=position,
                rank=self.rank if self.rank is not None else rank_of(line),
                progress_after=self._after(position, line.rank),
            )

    @cached_property
    def moves(self) -> bool:
        """The counter printed last grew to the end."""
        if not self._counted:
            return False
        label, _ = self._counted[-1]
        values = [value for name, value in self._counted if name == label][-_MOVES:]
        if len(values) < _MOVES:
            return False
        return label == "trainer" or all(a < b for a, b in pairwise(values))

    def _after(self, position: int, rank: int | None) -> int:
        """Progress of the same printer: other ranks go on for a while when one has failed."""
        begin = bisect_right(self.progress, position)
        return sum(1 for at in self.progress[begin:] if self.lines[at].rank == rank)


def earliest(hits: Iterable[Hit]) -> Hit | None:
    """The first in time; where clocks differ or are missing, the first in its log."""
    listed = list(hits)
    if not listed:
        return None
    clocks = {hit.line.clock for hit in listed}
    if len(clocks) == 1:
        return min(listed, key=lambda hit: hit.order)
    timed = [hit for hit in listed if hit.line.clock == "date"]
    return min(timed, key=lambda hit: hit.order) if timed else listed[0]


def before(one: Hit, other: Hit) -> bool | None:
    """Whether the first line is older; None when that cannot be told."""
    same_clock = one.line.clock is not None and one.line.clock == other.line.clock
    if same_clock and one.line.at != other.line.at:
        return (one.line.at or 0.0) < (other.line.at or 0.0)
    if one.log == other.log:
        return one.position < other.position
    return None


def _either(patterns: Sequence[str]) -> re.Pattern[str]:
    return compiled("|".join(map(_part, patterns)))


def _part(pattern: str) -> str:
    """One of several alternatives; a flag in front of it is its own."""
    if pattern.startswith("(?i)"):
        return f"(?i:{pattern[4:]})"
    return f"(?:{pattern})"


@lru_cache(maxsize=2048)
def compiled(pattern: str) -> re.Pattern[str]:
    """A rule's regular expression; `^` and `$` are a line's."""
    return re.compile(pattern, re.MULTILINE)
