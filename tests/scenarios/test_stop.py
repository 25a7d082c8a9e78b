"""Ending a run on purpose: the ways to ask, what is left (nothing), and the exit codes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound, assert_tree_is_gone
from tests.support import (
    EXAMPLES,
    RunningWtrain,
    program_command,
    run_wtrain,
    start_wtrain,
    write_fast_config,
)

pytestmark = [pytest.mark.processes, pytest.mark.scenario, pytest.mark.torch]


def start_training(cwd: Path, *args: str) -> RunningWtrain:
    """A healthy run of many steps that has taken its first one."""
    config = write_fast_config(cwd)
    command = args or ("loader_fork_lock.py", "--hang-at", "-1", "--steps", "5000")
    running = start_wtrain(
        "run", "--config", str(config), "--", *program_command(*command), cwd=cwd
    )
    running.wait_for("first_step", 60)
    return running


def test_interrupted_once(tmp_path: Path) -> None:
    """One Ctrl-C ends the training gently and the run with 130; nothing is restarted."""
    running = start_training(tmp_path)
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    assert run.only("run_finished")["outcome"] == "stopped"
    assert run.of_type("stop_requested")[0]["mode"] == "soft"
    assert len(run.of_type("attempt_launched")) == 1
    assert not run.of_type("stall_declared")


def test_interrupted_twice(tmp_path: Path) -> None:
    """A second Ctrl-C kills, also what ignores every polite signal."""
    config = write_fast_config(tmp_path)
    command = program_command("ignore_sigterm.py")
    running = start_wtrain(
        "run", "--config", str(config), "--observe", "--", *command, cwd=tmp_path
    )
    running.wait_for("first_step", 60)
    running.send(signal.SIGINT)
    running.wait_for("stop_requested", 10)
    running.send(signal.SIGINT)
    run = running.result(30).check(130)
    assert_tree_is_gone(run)
    assert [event["mode"] for event in run.of_type("stop_requested")] == ["soft", "now"]


def test_sigterm(tmp_path: Path) -> None:
    """SIGTERM, as a scheduler sends it, ends the run with 77."""
    running = start_training(tmp_path)
    running.send(signal.SIGTERM)
    run = running.result(60).check(77)
    assert_tree_is_gone(run)
    assert run.only("run_finished")["outcome"] == "stopped"


@pytest.mark.parametrize("options", [(), ("--now",)])
def test_stop_command(options: tuple[str, ...], tmp_path: Path) -> None:
    """`wtrain stop` ends the run with 77, with --now at once."""
    running = start_training(tmp_path)
    run_wtrain("stop", *options, cwd=tmp_path).check(0)
    run = running.result(60).check(77)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    assert run.only("run_finished")["outcome"] == "stopped"
    assert run.of_type("stop_requested")[0]["mode"] == ("now" if options else "soft")


def test_stop_while_a_hang_is_handled(tmp_path: Path) -> None:
    """A stop that comes in the middle of a hang is final: no further attempt starts."""
    config = write_fast_config(tmp_path)
    command = program_command("loader_fork_lock.py")
    running = start_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path)
    running.wait_for("stall_declared", 60)
    running.send(signal.SIGTERM)
    run = running.result(60).check(77)
    assert_tree_is_gone(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_trainer_saves_before_it_stops(tmp_path: Path) -> None:
    """A Hugging Face training that is asked to stop saves first, at a step of its own."""
    config = write_fast_config(tmp_path)
    command = program_command(str(EXAMPLES / "hf_trainer.py"), "--max_steps", "2000")
    running = start_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path)
    running.wait_for("first_step", 90)
    run_wtrain("stop", cwd=tmp_path).check(0)
    run = running.result(90).check(77)
    assert_tree_is_gone(run)
    steps = [int(path.name.split("-")[1]) for path in tmp_path.glob("hf-output/checkpoint-*")]
    assert steps, run.describe()
    listed = run_wtrain("checkpoints", "hf-output", "--json", cwd=tmp_path).check(0).json()
    assert Path(listed["newest_whole"]).name == f"checkpoint-{max(steps)}"
