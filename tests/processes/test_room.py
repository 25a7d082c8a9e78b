"""What the next attempt needs: a checkpoint that fits on a disk of a few MiB, and descriptors."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.core.room import TornSave
from watchdog_train.supervisor.room import DescriptorRoom, SaveRoom

pytestmark = [pytest.mark.processes]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "wtrain-test", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


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


def test_descriptors_for_a_launch_are_tried() -> None:
    """A launch without them would end the run before it began."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 8, limits[1]))
        lacking = DescriptorRoom().lacking(0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert lacking == "wtrain can open no more files (Too many open files)"
    assert DescriptorRoom().lacking(0.0) is None
