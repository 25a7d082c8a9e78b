"""Several trainings in one script: only the one that was stopped goes on from its checkpoint.

Those before it are trained again from their beginning, or skipped where the script skips them; no
checkpoint gets into another fold, stage or task.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, last_line
from tests.support import CompletedRun, run_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(175)]

pytest.importorskip("transformers")

BEGAN = re.compile(r"^(\S+): begins at (\d+)$", re.MULTILINE)
ENDED = re.compile(r"^(\S+): ended at (\d+), sum (\S+)$", re.MULTILINE)


def run_mode(mode: str, cwd: Path) -> CompletedRun:
    """A run that hangs once in the last training and reaches its end."""
    run = run_program(cwd, "several_trainings.py", "--mode", mode, timeout_s=170).check(0)
    assert_ended_in_order(run)
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert last_line(run.stdout).startswith(f"finished {mode}")
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["resume_via"] == "hook", run.describe()
    return run


def began(run: CompletedRun) -> list[tuple[str, int]]:
    """Where each training of both attempts began, in order."""
    return [(name, int(step)) for name, step in BEGAN.findall(run.stdout)]


def assert_resumed(run: CompletedRun, path: str) -> None:
    """The chosen checkpoint was this one, and the training said that it had loaded it."""
    plan = run.of_type("plan_made")[-1]["plan"]
    assert Path(plan["checkpoint"]["path"]) == run.cwd / path
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()


def test_only_the_third_fold_goes_on(tmp_path: Path) -> None:
    """Folds 1 and 2 are trained again from zero, fold 3 from its step 10, and the sums agree."""
    run = run_mode("folds", tmp_path)
    first = [("fold1", 0), ("fold2", 0), ("fold3", 0)]
    assert began(run) == [*first, ("fold1", 0), ("fold2", 0), ("fold3", 10)]
    assert_resumed(run, "fold3/checkpoint-10")
    sums = [(name, total) for name, _, total in ENDED.findall(run.stdout)]
    assert sums[0] == sums[2], "fold 1 trained again gives what it gave"
    assert sums[1] == sums[3]


def test_a_script_that_skips_finished_folds(tmp_path: Path) -> None:
    """Fold 3 is the first training of the second attempt, and goes on all the same."""
    run = run_mode("skip", tmp_path)
    assert began(run) == [("fold1", 0), ("fold2", 0), ("fold3", 0), ("fold3", 10)]
    assert_resumed(run, "fold3/checkpoint-10")
    assert "fold1: skipped" in run.stdout


def test_a_second_stage_in_its_own_directory(tmp_path: Path) -> None:
    """The first stage is trained again, the second goes on."""
    run = run_mode("stages", tmp_path)
    assert began(run) == [("sft", 0), ("dpo", 0), ("sft", 0), ("dpo", 10)]
    assert_resumed(run, "dpo/checkpoint-10")


def test_a_second_stage_in_the_same_directory(tmp_path: Path) -> None:
    """There its steps lie below those of the first stage: the newest number is not the newest.

    The first stage, trained again, writes over it: the second begins anew, never with its weights.
    """
    run = run_mode("same-dir", tmp_path)
    assert began(run) == [("out", 0), ("out", 0), ("out", 0), ("out", 0)]
    first, again, _ = ENDED.findall(run.stdout)
    assert first == again, "the first stage trained again gives what it gave"
    rejected = {event["path"] for event in run.of_type("checkpoint_rejected")}
    assert not [path for path in rejected if path.endswith("checkpoint-10")]


def test_the_second_task_of_a_worker(tmp_path: Path) -> None:
    """The first task is confirmed; the second hangs, is delivered again, and goes on."""
    run = run_mode("worker", tmp_path)
    assert began(run) == [("runs/one", 0), ("runs/second", 0), ("runs/second", 10)]
    assert_resumed(run, "runs/second/checkpoint-10")
