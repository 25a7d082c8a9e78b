"""A run directory that turns read-only under open files, as ext4 does after an error of its disk.

`mount -o remount,ro` cannot show it: the kernel refuses that while a file is open for writing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import (
    of_type,
    program_command,
    run_command,
    start_fast,
    start_wtrain,
    types,
    write_fast_config,
)
from watchdog_train.core import events as e
from watchdog_train.store.log_reading import read_events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="ext4 and loop devices"),
]


@pytest.fixture
def fail_disk(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """wtrain-runs is a file system of its own; call it to give that an error."""
    image, folder = tmp_path / "disk.img", tmp_path / "wtrain-runs"
    folder.mkdir()
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 here")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, timeout=60)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def fail() -> None:
        said = run_command(["findmnt", "-n", "-o", "SOURCE", str(folder)])
        device = Path(said.stdout.strip()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1\n")
        with pytest.raises(OSError, match="Read-only"):
            (folder / "probe").write_text("")

    yield fail
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


def test_a_training_that_needs_nothing_ends_well(
    fail_disk: Callable[[], None], tmp_path: Path
) -> None:
    """It is not harmed, its end is known, and the log goes on in memory and says so.

    What it has printed since is in no file, and the terminal shows what the files hold.
    """
    command = program_command("sleeping_steps.py", "--sleep-s", "0.1", "--steps", "60")
    running = start_fast(tmp_path, command)
    running.wait_for("first_step", 60.0)
    folder = running.run_dir
    fail_disk()
    run = running.result(90.0).check(0)
    assert "success: exit code 0; step 60" in run.stderr
    assert (tmp_path / "checkpoints" / "step-000060.pt").exists()
    assert "the event log is" in run.stderr
    (spill,) = list(tmp_path.glob(".home/runtime/wtrain-*-spill/*"))
    events = read_events(folder / "events.jsonl", spill_dir=spill).events
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    assert any(isinstance(one, e.TreeGone) for one in events)
    assert isinstance(events[-1], e.RunFinished)


def test_a_restart_waits_for_the_disk_and_ends_with_75(
    fail_disk: Callable[[], None], tmp_path: Path
) -> None:
    """Evidence is taken, nothing is begun that could not be recorded; another place may do."""
    config = write_fast_config(tmp_path)
    config.write_text(config.read_text().replace("recovery:", "recovery:\n  room_wait_s: 3"))
    command = program_command("crash_at_step.py", "exception", "--at", "100", "--steps", "120")
    running = start_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path)
    running.wait_for("first_step", 60.0)
    fail_disk()
    run = running.result(120.0).check(75)
    assert "the run directory cannot be written (Read-only file system)" in run.stderr
    (bundle,) = list(tmp_path.glob(".home/runtime/wtrain-*-staging/*/full-0001"))
    assert (bundle / "verdict.json").exists()
    assert "attempt_launching" in types(run.events)
    assert len(of_type(run.events, "attempt_launching")) == 1
