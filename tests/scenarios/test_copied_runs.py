"""Copied run directories are read and never acted in; moved ones go on being the run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support import CompletedRun, is_alive, read_log, run_wtrain, start_wtrain, types

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="copies with modes and times, as `cp -a`"
)
PATIENT = """\
import os, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""
ACTING = (("stop",), ("save",), ("restart",), ("adopt",), ("dump",), ("probe",), ("attach",))


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def refuses_to_act(here: Path, name: str, original: Path) -> None:
    """Each acting command ends with 78 and names the directory of the run."""
    for words in ACTING:
        run = run_wtrain(*words, name, cwd=here).check(78)
        assert str(original) in run.stderr, run.describe()
        assert "copy" in run.stderr, run.describe()


def is_told_as_copy(run: CompletedRun, original: Path) -> None:
    assert "copy" in run.stdout + run.stderr, run.describe()
    assert str(original) in run.stdout + run.stderr, run.describe()
    assert "dead" not in run.stdout, run.describe()


@pytest.mark.timeout(150)
def test_the_copy_of_a_live_run_is_read_and_never_acted_in(tmp_path: Path) -> None:
    """Also when the run was moved after the copy was made, and when its supervisor is killed."""
    (tmp_path / "train.py").write_text(PATIENT)
    go = tmp_path / "go"
    command = ("--", sys.executable, "train.py", str(go), "0")
    running = start_wtrain("run", *command, cwd=tmp_path)
    training = running.wait_for("attempt_launched", 30)["pid"]
    original, name = running.run_dir, running.run_dir.name
    copied = copy(original.parent, tmp_path / "bak" / "wtrain-runs") / name
    # The registry of the user is the same in both places.
    (tmp_path / "bak" / ".home").symlink_to(tmp_path / ".home")
    is_told_as_copy(run_wtrain("status", name, cwd=tmp_path / "bak").check(4), original)
    is_told_as_copy(run_wtrain("report", name, cwd=tmp_path / "bak").check(0), original)
    refuses_to_act(tmp_path / "bak", name, original)
    # The record of the place is stale now: the supervisor tells where it works.
    moved = tmp_path / "moved" / name
    moved.parent.mkdir()
    original.rename(moved)
    refuses_to_act(tmp_path / "bak", name, moved)
    run_wtrain("status", str(moved), cwd=tmp_path).check(0)
    run_wtrain("clean", "--yes", "--keep-last", "0", cwd=tmp_path / "bak")
    assert copied.is_dir()
    os.kill(running.pid, signal.SIGKILL)
    running.result(10)
    refuses_to_act(tmp_path / "bak", name, moved)  # the keeper tells it
    assert is_alive(training)
    adopted = start_wtrain("adopt", str(moved), cwd=tmp_path)
    go.touch()
    adopted.result(60).check(0)
    assert types(read_log(copied)).count("adopted") == 0
    assert types(read_log(moved))[-1] == "run_finished"


@pytest.mark.timeout(90)
def test_the_copy_of_an_ended_run_becomes_the_run_once_the_original_is_deleted(
    tmp_path: Path,
) -> None:
    """While the original exists, `restart` refuses the copy; a moved run is no copy of anything."""
    (tmp_path / "train.py").write_text(PATIENT)
    (tmp_path / "go").touch()
    command = ("--", sys.executable, "train.py", "go", "3")
    run = run_wtrain("run", "--max-restarts", "0", *command, cwd=tmp_path)
    original, name = run.run_dir, run.run_dir.name
    copied = copy(original, tmp_path / "bak" / name)
    refused = run_wtrain("restart", str(copied), cwd=tmp_path).check(78)
    assert str(original) in refused.stderr, refused.describe()
    is_told_as_copy(run_wtrain("status", str(copied), cwd=tmp_path).check(3), original)
    moved = tmp_path / "moved" / name
    moved.parent.mkdir()
    original.rename(moved)
    for accepted in (moved, copied):
        status = run_wtrain("status", str(accepted), cwd=tmp_path).check(3)
        assert "copy" not in status.stdout, status.describe()
    run_wtrain("restart", str(copied), cwd=tmp_path)
    assert types(read_log(copied)).count("reopened") == 1
    # From now on the directory that went on is the run, whatever comes back to the old place.
    back = run_wtrain("restart", str(copy(copied, original)), cwd=tmp_path).check(78)
    assert str(copied) in back.stderr, back.describe()
