"""The same training twice: refused, and never confused with another one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import run_directories, run_wtrain, start_fast, start_wtrain, wait_until

ENDS_THE_SECOND_TIME = ("sh", "-c", "test -e once && exit 0; touch once; exec sleep 600")
SLEEPS = ("sh", "-c", "sleep 60")


def test_the_same_training_is_refused(tmp_path: Path) -> None:
    """A second run of the same command in the same directory ends with 78 and touches nothing."""
    first = start_wtrain("run", "--", *SLEEPS, cwd=tmp_path)
    first.wait_for("attempt_launched", 20)
    second = run_wtrain("run", "--", *SLEEPS, cwd=tmp_path, timeout_s=30).check(78)
    for words in ("run-duplicate", "wtrain status", "wtrain attach", "wtrain stop"):
        assert words in second.stderr, second.describe()
    run_wtrain("run", "--", "true", cwd=tmp_path, timeout_s=30).check(0)
    run_wtrain(
        "run", "--", "true", cwd=tmp_path, env={"SLURM_ARRAY_TASK_ID": "2"}, timeout_s=30
    ).check(0)
    assert not [event for event in first.events if event["type"] == "signalled"]
    assert run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=60).returncode == 0
    assert first.result(30).returncode == 77


def test_ignored_duplicates_run_side_by_side(tmp_path: Path) -> None:
    """--duplicates ignore starts beside the other run and leaves it alone."""
    first = start_wtrain("run", "--", "sh", "-c", "sleep 4", cwd=tmp_path)
    first.wait_for("attempt_launched", 20)
    options = ("--duplicates", "ignore")
    second = run_wtrain("run", *options, "--", "sh", "-c", "sleep 4", cwd=tmp_path, timeout_s=60)
    assert second.returncode == 0, second.describe()
    ended = first.result(30).check(0)
    assert "stop requested" not in ended.stderr, ended.describe()


@pytest.mark.slow
def test_an_unwatched_twin_is_taken_up_instead_of_started_again(tmp_path: Path) -> None:
    """Its supervisor was killed; the next `wtrain run` of the same training watches over it."""
    command = ("sh", "-c", "sleep 30; exit 7")
    first = start_wtrain("run", "--on-crash", "stop", "--", *command, cwd=tmp_path)
    launched = first.wait_for("attempt_launched", 20)
    os.kill(first.pid, signal.SIGKILL)
    first.result(10)
    second = run_wtrain("run", "--", *command, cwd=tmp_path, timeout_s=110).check(7)
    assert "nobody watches it" in second.stderr, second.describe()
    assert len(run_directories(tmp_path)) == 1, second.describe()
    assert second.only("adopted")
    assert second.only("attempt_launched")["pid"] == launched["pid"]


@pytest.mark.slow
def test_a_dead_run_of_the_same_training_is_no_duplicate(tmp_path: Path) -> None:
    """Nothing of it lives: it must not keep anybody from starting again."""
    command = ENDS_THE_SECOND_TIME
    first = start_wtrain("run", "--", *command, cwd=tmp_path)
    launched = first.wait_for("attempt_launched", 20)
    for pid in (first.pid, launched["keeper_pid"], launched["pid"]):
        os.kill(pid, signal.SIGKILL)
    first.result(10)
    run_wtrain("run", "--", *command, cwd=tmp_path, timeout_s=60).check(0)
    assert len(run_directories(tmp_path)) == 2


SAVES_IN_A_LOOP = """
import sys, time
from pathlib import Path
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
Path("ck").mkdir(exist_ok=True)
step = 0
while not Path("told").exists():
    step += 1
    weight.sum().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save({"step": step, "weight": weight}, f"ck/{sys.argv[1]}-{step}.pt")
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_two_plain_trainings_that_save_into_one_directory_are_told_of(tmp_path: Path) -> None:
    """They have other options, so neither is a twin; one of the two says so."""
    (tmp_path / "train.py").write_text(SAVES_IN_A_LOOP)
    runs = [
        start_fast(tmp_path, (sys.executable, "train.py", n), "--name", n) for n in ("one", "two")
    ]

    def told() -> bool:
        logs = (directory / "events.jsonl" for directory in run_directories(tmp_path))
        return any('"checkpoints_shared"' in log.read_text() for log in logs if log.exists())

    try:
        wait_until(told, 90, "one of them says that both write there")
    finally:
        (tmp_path / "told").touch()
    for run in runs:
        run.result(60).check(0)
