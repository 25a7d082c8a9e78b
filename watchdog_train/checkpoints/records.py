"""The hooks' notes on saves: the files of a save, and its training. Reads no checkpoint.

A training is identified by its output path (its home), and its number among those of that home.
"""

import os
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from watchdog_train.checkpoints import lightning
from watchdog_train.checkpoints.disk import Following, Sizes
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.pickle_head import is_behind, step_of
from watchdog_train.core.model import SaveRecord, TrainingReport, Whose

_real = os.path.realpath


class Records:
    """The newest record of each path, by real path."""

    def __init__(
        self, saves: Iterable[SaveRecord], running: TrainingReport | None, below: Iterable[str]
    ) -> None:
        self._newest: dict[str, SaveRecord] = {}
        self._lost: dict[tuple[int, int], SaveRecord] = {}
        self._anew: set[str] = set()
        self._running = running
        self.gone: dict[str, float] = {}
        """Paths of saves that are nowhere, each with its time in Unix seconds."""
        following, present = Following(below), dict[str, SaveRecord]()
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

    def counts_anew(self, path: str) -> bool:
        """Whether the count in this file has fallen within an attempt: for each fold, say."""
        # A file that is renamed once it is complete is called ckpt.pt.tmp or so.
        return any(each.startswith(_real(path)) for each in self._anew)

    def known(self, candidate: Candidate) -> Candidate:
        """The candidate with its training, its recorded step, and whether it is unchanged."""
        record = self._of(candidate)
        recorded = self._covers(record, candidate)
        whose = self._whose(record if recorded else None, candidate)
        home = _real(whose.home or os.path.dirname(candidate.path))
        has_files = record is not None and bool(record.files)
        candidate = replace(
            candidate,
            noted=None if record is None else (record.attempt, record.t),
            recorded=recorded or (False if has_files else None),
            whose=whose,
            of_running=self._running is not None and home == _real(self._running.home),
        )
        if record is None or candidate.recorded is False:  # it is about what the file held before
            return candidate
        steps = (step_of(record.counters), record.step, candidate.step)
        return replace(
            candidate,
            step=next((step for step in steps if step is not None), None),
            counters=record.counters or candidate.counters,
        )

    def _of(self, candidate: Candidate) -> SaveRecord | None:
        """The record of a checkpoint, also if that has changed since."""
        record = self._newest.get(_real(candidate.path))
        if candidate.files and (record is None or not _unchanged(record.files, candidate.files)):
            # Moved out of its folder, or copied with its times.
            moved = self._lost.get(max(candidate.files.values()))
            if moved is not None and _unchanged(moved.files, candidate.files):
                return moved
        return record

    def _covers(self, record: SaveRecord | None, candidate: Candidate) -> bool:
        """Whether every file is recorded and unchanged since it was saved."""
        records = [record]
        if record is None:  # shards of one checkpoint are noted one by one
            folder = _real(candidate.path)
            records = [self._newest.get(os.path.join(folder, name)) for name in candidate.files]
        return bool(records) and all(
            item is not None and bool(item.files) and _unchanged(item.files, candidate.files)
            for item in records
        )

    def _whose(self, record: SaveRecord | None, candidate: Candidate) -> Whose:
        """The training that wrote it: the one of the record of its unchanged files, if any.

        A directory overwritten by a later training is no longer the recorded one's; and a process
        that dies between a save and its record leaves a valid checkpoint without one. Then the
        others in its folder decide, if they agree, or the time.
        """
        if record is not None:
            return _writer(record)
        folder = os.path.dirname(_real(candidate.path))
        beside = [one for path, one in self._newest.items() if os.path.dirname(path) == folder]
        if candidate.format == lightning.NAME:
            writers = {_writer(one) for one in beside if one.format == lightning.NAME}
            return writers.pop() if len(writers) == 1 else Whose()
        others = sorted((one.t, one.nth) for one in beside if one.nth is not None)
        saved_at, running = candidate.mtime_ns / 1e9, self._running
        is_last = not others or others[-1][0] < saved_at
        if running is not None and is_last and _real(running.home) == folder:
            return Whose(nth=running.nth)
        return Whose(nth=next((nth for t, nth in reversed(others) if t <= saved_at), None))


def _writer(record: SaveRecord) -> Whose:
    return msgspec.convert(record, Whose, from_attributes=True)


def _unchanged(noted: Mapping[str, tuple[int, int]], present: Sizes) -> bool:
    if len(noted) == len(present) == 1:  # a file, which may have another name by now
        return tuple(*noted.values()) == tuple(*present.values())
    return all(present.get(name) == tuple(times) for name, times in noted.items())
