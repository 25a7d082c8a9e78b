"""The same training twice: refused, ended on request, and never confused with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_wtrain, start_wtrain

pytestmark = [pytest.mark.processes, pytest.mark.scenario]

SLEEPS = ("sh", "-c", "sleep 60")


def test_the_same_training_is_refused(tmp_path: Path) -> None:
    """A second run of the same command in the same directory ends with 78 and touches nothing."""
    first = start_wtrain("run", "--", *SLEEPS, cwd=tmp_path)
    first.wait_for("attempt_launched", 20)
    second = run_wtrain("run", "--", *SLEEPS, cwd=tmp_path, timeout_s=30)
    assert second.returncode == 78, second.describe()
    assert "run-duplicate" in second.stderr, second.describe()
    other = run_wtrain("run", "--", "true", cwd=tmp_path, timeout_s=30)
    assert other.returncode == 0, other.describe()
    array_task = run_wtrain(
        "run", "--", "true", cwd=tmp_path, env={"SLURM_ARRAY_TASK_ID": "2"}, timeout_s=30
    )
    assert array_task.returncode == 0, array_task.describe()
    assert not [event for event in first.events if event["type"] == "signalled"]
    assert run_wtrain("stop", "--now", cwd=tmp_path, timeout_s=60).returncode == 0
    assert first.result(30).returncode == 77


def test_a_duplicate_is_ended_on_request(tmp_path: Path) -> None:
    """--duplicates kill ends the other run through its own supervisor, then starts."""
    first = start_wtrain("run", "--", "sh", "-c", "sleep 5", cwd=tmp_path)
    first.wait_for("attempt_launched", 20)
    options = ("--duplicates", "kill")
    second = run_wtrain("run", *options, "--", "sh", "-c", "sleep 5", cwd=tmp_path, timeout_s=60)
    ended = first.result(30)
    assert ended.returncode == 77, ended.describe()
    assert "stop requested (--duplicates kill" in ended.stderr, ended.describe()
    assert second.returncode == 0, second.describe()


def test_ignored_duplicates_run_side_by_side(tmp_path: Path) -> None:
    """--duplicates ignore starts beside the other run and leaves it alone."""
    first = start_wtrain("run", "--", "sh", "-c", "sleep 4", cwd=tmp_path)
    first.wait_for("attempt_launched", 20)
    options = ("--duplicates", "ignore")
    second = run_wtrain("run", *options, "--", "sh", "-c", "sleep 4", cwd=tmp_path, timeout_s=60)
    assert second.returncode == 0, second.describe()
    ended = first.result(30)
    assert ended.returncode == 0, ended.describe()
    assert "stop requested" not in ended.stderr, ended.describe()
