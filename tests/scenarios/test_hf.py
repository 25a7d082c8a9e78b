"""The Hugging Face Trainer: caught, resumed by the hook, finished; its script is plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.checks import assert_hang_was_handled, last_line
from tests.support import EXAMPLES, program_command, run_fast, run_program, run_wtrain

pytestmark = pytest.mark.timeout(290)

SCRIPT = str(EXAMPLES / "hf_trainer.py")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_planted_hang(method: str, tmp_path: Path) -> None:
    """The Trainer's workers deadlock; it resumes from checkpoint-20 and reaches the last step."""
    run = run_fast(
        tmp_path,
        program_command(SCRIPT, "--max_steps", "40"),
        env={"PLANT_HANG_AT": "20", "START_METHOD": method},
        timeout_s=280,
    ).check(0)
    assert_hang_was_handled(run)
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["resume_via"] == "hook", plan
    assert Path(plan["checkpoint"]["path"]).name == "checkpoint-20"
    assert "num-workers-0" in {use["id"] for use in plan["remedies"]}, plan
    taken = {event["remedy"] for event in run.of_type("remedy_taken") if event["took"]}
    assert "num-workers-0" in taken, run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert last_line(run.stdout).startswith("finished step=40 ")


@pytest.mark.slow
def test_healthy_trainer_is_left_in_peace(tmp_path: Path) -> None:
    """A Trainer without a planted hang runs once; step, total and loss are known."""
    run = run_program(tmp_path, SCRIPT, "--max_steps", "30").check(0)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    assert not run.of_type("stall_declared"), run.describe()
    assert run.only("run_finished")["warning"] is None, run.describe()
    status = run_wtrain("status", "--json", cwd=tmp_path).json()
    assert status["progress"]["step"] == 30
    assert status["progress"]["total_steps"] == 30
