"""Ranks that end while their attempt goes on: how they ended, as far as anything tells.

The status of a process is its parent's to ask for, and we are not its parent: what is left is what
the kernel shows to others, and what the rank's own slot said last. Unknown is a right answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from watchdog_train.core.model import MemberSample, ProcessId, RankEnd, SlotReading
from watchdog_train.store.last_words import LastWords
from watchdog_train.system.protocol import ExitWatch, ProcessSystem

MOST_WATCHED = 128
"""More ranks than this on one machine are followed without a descriptor each."""
MOST_ENDS = 1024


class Departures:
    """The ranks of one attempt, and those of them that have ended."""

    def __init__(self, system: ProcessSystem, last_words: LastWords) -> None:
        self._system = system
        self._last_words = last_words
        self._alive: dict[ProcessId, MemberSample] = {}
        self._watches: dict[ProcessId, ExitWatch] = {}
        self._ends: dict[ProcessId, RankEnd] = {}

    def seed(self, ends: Iterable[RankEnd]) -> None:
        """What an earlier supervisor has recorded."""
        for end in ends:
            self._ends.setdefault(ProcessId(end.pid, end.start), end)

    def look(self, members: Iterable[MemberSample], now: float) -> tuple[RankEnd, ...]:
        """All ranks that have ended so far, oldest first."""
        present = {sample.member.identity: sample for sample in members}
        for identity, sample in present.items():
            if sample.member.role == "rank" and sample.state not in ("Z", "X"):
                self._follow(identity, sample)
        for identity, sample in list(self._alive.items()):
            state = present[identity].state if identity in present else None
            if state in ("Z", "X", None) and len(self._ends) < MOST_ENDS:
                self._ends[identity] = self._end(sample, now)
                del self._alive[identity]
        for identity, end in self._ends.items():
            unnoticed = identity in present
            if unnoticed != end.unnoticed:
                self._ends[identity] = msgspec.structs.replace(end, unnoticed=unnoticed)
        return tuple(self._ends.values())

    def forget(self) -> None:
        """Let go of everything: the attempt is over."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        self._alive.clear()
        self._ends.clear()

    def _follow(self, identity: ProcessId, sample: MemberSample) -> None:
        self._alive[identity] = sample
        if identity not in self._watches and len(self._watches) < MOST_WATCHED:
            watch = self._system.watch_exit(identity)
            if watch is not None:
                self._watches[identity] = watch

    def _end(self, sample: MemberSample, now: float) -> RankEnd:
        member = sample.member
        watch = self._watches.pop(member.identity, None)
        status = watch.status() if watch is not None else None
        if watch is not None:
            watch.close()
        slot = self._last_words.of(member.pid) or sample.slot
        if slot is not None and slot.start not in (0, member.start):
            slot = sample.slot
        return RankEnd(
            pid=member.pid,
            start=member.start,
            rank=member.rank or 0,
            world_size=slot.world_size if slot is not None else None,
            step=slot.step if slot is not None else None,
            phase=slot.phase if slot is not None else "unknown",
            at=now,
            code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            said=_said(slot),
        )


def _said(slot: SlotReading | None) -> Literal["quiet", "exception"] | None:
    if slot is None or not slot.exiting:
        return None
    return "exception" if slot.failed else "quiet"
