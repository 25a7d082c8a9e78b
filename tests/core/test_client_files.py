"""The supervisor's reading of what training wrote: bounded, and never believed."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
from pathlib import Path

import pytest

from tests.support import write_slot
from watchdog_train.client import layout
from watchdog_train.store.control import ControlPage
from watchdog_train.store.slots import read_note, read_saves, read_slots, sweep_slots

REQUESTS = (layout.C_SAVE_REQUEST, layout.C_STOP_REQUEST, layout.C_DUMP_REQUEST)


def test_a_slot_is_decoded(tmp_path: Path) -> None:
    write_slot(tmp_path, 7, W_RANK=1, W_ROLE=layout.ROLE_RANK, W_FRAMEWORK_STEP=51, W_PHASE=6)
    write_slot(tmp_path, 8, W_WORKER=3, W_ROLE=layout.ROLE_WORKER)
    rank, worker = read_slots(tmp_path).readings
    assert (rank.pid, rank.rank, rank.role, rank.step, rank.phase) == (7, 0, "rank", 50, "train")
    assert (worker.worker, worker.role, worker.rank, worker.step) == (2, "worker", None, None)
    assert (rank.loss, rank.total_steps, rank.resumed_step) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ({}, None),
        ({"W_OPTIMIZER_STEPS": 3}, 3),
        ({"W_OPTIMIZER_STEPS": 3, "W_RESUMED_STEP": 41}, 43),
        ({"W_OPTIMIZER_STEPS": 3, "W_RESUMED_STEP": 41, "W_BEGAN_ANEW": 4}, 3),
        ({"W_OPTIMIZER_STEPS": 1, "W_TRAIN_ORDINAL": 1}, None),
        ({"W_OPTIMIZER_STEPS": 9, "W_FRAMEWORK_STEP": 1, "W_TRAIN_ORDINAL": 1}, 0),
    ],
)
def test_which_step_counts(tmp_path: Path, words: dict[str, int], step: int | None) -> None:
    """The framework's step where there is a framework, else optimizer steps after the resume."""
    write_slot(tmp_path, 5, **words)
    (reading,) = read_slots(tmp_path).readings
    assert reading.step == step


def test_hostile_slots_are_skipped_and_named(tmp_path: Path) -> None:
    write_slot(tmp_path, 1)
    write_slot(tmp_path, 2, W_MAGIC=(layout.MAGIC >> 32 << 32) | 9)
    write_slot(tmp_path, 3, W_MAGIC=99)
    write_slot(tmp_path, 4, W_PID=1)
    write_slot(tmp_path, 5, W_MAGIC=0)
    (tmp_path / "6.slot").write_bytes(b"short")
    (tmp_path / "7.slot").symlink_to(tmp_path / "1.slot")
    os.mkfifo(tmp_path / "8.slot")
    (tmp_path / "9.slot").mkdir()
    (tmp_path / "-1.slot").write_bytes(b"")
    (tmp_path / "x.slot").write_bytes(b"")
    scan = read_slots(tmp_path)
    assert [reading.pid for reading in scan.readings] == [1]
    assert [problem.partition(":")[0] for problem in scan.problems] == [
        "2.slot", "3.slot", "4.slot", "6.slot",
    ]  # fmt: skip
    assert "version 9" in scan.problems[0]
    assert read_slots(tmp_path / "nowhere").readings == ()


def test_random_words_never_raise(tmp_path: Path) -> None:
    dice = random.Random(7)
    for pid in range(1, 200):
        path = write_slot(tmp_path, pid)
        data = bytearray(path.read_bytes())
        for word in range(2, layout.SLOT_WORDS):
            data[word * 8 : word * 8 + 8] = dice.randbytes(8)
        path.write_bytes(data)
    scan = read_slots(tmp_path)
    assert (len(scan.readings), scan.problems) == (199, ())
    assert {reading.phase for reading in scan.readings} == {"unknown"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"pid":2}',
        b"[" * 60000,
        b'{"pid":1,"notes":[3]}',
        b"1" * 70000,
    ],
)
def test_hostile_notes_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.note.json").write_bytes(content)
    assert read_note(tmp_path, 1) is None


def test_a_note_is_read(tmp_path: Path) -> None:
    """Unknown fields are ignored, missing ones have defaults, links are not followed."""
    text = json.dumps({"pid": 1, "settings": {"spawn": {"took": True, "why": "w"}}, "new": 1})
    (tmp_path / "1.note.json").write_text(text)
    (tmp_path / "2.note.json").symlink_to(tmp_path / "1.note.json")
    note = read_note(tmp_path, 1)
    assert note.settings["spawn"].took
    assert note.output_dirs == ()
    assert read_note(tmp_path, 2) is None
    assert read_note(tmp_path, 3) is None


def test_save_records_are_capped_and_sorted(tmp_path: Path) -> None:
    """Torn and foreign lines are dropped, of the rest the newest are kept, oldest first."""
    lines = [json.dumps({"path": f"/a/{t}", "format": "hf", "t": t}) for t in (5.0, 1.0, 3.0)]
    (tmp_path / "saves.1.jsonl").write_text("\n".join([lines[1], "{torn", lines[2]]) + "\n")
    (tmp_path / "saves.2.jsonl").write_text(lines[0] + '\n{"path": "/a/9", "form')
    (tmp_path / "saves.3.jsonl").symlink_to(tmp_path / "saves.2.jsonl")
    assert [save.t for save in read_saves(tmp_path)] == [1.0, 3.0, 5.0]
    assert [save.t for save in read_saves(tmp_path, 2)] == [3.0, 5.0]
    assert read_saves(tmp_path, 0) == ()


def test_only_slots_of_the_dead_are_swept(tmp_path: Path) -> None:
    """Alive and "cannot be told" stay, and so do notes."""
    for pid in (1, 2, 3):
        write_slot(tmp_path, pid, W_START=pid * 10)
        (tmp_path / f"{pid}.note.json").write_text("{}")
    answers = {(1, 10): True, (2, 20): False, (3, 30): None}
    sweep_slots(tmp_path, lambda pid, start: answers[pid, start])
    assert sorted(path.name for path in tmp_path.glob("*.slot")) == ["1.slot", "3.slot"]
    assert len(list(tmp_path.glob("*.note.json"))) == 3


def test_the_control_page_counts_and_remembers(tmp_path: Path) -> None:
    """Numbers grow, a second holder sees them, and a new attempt starts from where they are."""
    path = tmp_path / layout.CONTROL_FILE
    with ControlPage.create(path) as page:
        assert tuple(map(page.word, REQUESTS)) == (0, 0, 0)
        assert (page.request_save(), page.request_save(), page.request_stop()) == (1, 2, 1)
        assert page.request_dump() == 1
        with ControlPage.create(path) as other:
            assert tuple(map(other.word, REQUESTS)) == (2, 1, 1)
            other.begin_attempt()
        words = struct.unpack("=8Q", path.read_bytes()[:64])
        assert words[layout.C_SAVE_BASE] == 2
    assert path.stat().st_size == layout.CONTROL_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_control_page_that_is_cut_short_is_mended(tmp_path: Path) -> None:
    """Behind the end of its file a mapping is a SIGBUS: the supervisor would die of a request."""
    path = tmp_path / "control"
    with ControlPage.create(path) as page:
        assert page.request_save() == 1
        os.truncate(path, 0)
        assert page.request_save() == 2
        assert page.word(layout.C_STOP_REQUEST) == 0
        os.truncate(path, 100)
        page.begin_attempt()
    with ControlPage.open(path) as again:
        assert again.word(layout.C_SAVE_REQUEST) == 2


def test_a_control_page_that_cannot_be_mended_counts_on(tmp_path: Path) -> None:
    """Memory is full: nobody hears the requests, and the supervisor lives."""
    path = tmp_path / "control"
    with ControlPage.create(path) as page:
        os.truncate(path, 0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            assert [page.request_stop(), page.request_stop()] == [1, 2]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        assert page.word(layout.C_STOP_REQUEST) == 2


def test_a_foreign_control_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / layout.CONTROL_FILE
    with pytest.raises(FileNotFoundError):
        ControlPage.open(path)
    for content in (b"", b"x" * layout.CONTROL_BYTES):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a control page"):
            ControlPage.open(path)
    ControlPage.create(path).close()
    ControlPage.open(path).close()
