"""What the save hooks have noted: which files a save had, and of which training it was. Reads none.

A training is known again by where it writes to (its home) and which one into that home it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from watchdog_train.checkpoints.disk import Following, Sizes
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.lightning import NAME as LIGHTNING_NAME
from watchdog_train.checkpoints.pickle_head import is_behind, step_of
from watchdog_train.core.model import SaveRecord, Value, Whose

_real = os.path.realpath


class Running(Value):
    """The training that ran when the attempt ended, as its process told it."""

    home: str
    nth: int | None = None


class Records:
    """The newest record of each path, by real path."""

    def __init__(
        self, saves: Iterable[SaveRecord], running: Running | None, below: Iterable[str]
    ) -> None:
        self._newest: dict[str, SaveRecord] = {}
        self._lost: dict[tuple[int, int], SaveRecord] = {}
        self._anew: set[str] = set()
        self._running = running
        following = Following(below)
        self.gone: dict[str, float] = {}
        """Paths of saves that are nowhere, each with its time in Unix seconds."""
        present: dict[str, SaveRecord] = {}
        for record in sorted(saves, key=lambda item: (item.attempt, item.t)):
            path = _real(record.path)
            last = self._newest.get(path)
            if last is not None and last.attempt == record.attempt:
                self._anew.update((path,) if is_behind(record.counters, last.counters) else ())
            self._newest[path] = record
            now = following.now(record)
            if now is not None:
                present[_real(now.path)] = now
                continue
            if record.files:
                self._lost[max(record.files.values())] = record
            if not os.path.lexists(record.path) and not record.is_part:
                self.gone[path] = record.saved_at
        self.present = tuple(present.values())
        """The records of saves that are there unchanged, each with its present path."""
        self._newest |= present

    def of(self, candidate: Candidate) -> SaveRecord | None:
        """The record of a checkpoint, also when that has changed since."""
        record = self._newest.get(_real(candidate.path))
        if candidate.files and (record is None or not _unchanged(record.files, candidate.files)):
            # Moved out of its folder, or copied with its times.
            moved = self._lost.get(max(candidate.files.values()))
            if moved is not None and _unchanged(moved.files, candidate.files):
                return moved
        return record

    def counts_anew(self, path: str) -> bool:
        """Whether the count in this file has fallen within an attempt: for each fold, say."""
        # A file that is renamed once it is complete is called ckpt.pt.tmp or so.
        return any(each.startswith(_real(path)) for each in self._anew)

    def covers(self, candidate: Candidate) -> bool:
        """Whether every file is exactly as it was when the save had ended."""
        record = self.of(candidate)
        if record is not None:
            return bool(record.files) and _unchanged(record.files, candidate.files)
        # Shards of one checkpoint are noted one by one.
        folder = _real(candidate.path)
        records = [self._newest.get(os.path.join(folder, name)) for name in candidate.files]
        return bool(records) and all(
            item is not None and bool(item.files) and _unchanged(item.files, candidate.files)
            for item in records
        )

    def whose(self, candidate: Candidate) -> Whose:
        """The training that wrote it.

        A directory that a later training has written over is not the recorded one's any more; and
        a process that dies between a save and its record leaves a whole checkpoint of which
        nobody says whose it is. Then time tells, where the training that ran last is known.
        """
        record = self.of(candidate)
        if record is not None and self.covers(candidate):
            return _writer(record)
        if candidate.format == LIGHTNING_NAME:
            return self._beside(candidate)
        return Whose(nth=self._nth_by_time(candidate))

    def _beside(self, candidate: Candidate) -> Whose:
        """What the others in that directory tell, if they agree."""
        folder = os.path.dirname(_real(candidate.path))
        beside = {
            _writer(record)
            for path, record in self._newest.items()
            if os.path.dirname(path) == folder and record.format == LIGHTNING_NAME
        }
        return beside.pop() if len(beside) == 1 else Whose()

    def _nth_by_time(self, candidate: Candidate) -> int | None:
        folder = os.path.dirname(_real(candidate.path))
        running = self._running
        others = sorted(
            (record.t, record.nth)
            for path, record in self._newest.items()
            if os.path.dirname(path) == folder and record.nth is not None
        )
        saved_at = candidate.mtime_ns / 1e9
        is_last = not others or others[-1][0] < saved_at
        if running is not None and is_last and _real(running.home) == folder:
            return running.nth
        before = [nth for t, nth in others if t <= saved_at]
        return before[-1] if before else None

    def known(self, candidate: Candidate) -> Candidate:
        """The candidate with what its record tells: step, training, and that there is one."""
        record = self.of(candidate)
        whose = self.whose(candidate)
        home = whose.home or os.path.dirname(candidate.path)
        is_running = self._running is not None and _real(home) == _real(self._running.home)
        candidate = msgspec.structs.replace(candidate, stage=whose.nth or 0, of_running=is_running)
        if record is None:
            return candidate
        noted = (record.attempt, record.t)
        if record.files and not self.covers(candidate):  # it is about what the file held before
            return msgspec.structs.replace(candidate, noted=noted)
        step = record.step if step_of(record.counters) is None else step_of(record.counters)
        return msgspec.structs.replace(
            candidate,
            noted=noted,
            step=candidate.step if step is None else step,
            counters=record.counters or None,
        )


def _writer(record: SaveRecord) -> Whose:
    return msgspec.convert(record, Whose, from_attributes=True)


def _unchanged(noted: Mapping[str, tuple[int, int]], present: Sizes) -> bool:
    if len(noted) == len(present) == 1:  # a file, which may have another name by now
        return tuple(*noted.values()) == tuple(*present.values())
    return all(present.get(name) == tuple(times) for name, times in noted.items())
