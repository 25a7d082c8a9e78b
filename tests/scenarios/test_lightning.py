"""Lightning: caught, resumed by the hook, finished with the bits of a run that nothing befell."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_evidence_came_first,
    assert_hang_was_handled,
    assert_never_killed,
    assert_tree_is_gone,
    last_line,
)
from tests.support import (
    EXAMPLES,
    CompletedRun,
    RunningWtrain,
    program_command,
    run_command,
    run_wtrain,
    scenario_environment,
    start_fast,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

if find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

SCRIPT = str(EXAMPLES / "lightning_fit.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PATIENCE_S = 300.0
"""For a whole training, on a machine that does other things as well."""
TWO = ("--devices", "2", "--workers", "0")


def undisturbed(cwd: Path, *arguments: str) -> list[str]:
    """The last lines of the same training without wtrain."""
    cwd.mkdir()
    done = run_command(
        program_command(SCRIPT, *arguments), cwd=cwd, env=scenario_environment(cwd), timeout_s=200
    )
    return finished(done.stdout)


def finished(text: str) -> list[str]:
    """What the script said of each fold that it finished."""
    return [line for line in text.splitlines() if line.startswith("finished ")]


def start(cwd: Path, *command: str, env: dict[str, str] | None = None) -> RunningWtrain:
    return start_fast(cwd, command, env=env)


def assert_resumed_by_hook(run: CompletedRun, name: str) -> None:
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["resume_via"] == "hook", plan
    assert Path(plan["checkpoint"]["path"]).name == name, run.describe()
    verified = run.of_type("resume_verified")[-1]
    assert verified["ok"], run.describe()
    assert verified["first_step"] >= verified["expected_step"], run.describe()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_planted_hang(package: str, tmp_path: Path) -> None:
    """The workers deadlock; it resumes from the second epoch and ends with the same weights."""
    run = start(
        tmp_path, *program_command(SCRIPT, "--package", package), env={"PLANT_HANG_AT": "20"}
    ).result(PATIENCE_S)
    run.check(0)
    assert_hang_was_handled(run)
    assert_resumed_by_hook(run, "epoch=1-step=20.ckpt")
    taken = {event["remedy"] for event in run.of_type("remedy_taken") if event["took"]}
    assert "num-workers-0" in taken, run.describe()
    assert finished(run.stdout) == undisturbed(tmp_path / "alone", "--package", package)
    status = run_wtrain("status", "--json", cwd=tmp_path).json()["progress"]
    assert (status["step"], status["total_steps"]) == (60, 60)
    assert status["loss"] > 0


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_a_rank_that_sleeps(strategy: str, tmp_path: Path) -> None:
    """Lightning's own launchers: both ranks are dumped, ended, and go on from one checkpoint."""
    run = start(
        tmp_path,
        *program_command(SCRIPT, *TWO, "--strategy", strategy),
        env={"PLANT_SLEEP_AT": "25"},
    ).result(PATIENCE_S)
    run.check(0)
    assert_hang_was_handled(run)
    processes = run.of_type("evidence_collected")[0]["processes"]
    ranks = {process["rank"]: process for process in processes if process["role"] == "rank"}
    assert sorted(ranks) == [0, 1], run.describe()
    assert all(process["captured"] for process in ranks.values()), run.describe()
    assert_resumed_by_hook(run, "epoch=1-step=20.ckpt")
    assert finished(run.stdout) == undisturbed(tmp_path / "alone", *TWO, "--strategy", strategy)


def test_a_rank_that_sleeps_under_torchrun(tmp_path: Path) -> None:
    """The plain script under torchrun: the same, and one checkpoint for both ranks."""
    run = start(tmp_path, *TORCHRUN, SCRIPT, *TWO, env={"PLANT_SLEEP_AT": "25"}).result(PATIENCE_S)
    run.check(0)
    assert_evidence_came_first(run)
    assert_tree_is_gone(run)
    assert_resumed_by_hook(run, "epoch=1-step=20.ckpt")
    assert "step=60" in last_line(run.stdout)


@pytest.mark.parametrize("arguments", [(), (*TWO, "--strategy", "ddp")], ids=["alone", "ddp"])
def test_asked_to_save_then_to_stop(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """`wtrain save` goes on, `wtrain stop` ends; each leaves a whole checkpoint, with the proof."""
    command = program_command(SCRIPT, *arguments, "--epoch_steps", "100000", "--step_s", "0.02")
    running = start(tmp_path, *command)
    running.wait_for("first_step", PATIENCE_S)
    run_wtrain("save", cwd=tmp_path).check(0)
    proven = running.wait_for("save_proven", 60)["path"]
    assert [proven] == [str(path) for path in tmp_path.rglob("wtrain-step=*.ckpt")]
    run_wtrain("stop", cwd=tmp_path).check(0)
    run = running.result(PATIENCE_S).check(77)
    assert_tree_is_gone(run)
    assert len(run.of_type("attempt_launched")) == 1
    paths = sorted(tmp_path.rglob("wtrain-step=*.ckpt"), key=lambda path: path.stat().st_mtime)
    assert len(paths) == 2, run.describe()
    assert [event["path"] for event in run.of_type("save_proven")] == list(map(str, paths))
    listed = run_wtrain("checkpoints", str(paths[0].parent), "--json", cwd=tmp_path).json()
    whole = {item["path"] for item in listed["checkpoints"] if item["whole"]}
    assert {str(path) for path in paths} <= whole


def test_killed_in_the_second_of_three_folds(tmp_path: Path) -> None:
    """Only the second fold goes on from its checkpoint; all three end as if nothing had been."""
    arguments = ("--folds", "3", "--workers", "0")
    running = start(tmp_path, *program_command(SCRIPT, *arguments, "--step_s", "0.05"))
    # The record of the save, which comes after the file: before it nobody knows of the new folder.
    records = "wtrain-runs/*/attempts/0001/saves.*.jsonl"
    wait_until(
        lambda: any("/version_1/" in one.read_text() for one in tmp_path.glob(records)),
        120,
        "a checkpoint of the second fold",
    )
    os.kill(running.wait_for("attempt_launched", 1)["pid"], signal.SIGKILL)
    run = running.result(PATIENCE_S).check(0)
    plan = run.of_type("plan_made")[-1]["plan"]
    assert "/version_1/" in plan["checkpoint"]["path"], plan
    assert plan["checkpoint"]["ordinal"] == 2
    assert plan["resume_via"] == "hook"
    (verified,) = run.of_type("resume_verified")
    assert verified["ok"], run.describe()
    # Of the first attempt one fold, of the second all three.
    expected = undisturbed(tmp_path / "alone", *arguments)
    assert finished(run.stdout) == [expected[0], *expected]


def test_healthy_trainings_are_left_in_peace(tmp_path: Path) -> None:
    """With the usual limits: no duplicate, no stall, one attempt; two ranks of Lightning's own."""
    run = run_wtrain(
        "run", "--", *program_command(SCRIPT, *TWO), cwd=tmp_path, timeout_s=PATIENCE_S
    ).check(0)
    assert_never_killed(run)
    assert run.only("run_finished")["warning"] is None, run.describe()
    groups = [group for event in run.of_type("progress") for group in event["ranks"]]
    ranks = {rank for group in groups for pair in group["ranks"] for rank in pair}
    assert ranks == {0, 1}, run.describe()
