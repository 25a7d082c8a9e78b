"""The event log: whole lines, no gaps, and a loop that no disk can hold up."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest

from tests.support import small_disk, wait_until
from watchdog_train.core import events as e
from watchdog_train.core.model import Plan, RunProgress, said
from watchdog_train.errors import WtrainError
from watchdog_train.report.why_text import why_text
from watchdog_train.store import event_log
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.log_reading import MAX_LINE_BYTES, MAX_LOG_BYTES, SPILL_FILE, read_events

LIFECYCLE = e.TreeGone()
OTHER = e.SuspicionEnded(why=said("a step"))
SAMPLE = e.Progress(progress=RunProgress(step=1), ranks=())


class FakeClock:
    """Stamps that a test can foretell."""

    def wall(self) -> float:
        return 1_795_000_000.5

    def monotonic(self) -> float:
        return 42.25


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    place = tmp_path / "spill"
    place.mkdir()
    return place


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def opened(path: Path, spill: Path) -> Iterator[EventLog]:
    log = EventLog.open(path, spill_dir=spill, clock=FakeClock())
    yield log
    log.close(5.0)


def seqs(path: Path, spill: Path | None = None) -> list[int]:
    return [event.seq for event in read_events(path, spill_dir=spill).events]


class Disk:
    """Refusals of the operating system for writes to one file, until told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.path = path
        self.full = False
        self.short = False
        self.room: int | None = None
        """Lines until it is full."""
        self.stuck = threading.Event()
        self.stuck.set()
        self._write = os.write
        monkeypatch.setattr(event_log.os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if not os.path.sameopenfile(fd, self._fd()):
            return self._write(fd, data)
        assert self.stuck.wait(30.0), "the test forgot to free the disk"
        if self.short:
            return self._write(fd, data[: len(data) // 2])
        if self.room is not None:
            self.full, self.room = self.room == 0, max(0, self.room - 1)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(fd, data)

    def _fd(self) -> int:
        if not hasattr(self, "_own"):
            self._own = os.open(self.path, os.O_RDONLY)
        return self._own

    def close(self) -> None:
        if hasattr(self, "_own"):
            os.close(self._own)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, path: Path, opened: EventLog) -> Iterator[Disk]:
    disk = Disk(monkeypatch, path)
    yield disk
    disk.full, disk.short, disk.room = False, False, None
    disk.stuck.set()
    opened.close(5.0)
    disk.close()


def test_events_are_numbered_stamped_and_returned_as_read(opened: EventLog, path: Path) -> None:
    returned = [opened.append(event, 3) for event in (LIFECYCLE, OTHER, SAMPLE)]
    assert opened.close(5.0)
    assert list(read_events(path).events) == returned
    assert [event.seq for event in returned] == [1, 2, 3]
    assert {(event.t, event.mono, event.attempt) for event in returned} == {
        (1_795_000_000.5, 42.25, 3)
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lifecycle_event_is_on_disk_when_append_returns(
    opened: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A durable type has been written and synced before the loop goes on."""
    synced: list[int] = []
    monkeypatch.setattr(event_log.os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    opened.append(LIFECYCLE, 1)
    assert synced == [path.stat().st_size]
    opened.append(OTHER, 1)
    wait_until(lambda: seqs(path) == [1, 2], 5.0, "the other event is written")
    assert len(synced) == 1


def test_one_write_per_line(opened: EventLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line reaches the file by one system call, so that a kill tears at most the last."""
    calls: list[bytes] = []
    write = os.write

    def counted(fd: int, data: bytes) -> int:
        calls.append(data)
        return write(fd, data)

    monkeypatch.setattr(event_log.os, "write", counted)
    for _ in range(5):
        opened.append(OTHER, 1)
    opened.append(LIFECYCLE, 1)
    assert b"".join(calls) == path.read_bytes()
    assert all(call.count(b"\n") == 1 and call.endswith(b"\n") for call in calls)


def test_no_place_for_spilled_events_is_left(tmp_path: Path) -> None:
    place = tmp_path / "runtime" / "wtrain-0-spill" / "run"
    place.mkdir(parents=True)
    EventLog.open(tmp_path / "events.jsonl", spill_dir=place).close(5.0)
    assert list((tmp_path / "runtime").iterdir()) == []


def test_numbers_go_on_after_adoption(opened: EventLog, path: Path, spill: Path) -> None:
    opened.append(LIFECYCLE, 1)
    opened.append(OTHER, 1)
    assert opened.close(5.0)
    second = EventLog.open(path, spill_dir=spill)
    assert second.append(LIFECYCLE, 1).seq == 3
    assert second.torn_tail is None
    assert second.close(5.0)
    assert seqs(path) == [1, 2, 3]


def test_a_torn_last_line_is_moved_aside_and_reported(
    opened: EventLog, path: Path, spill: Path
) -> None:
    opened.append(LIFECYCLE, 1)
    opened.append(LIFECYCLE, 1)
    assert opened.close(5.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    reading = read_events(path)
    assert [event.seq for event in reading.events] == [1]
    assert whole[:-9].endswith(reading.torn_tail)
    second = EventLog.open(path, spill_dir=spill)
    assert second.torn_tail == reading.torn_tail
    assert second.append(LIFECYCLE, 1).seq == 2
    assert second.close(5.0)
    assert (path.parent / "events.jsonl.torn-1").read_bytes() == reading.torn_tail
    assert seqs(path) == [1, 2]
    assert read_events(path).torn_tail is None


def test_a_second_torn_line_gets_a_file_of_its_own(path: Path, spill: Path) -> None:
    for number in (1, 2):
        with path.open("ab") as file:
            file.write(b'{"torn":%d' % number)
        EventLog.open(path, spill_dir=spill).close(5.0)
    found = sorted(each.read_bytes() for each in path.parent.glob("*.torn-*"))
    assert found == [b'{"torn":1', b'{"torn":2']


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: [lines[0], b"{]\n", lines[2]], "malformed"),
        (lambda lines: [lines[0], lines[2]], "seq 2 to 2 missing"),
        (lambda lines: [lines[0], lines[0], lines[2]], "seq 1 comes after 1"),
        (lambda lines: [lines[0], b"\0" * 64 + b"\n", lines[2]], "malformed"),
        (lambda lines: [lines[0], b"x" * (MAX_LINE_BYTES + 5) + b"\n", lines[2]], "more than"),
    ],
    ids=["garbage", "gap", "twice", "zeros", "long"],
)
def test_damage_in_the_middle_is_an_error_that_names_the_line(
    opened: EventLog, path: Path, damage: object, words: str
) -> None:
    """A strict reader refuses with file and line; a tolerant one skips, and says what."""
    for event in (LIFECYCLE, OTHER, LIFECYCLE):
        opened.append(event, 1)
    assert opened.close(5.0)
    assert callable(damage)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(WtrainError) as caught:
        read_events(path)
    assert caught.value.reference == "event-log-corrupt"
    assert caught.value.context == f"{path}:2"
    assert words in caught.value.message
    tolerant = read_events(path, strict=False)
    assert "line 2" in tolerant.problem
    assert tolerant.events[0].seq == 1
    if b'"seq":3' in path.read_bytes():
        assert tolerant.events[-1].seq == 3


@pytest.mark.parametrize("line", [1, 2], ids=["middle", "last"])
@pytest.mark.parametrize("type_too", [False, True], ids=["known type", "unknown type"])
def test_an_event_of_another_version_is_refused_by_every_reader(
    opened: EventLog, path: Path, spill: Path, line: int, type_too: bool
) -> None:
    """A state without it could be wrong; the error names both versions."""
    for event in (LIFECYCLE, OTHER, LIFECYCLE):
        opened.append(event, 1)
    assert opened.close(5.0)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"v":1', b'"v":9')
    if type_too:
        lines[line] = lines[line].replace(b'"type":"', b'"type":"new_')
    path.write_bytes(b"".join(lines))
    for strict in (True, False):
        with pytest.raises(WtrainError) as caught:
            read_events(path, strict=strict)
        assert caught.value.reference == "event-log-version"
        assert caught.value.context == f"{path}:{line + 1}"
        assert "a newer wtrain" in caught.value.message
        assert "version 9" in caught.value.message
        assert "version 1" in caught.value.message
    if line == 2:
        with pytest.raises(WtrainError, match="version 9"):
            EventLog.open(path, spill_dir=spill)


def test_a_log_that_is_damaged_too_large_or_missing_is_refused(path: Path, spill: Path) -> None:
    def reason(use: Callable[..., object], **how: object) -> str:
        with pytest.raises(WtrainError) as caught:
            use(path, **how)
        return caught.value.reference

    assert reason(read_events) == "event-log-missing"
    path.write_bytes(b"no event\n")
    assert reason(EventLog.open, spill_dir=spill) == "event-log-corrupt"
    os.truncate(path, MAX_LOG_BYTES + 1)
    assert reason(read_events) == "event-log-too-large"
    assert reason(EventLog.open, spill_dir=spill) == "event-log-too-large"


def test_a_full_disk_neither_raises_nor_loses(
    opened: EventLog, disk: Disk, path: Path, spill: Path
) -> None:
    """On a full disk events are spilled at once; they follow, in order, when there is room."""
    opened.append(LIFECYCLE, 1)
    disk.full = True
    began = time.monotonic()
    for event in (LIFECYCLE, OTHER, LIFECYCLE):
        opened.append(event, 1)
    assert time.monotonic() - began < 1.5
    behind = opened.behind()
    assert "No space left" in why_text(behind.why)
    assert behind.spill == str(spill / SPILL_FILE)
    assert seqs(path) == [1]
    reading = read_events(path, spill_dir=spill)
    assert [event.seq for event in reading.events] == [1, 2, 3, 4]
    assert reading.spilled == 3
    disk.full = False
    wait_until(lambda: opened.behind() is None, 5.0, "the log has caught up")
    assert seqs(path) == [1, 2, 3, 4]
    assert not (spill / SPILL_FILE).exists()
    opened.append(LIFECYCLE, 1)
    assert seqs(path) == [1, 2, 3, 4, 5]


def test_a_removed_log_spills_and_is_said(opened: EventLog, path: Path, spill: Path) -> None:
    """What would go into a file that nobody can find any more goes into the spill file."""
    opened.append(LIFECYCLE, 1)
    path.unlink()
    opened.append(LIFECYCLE, 1)
    opened.append(OTHER, 1)
    behind = opened.behind()
    assert "the log was removed" in why_text(behind.why)
    assert len((spill / SPILL_FILE).read_bytes().splitlines()) == 2
    assert not path.exists()


def test_half_a_line_never_stays_before_another(
    opened: EventLog, disk: Disk, path: Path, spill: Path
) -> None:
    """What a filling disk took of a line is cut off before the line is written again."""
    opened.append(LIFECYCLE, 1)
    disk.short = True
    opened.append(LIFECYCLE, 1)
    assert not path.read_bytes().endswith(b"\n")
    assert len(read_events(path, spill_dir=spill).events) == 2
    disk.short = False
    wait_until(lambda: opened.behind() is None, 5.0, "the log has caught up")
    assert seqs(path) == [1, 2]
    assert read_events(path).torn_tail is None


def test_a_line_that_was_written_is_not_written_again(
    opened: EventLog, disk: Disk, path: Path
) -> None:
    """The disk is full in the middle of several lines: those before it are in the log already."""
    disk.stuck.clear()
    for _ in range(4):
        opened.append(OTHER, 1)
    disk.room = 2
    disk.stuck.set()
    wait_until(lambda: disk.full, 5.0, "the third line is refused")
    disk.full, disk.room = False, None
    wait_until(lambda: opened.behind() is None, 5.0, "the log has caught up")
    assert seqs(path) == [1, 2, 3, 4]


def test_a_stuck_disk_costs_two_seconds_once(
    opened: EventLog, disk: Disk, path: Path, spill: Path
) -> None:
    """The first durable event waits two seconds, the following not at all, others never."""
    disk.stuck.clear()
    began = time.monotonic()
    opened.append(OTHER, 1)
    assert time.monotonic() - began < 0.5
    began = time.monotonic()
    opened.append(LIFECYCLE, 1)
    assert 1.5 < time.monotonic() - began < 3.5
    began = time.monotonic()
    for _ in range(50):
        opened.append(LIFECYCLE, 1)
    assert time.monotonic() - began < 1.0
    behind = opened.behind()
    assert behind.behind_s >= 2.0
    assert "does not answer" in why_text(behind.why)
    assert len(read_events(path, spill_dir=spill).events) == 52
    disk.stuck.set()
    wait_until(lambda: opened.behind() is None, 5.0, "the log has caught up")
    assert seqs(path) == list(range(1, 53))


def test_close_on_a_stuck_disk_returns_and_leaves_the_spill(
    opened: EventLog, disk: Disk, path: Path, spill: Path
) -> None:
    """close() keeps its timeout; the next supervisor moves what was spilled into the log."""
    opened.append(LIFECYCLE, 1)
    disk.full = True
    opened.append(OTHER, 1)
    opened.append(LIFECYCLE, 1)
    assert not opened.close(5.0)
    assert seqs(path) == [1]
    disk.full = False
    second = EventLog.open(path, spill_dir=spill)
    assert second.append(LIFECYCLE, 1).seq == 4
    assert second.close(5.0)
    assert seqs(path) == [1, 2, 3, 4]
    assert not spill.exists()


def test_a_spill_that_does_not_follow_the_log_is_put_aside(path: Path, spill: Path) -> None:
    stale = e.encode(msgspec.structs.replace(LIFECYCLE, seq=7)) + b"\n"
    (spill / SPILL_FILE).write_bytes(stale)
    log = EventLog.open(path, spill_dir=spill)
    assert log.append(LIFECYCLE, 1).seq == 1
    assert log.close(5.0)
    assert seqs(path, spill) == [1]
    assert [each.read_bytes() for each in spill.iterdir()] == [stale]


def test_without_a_place_to_spill_events_wait_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No private local memory: the loop still goes on, and is told."""
    log = EventLog.open(path, spill_dir=None)
    disk = Disk(monkeypatch, path)
    disk.full = True
    log.append(LIFECYCLE, 1)
    behind = log.behind()
    assert behind.spill is None
    assert "in memory only" in why_text(behind.why)
    disk.full = False
    wait_until(lambda: log.behind() is None, 5.0, "the log has caught up")
    assert log.close(5.0)
    disk.close()
    assert seqs(path) == [1]


def test_samples_are_left_out_when_too_much_waits(
    opened: EventLog, disk: Disk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded: samples go, unnumbered, everything else is kept."""
    monkeypatch.setattr(event_log, "MAX_WAITING_BYTES", 400)
    disk.full = True
    for _ in range(20):
        opened.append(SAMPLE, 1)
    kept = opened.seq
    assert 0 < kept < 20
    assert opened.append(OTHER, 1).seq == kept + 1
    behind = wait_until(opened.behind, 5.0, "the writer has met the full disk")
    assert f"{20 - kept} samples left out" in why_text(behind.why)
    disk.full = False
    wait_until(lambda: opened.behind() is None, 5.0, "the log has caught up")
    assert seqs(path) == list(range(1, kept + 2))


def test_texts_of_the_training_cannot_break_the_log(opened: EventLog, path: Path) -> None:
    """Megabytes, lone surrogates and NaN in an event leave a log that can be read."""
    plan = Plan(
        attempt=1,
        why=said("x" * 3_000_000),
        argv=tuple("y" * 1000 for _ in range(5000)),
        env={"KEY" * 100: "\udcff" * 1000},
        in_process=({"id": "a"},),
    )
    returned = [
        opened.append(e.PlanMade(plan=plan), 1),
        opened.append(e.SuspicionEnded(why=said("caf\udce9")), 1),
        opened.append(e.Progress(progress=RunProgress(loss=float("nan")), ranks=()), 1),
    ]
    assert opened.close(5.0)
    assert list(read_events(path).events) == returned
    assert max(len(line) for line in path.read_bytes().splitlines()) < MAX_LINE_BYTES
    first = returned[0]
    assert isinstance(first, e.PlanMade)
    assert first.plan.why.problem.endswith("characters left out)")


def fill(file: IO[bytes]) -> None:
    """Write until the file system refuses."""
    while True:
        file.write(b"x" * 4096)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_a_real_full_file_system(tmp_path: Path, spill: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as mount:
        path, filler = mount / "events.jsonl", mount / "filler"
        log = EventLog.open(path, spill_dir=spill)
        log.append(LIFECYCLE, 1)
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            fill(file)
        while log.behind() is None:
            log.append(LIFECYCLE, 1)
        log.append(OTHER, 1)
        written = log.seq
        assert len(read_events(path, spill_dir=spill).events) == written
        filler.unlink()
        wait_until(lambda: log.behind() is None, 5.0, "the log has caught up")
        assert log.close(5.0)
        assert seqs(path) == list(range(1, written + 1))


def test_other_writing_is_done_beside_and_before_the_end(opened: EventLog) -> None:
    """What the run directory needs besides events is written by the same thread, never by ours."""
    threads: list[int] = []
    assert opened.beside(lambda: threads.append(threading.get_ident()))
    opened.append(LIFECYCLE, 1)
    assert opened.close(5.0)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_other_writing_never_makes_anybody_wait(opened: EventLog) -> None:
    free = threading.Event()
    assert opened.beside(lambda: bool(free.wait(30.0)))
    answers = [opened.beside(lambda: None) for _ in range(event_log.MAX_BESIDE + 2)]
    assert answers[0]
    assert not answers[-1]
    free.set()
