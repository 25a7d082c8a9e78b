"""A service between two trainings is left alone; the task that hangs in it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound
from tests.support import program_command, run_wtrain, write_fast_config

pytestmark = [pytest.mark.processes, pytest.mark.scenario]

IDLE_S = 18.0
"""Longer than any limit of the fast budgets and the patience after it."""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_idle_is_no_stall_and_a_hung_task_is(tmp_path: Path) -> None:
    """One stall, in the second task, after the quiet between the two."""
    config = write_fast_config(tmp_path)
    command = program_command("service.py", "--idle-s", str(IDLE_S))
    arguments = ("run", "--config", str(config), "--on-stall", "stop", "--", *command)
    run = run_wtrain(*arguments, cwd=tmp_path, timeout_s=120)
    assert_log_is_sound(run)
    assert run.returncode == 75, run.describe()
    assert "the second task begins" in run.stdout, run.describe()
    (stall,) = run.of_type("stall_declared")
    assert stall["phase"] == "train", run.describe()
    first_step = run.of_type("first_step")[0]
    suspected = run.of_type("suspected")
    assert all(event["mono"] > first_step["mono"] + IDLE_S for event in suspected), run.describe()
