"""Append events to a run's log: durable where it matters, and a slow disk does not hold the loop.

One thread writes. The caller waits at most two seconds for a lifecycle event and never for
the others; what the disk has not taken by then is copied into a spill file on local memory, and
moves into the log in order once the disk answers again. Must never raise into the loop because of
a disk, and never leave a gap or a half line before another line.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from watchdog_train.core.events import LIFECYCLE, SCHEMA_VERSION, AnyEvent, LogBehind, Progress
from watchdog_train.core.model import Why, said
from watchdog_train.errors import WtrainError
from watchdog_train.store.log_reading import (
    MAX_LINE_BYTES,
    MAX_LOG_BYTES,
    SPILL_FILE,
    OtherVersionError,
    corrupt,
    decode_line,
    encode_line,
    other_version,
    read_spill,
    too_large,
)
from watchdog_train.system.file_systems import release_runtime_directory
from watchdog_train.trusted_files import open_read, open_regular

DURABLE_WITHIN_S = 2.0
RETRY_S = 0.5
MAX_WAITING_BYTES = 16 * 1024 * 1024
MAX_BESIDE = 256
SAMPLED_UNTIL_BYTES = MAX_LOG_BYTES * 3 // 4


class LogClock:
    wall = staticmethod(time.time)
    """Unix seconds."""
    monotonic = staticmethod(time.monotonic)
    """Seconds since boot."""


class _Line(msgspec.Struct, frozen=True):
    seq: int
    data: bytes
    lifecycle: bool
    queued: float


class EventLog:
    """The only writer of a log; take the run's lock before opening it."""

    def __init__(
        self, fd: int, *, size: int, seq: int, spill_dir: Path | None, clock: LogClock
    ) -> None:
        self.torn_tail: bytes | None = None
        """What a killed supervisor left of its last line; None if the log is intact."""
        self.is_removed = False
        """The file was deleted, so spilled events belong to no log any more."""
        self._fd = fd
        self._clock = clock
        self._spill, self._spill_dir = Spill(spill_dir), spill_dir
        self._late = False
        self._seq = seq
        self._changed = threading.Condition()
        # Shared, under _changed:
        self._waiting: deque[_Line] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._beside: deque[Callable[[], None]] = deque()
        self._durable_seq = seq
        self._trouble: str | None = None
        self._closing = False
        # Only the writer's:
        self._has_links = os.fstat(fd).st_nlink > 0  # some file systems count none
        self._good_bytes = size
        self._dirty = False
        self._written_seq = seq
        self._writer = threading.Thread(target=self._write, name="wtrain-log", daemon=True)

    @classmethod
    def open(cls, path: Path, *, spill_dir: Path | None, clock: LogClock | None = None) -> EventLog:
        """Make the log, or continue the one a dead supervisor left.

        A torn last line is cut off into `events.jsonl.torn-<n>`; spilled events that are not in the
        log are queued first. WtrainError: unopenable, or its last complete line is no event.
        """
        fd = -1
        try:
            fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            seq, size, torn = last_event(path, os.fstat(fd).st_size)
            if torn:
                keep_torn(path, torn)
                os.ftruncate(fd, size)
        except OSError as error:
            _close(fd)
            raise WtrainError(
                f"the event log cannot be written: {error.strerror}",
                context=str(path),
                hint="choose another place with --runs-dir DIR",
                reference="event-log-unwritable",
            ) from error
        except WtrainError:
            _close(fd)
            raise
        log = cls(fd, size=size, seq=seq, spill_dir=spill_dir, clock=clock or LogClock())
        log.torn_tail = torn or None
        for event, line in log._spill.take(after=seq):
            log._enqueue(line, event, lifecycle=True)
            log._late = True
        log._writer.start()
        return log

    @property
    def seq(self) -> int:
        return self._seq

    def append(self, event: AnyEvent, attempt: int) -> AnyEvent:
        """Number, stamp and record an event; returns it exactly as a reader will see it."""
        lifecycle = isinstance(event, LIFECYCLE)
        stamped = msgspec.structs.replace(
            event,
            v=SCHEMA_VERSION,
            seq=self._seq + 1,
            t=self._clock.wall(),
            mono=self._clock.monotonic(),
            attempt=attempt,
        )
        line = encode_line(stamped)
        recorded = decode_line(line[:-1])
        with self._changed:
            sampled = isinstance(event, Progress) and not event.is_census
            full = self._waiting_bytes + len(line) > MAX_WAITING_BYTES
            full = full or self._good_bytes + self._waiting_bytes > SAMPLED_UNTIL_BYTES
            if sampled and full:
                self._left_out += 1
                return msgspec.structs.replace(recorded, seq=self._seq)
            self._enqueue(line, recorded, lifecycle=lifecycle)
            self._changed.notify_all()
            if lifecycle and not self._late:
                self._changed.wait_for(
                    lambda: self._durable_seq >= recorded.seq or self._trouble is not None,
                    DURABLE_WITHIN_S,
                )
        self._look(patience_s=0.0 if lifecycle else DURABLE_WITHIN_S)
        return recorded

    def behind(self) -> LogBehind | None:
        """How far the log is behind, None when it is not.

        Call it once a loop: it also copies what waits too long into the spill file, and removes
        that file when the log has caught up.
        """
        return self._look(patience_s=DURABLE_WITHIN_S)

    def _look(self, *, patience_s: float) -> LogBehind | None:
        with self._changed:
            waiting = tuple(self._waiting)
            trouble = self._trouble
            left_out = self._left_out
        if not waiting:
            self._late = False
            self._spill.drop()
            return None
        behind_s = time.monotonic() - waiting[0].queued
        if trouble is None and behind_s < patience_s and not self._late:
            return None
        self._late = True
        self._spill.add((line.seq, line.data) for line in waiting)
        why = said(trouble) if trouble else Why("disk-silent")
        if left_out:
            why = why.plus(Why("samples-left-out", count=left_out))
        if self._spill.trouble:
            why = why.plus(Why("in-memory-only", problem=self._spill.trouble))
        spill = None if self._spill.trouble else str(self._spill.path)
        return LogBehind(behind_s=round(behind_s, 3), spill=spill, why=why)

    def beside(self, work: Callable[[], None]) -> bool:
        """Have the writer do other writing to the run directory in spare moments.

        Returns at once, False when too much of it waits already. The work must not raise.
        """
        with self._changed:
            if len(self._beside) >= MAX_BESIDE:
                return False
            self._beside.append(work)
            self._changed.notify_all()
        return True

    def close(self, timeout_s: float) -> bool:
        """Write what waits and stop the writer; False when the log is still behind then.

        The rest is in the spill file, where readers and the next supervisor find it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        self._look(patience_s=0.0)
        if self._writer.is_alive():
            return False
        _close(self._fd)
        if not self._waiting and self._spill_dir is not None:
            release_runtime_directory(self._spill_dir, with_content=False)
        return not self._waiting

    # -- the loop's side ---------------------------------------------------------------
    def _enqueue(self, line: bytes, event: AnyEvent, *, lifecycle: bool) -> None:
        self._seq = event.seq
        self._waiting.append(_Line(event.seq, line, lifecycle, time.monotonic()))
        self._waiting_bytes += len(line)

    # -- the writer thread --------------------------------------------------------------
    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._beside or self._closing)
                batch = tuple(self._waiting)
                work = None if batch or not self._beside else self._beside.popleft()
            if work is not None:
                work()
                continue
            if not batch:
                return
            try:
                self._write_lines(batch)
            except OSError as error:
                with self._changed:
                    self._trouble = error.strerror or str(error)
                    self._changed.notify_all()
                    if self._closing:
                        return
                    self._changed.wait(RETRY_S)
                continue
            with self._changed:
                for _ in batch:
                    self._waiting_bytes -= len(self._waiting.popleft().data)
                self._durable_seq = batch[-1].seq
                self._trouble = None
                self._changed.notify_all()

    def _write_lines(self, batch: tuple[_Line, ...]) -> None:
        if self._has_links and not os.fstat(self._fd).st_nlink:
            self.is_removed = True
            raise OSError(errno.ENOENT, "the log was removed")
        for line in batch:
            if line.seq <= self._written_seq:
                continue  # an earlier try wrote it and failed at a later line
            if self._dirty:
                os.ftruncate(self._fd, self._good_bytes)
                self._dirty = False
            self._dirty = True
            if os.write(self._fd, line.data) != len(line.data):
                raise OSError("no space left on device")
            self._dirty = False
            self._good_bytes += len(line.data)
            self._written_seq = line.seq
        if any(line.lifecycle for line in batch):
            os.fsync(self._fd)


def _close(fd: int) -> None:
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.close(fd)


def last_event(path: Path, size: int) -> tuple[int, int, bytes]:
    """Number of the last event, size up to its end, and the torn rest.

    WtrainError: too large, of another version, or its last complete line is no event.
    """
    if size > MAX_LOG_BYTES:
        raise too_large(path, size)
    with open_read(path) as file:
        file.seek(max(0, size - 2 * MAX_LINE_BYTES))
        tail = file.read(2 * MAX_LINE_BYTES)
    whole, newline, torn = tail.rpartition(b"\n")
    if not newline:
        if size > len(torn):
            raise corrupt(path, None, f"its last line is longer than {MAX_LINE_BYTES} bytes")
        return 0, 0, torn
    try:
        last = decode_line(whole.rpartition(b"\n")[2])
    except OtherVersionError as error:
        raise other_version(str(path), error) from error
    except ValueError as error:
        raise corrupt(path, None, f"its last whole line is no event: {error}") from error
    return last.seq, size - len(torn), torn


def keep_torn(path: Path, torn: bytes) -> None:
    """Move a torn line aside, as evidence of where the supervisor was killed."""
    # On a full disk the copy fails; the caller still holds the bytes, and reports them.
    with contextlib.suppress(OSError):
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                fresh = path.with_name(f"{path.name}.torn-{number}")
                fd = open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(fd, "wb") as file:
                    file.write(torn)
                return


class Spill:
    """The spill file of one run; used by the loop's thread only."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._seq = 0
        self.trouble: str | None = None if directory else "there is no private local memory"
        """Why the newest events are in our memory only, None when they are not."""

    @property
    def path(self) -> Path | None:
        """The file, None when there is no place for it."""
        return self._directory / SPILL_FILE if self._directory else None

    def take(self, after: int) -> tuple[tuple[AnyEvent, bytes], ...]:
        """What a killed supervisor left and its log is missing; kept in the file until drop()."""
        if self._directory is None or self.path is None:
            return ()
        left = read_spill(self._directory, after=after)
        if left:
            self._seq = left[-1][0].seq
        else:
            # What does not follow the log must not stand before lines that will.
            with contextlib.suppress(OSError):
                self.path.replace(self.path.with_suffix(".unused"))
        return left

    def add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Copy the lines that are not in the file yet."""
        fresh = [(seq, data) for seq, data in lines if seq > self._seq]
        if not fresh or self.path is None:
            return
        try:
            fd = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                for seq, data in fresh:
                    before = os.fstat(fd).st_size
                    if os.write(fd, data) != len(data):
                        os.ftruncate(fd, before)
                        self.trouble = "no space left"
                        return
                    self._seq = seq
            finally:
                os.close(fd)
            self.trouble = None
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def drop(self) -> None:
        """Remove the file: the log has everything."""
        if self._seq and self.path is not None:
            with contextlib.suppress(OSError):  # harmless where it stays: readers skip its events
                self.path.unlink(missing_ok=True)
            self._seq = 0
