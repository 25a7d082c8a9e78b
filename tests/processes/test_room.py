"""What the next attempt needs: a checkpoint that fits on a disk of a few MiB, and descriptors."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support import small_disk, wait_until
from watchdog_train.checkpoints.survey import SurveyRequest
from watchdog_train.core.recovery.restart import TornSave
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.resources import RestartRoom, SaveRoom
from watchdog_train.supervisor.tasks import Tasks
from watchdog_train.system import current


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "8m") as folder:
        yield folder


def checkpoint(disk: Path, step: int, size_bytes: int) -> str:
    folder = disk / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\1" * size_bytes)
    return str(folder)


def test_room_for_the_next_save_is_measured(disk: Path) -> None:
    """What the torn one takes is room for the next; what others take is not."""
    save = TornSave(whole=checkpoint(disk, 10, 3 << 20), torn=(checkpoint(disk, 20, 1 << 20),))
    room = SaveRoom()
    assert room.lacking(save, 0.0) is None
    others = disk / "data"
    others.write_bytes(b"\1" * (3 << 20))
    told = wait_until(lambda: room.lacking(save, 5.0), 10, "the full disk is seen")
    assert told.startswith("checkpoint-20 is half-written")
    assert "needs 3.0 MiB" in told
    others.unlink()
    wait_until(lambda: room.lacking(save, 10.0) is None, 10, "the room is seen")
    assert room.lacking(None, 11.0) is None


def test_what_cannot_be_measured_is_not_waited_for(tmp_path: Path) -> None:
    """A checkpoint that was removed meanwhile."""
    gone = TornSave(whole=str(tmp_path / "a"), torn=(str(tmp_path / "b"),))
    assert SaveRoom().lacking(gone, 0.0) is None


@contextmanager
def without_descriptors(spare: int = 8) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_descriptors_for_a_launch_are_tried(tmp_path: Path) -> None:
    """A launch without them would end the run before it began. What was there is no answer."""
    room = RestartRoom(tmp_path)
    assert room.short(0.0) is None
    with without_descriptors():
        assert room.short(0.001) == "wtrain can open no more files (Too many open files)"
    assert room.short(0.5) is not None
    assert room.short(2.0) is None


def test_what_could_not_be_started_is_short_for_a_moment(tmp_path: Path) -> None:
    """Also where a look at descriptors sees nothing: the machine may be out of processes."""
    room = RestartRoom(tmp_path)
    room.met("Resource temporarily unavailable", 10.0)
    assert room.short(10.5) == "wtrain can start nothing (Resource temporarily unavailable)"
    assert room.short(11.5) is None


def test_a_survey_that_cannot_be_started_is_no_survey(tmp_path: Path) -> None:
    """It is tried again: an answer without checkpoints would let the training begin anew."""
    children = ChildTable(current())
    tasks = Tasks(children)
    request = SurveyRequest(directories=(str(tmp_path),))
    ask = partial(
        tasks.scan_checkpoints, request, tmp_path, keep=tmp_path / "survey.json", deadline_s=30.0
    )
    with without_descriptors(2), pytest.raises(OSError, match="Too many open files"):
        ask()
    assert tasks.survey is None
    assert not tasks.running
    ask()

    def answered() -> bool:
        children.poll()
        tasks.poll()
        return tasks.survey is not None

    wait_until(answered, 30, "the survey answers")
    assert tasks.survey.problem is None
    assert not tasks.survey.failed


@pytest.mark.parametrize("how", ["killed", "stopped", "garbage", "gone"])
def test_a_scan_without_an_answer_has_failed(how: str, tmp_path: Path) -> None:
    """As by the OOM killer, on a slow NFS, with nonsense for an answer: never "there is none"."""
    now = [100.0]
    children = ChildTable(current(), clock=lambda: now[0])
    tasks = Tasks(children)
    answer = tmp_path / "task-survey-answer.json"
    request = SurveyRequest(directories=(str(tmp_path),))
    tasks.scan_checkpoints(request, tmp_path, keep=tmp_path / "keep.json", deadline_s=30.0)
    (child,) = children.running()
    os.kill(child.pid, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    if how == "garbage":
        answer.write_text('{"findings": [')
    if how == "gone":
        answer.mkdir()

    def answered() -> bool:
        now[0] += 1.0
        children.poll()
        tasks.poll()
        return tasks.survey is not None

    wait_until(answered, 30, "the scan is over")
    assert tasks.survey.failed
    said = "did not end within" if how == "stopped" else "killed by signal 9"
    assert said in (tasks.survey.problem or "")
