"""`wtrain restart`: an ended run goes on in its own directory, from its newest whole checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound, assert_tree_is_gone, last_line
from tests.support import program_command, run_wtrain, start_wtrain, write_fast_config

pytestmark = [pytest.mark.processes, pytest.mark.scenario, pytest.mark.torch]

RESUME = ("--resume-arg", "--resume {checkpoint}")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_failed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """The crash is forgiven, the setting that was added is in effect, and the run succeeds."""
    config = write_fast_config(tmp_path)
    command = program_command("crash_at_step.py", "exit")
    options = ("--config", str(config), "--on-crash", "stop", *RESUME)
    failed = run_wtrain("run", *options, "--", *command, cwd=tmp_path).check(9)
    assert "wtrain restart" in failed.stderr, failed.describe()
    run_id = failed.run_dir.name
    run_wtrain("restart", run_id, "--with", "omp-one", cwd=tmp_path).check(78)

    run = run_wtrain("restart", run_id, "--with", "omp-1", cwd=tmp_path).check(0)
    assert run.run_dir.name == run_id
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    assert [event["exit_code"] for event in run.of_type("run_finished")] == [9, 0]
    assert run.only("reopened")["with_remedies"] == ["omp-1"]
    assert Path(run.only("checkpoint_chosen")["path"]).name == "step-000010.pt"
    plan = run.of_type("plan_made")[-1]["plan"]
    assert [remedy["id"] for remedy in plan["remedies"]] == ["omp-1"]
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert run.of_type("first_beat"), "heartbeats reach the reopened run"
    assert last_line(run.stdout).startswith("finished step=20 ")

    again = run_wtrain("restart", run_id, cwd=tmp_path).check(78)
    assert "has succeeded" in again.stderr


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_live_run_is_stopped_first(tmp_path: Path) -> None:
    """A run under way is stopped in order, and goes on from its checkpoint."""
    config = write_fast_config(tmp_path)
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "120")
    running = start_wtrain("run", "--config", str(config), *RESUME, "--", *command, cwd=tmp_path)
    running.wait_for("progress", 60, lambda event: (event["progress"]["step"] or 0) > 10)
    assert running.run_dir is not None
    run = run_wtrain("restart", running.run_dir.name, cwd=tmp_path).check(0)
    running.result(30).check(77)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    assert [event["outcome"] for event in run.of_type("run_finished")] == ["stopped", "succeeded"]
    assert run.only("checkpoint_chosen")["step"] >= 10
    assert last_line(run.stdout).startswith("finished step=120 ")
