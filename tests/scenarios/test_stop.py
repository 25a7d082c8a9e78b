"""Ending a run on purpose: the ways to ask, what is left (nothing), and the exit codes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, assert_tree_is_gone
from tests.support import (
    PROGRAMS,
    CompletedRun,
    RunningWtrain,
    bin_path,
    of_type,
    program_command,
    read_log,
    run_command,
    run_directories,
    run_wtrain,
    sentence,
    signals_of,
    start_fast,
    wait_until,
    write_fast_config,
)


def start_training(cwd: Path, *args: str) -> RunningWtrain:
    """A healthy run of many steps that has taken its first one."""
    command = args or ("loader_fork_lock.py", "--hang-at", "-1", "--steps", "5000")
    running = start_fast(cwd, program_command(*command))
    running.wait_for("first_step", 60)
    return running


def test_interrupted_once(tmp_path: Path) -> None:
    """One Ctrl-C ends the training gently and the run with 130; nothing is restarted."""
    running = start_training(tmp_path)
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    assert_ended_in_order(run)
    assert run.only("run_finished")["outcome"] == "stopped"
    assert run.of_type("stop_requested")[0]["mode"] == "soft"
    assert len(run.of_type("attempt_launched")) == 1
    assert not run.of_type("stall_declared")


def test_interrupted_twice(tmp_path: Path) -> None:
    """A second Ctrl-C kills, also what ignores every polite signal."""
    running = start_fast(tmp_path, program_command("hangs.py", "ignore_sigterm"), "--observe")
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


BEFORE_THE_LOOP = """
import os, signal
from watchdog_train.cli.main import main
from watchdog_train.supervisor import setup
opened = setup.EventLog.open
def ended_here(*args, **more):
    os.kill(os.getpid(), signal.SIGTERM)
    return opened(*args, **more)
setup.EventLog.open = ended_here
main()
"""


def test_a_signal_before_the_loop_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    """The private directories of a run exist before its loop: it has to be there to remove them."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    run_command(
        [sys.executable, "-c", BEFORE_THE_LOOP, "run", "--", "sleep", "60"],
        cwd=tmp_path,
        code=77,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
    )
    (run_dir,) = run_directories(tmp_path)
    assert of_type(read_log(run_dir), "run_finished")[0]["outcome"] == "stopped"
    assert [path for path in runtime.glob("*/*") if path.is_dir()] == []


@pytest.mark.parametrize("options", [(), pytest.param(("--now",), marks=pytest.mark.slow)])
def test_stop_command(options: tuple[str, ...], tmp_path: Path) -> None:
    """`wtrain stop` ends the run with 77, with --now at once."""
    running = start_training(tmp_path)
    run_wtrain("stop", *options, cwd=tmp_path).check(0)
    run = running.result(60).check(77)
    assert_ended_in_order(run)
    assert run.only("run_finished")["outcome"] == "stopped"
    assert run.of_type("stop_requested")[0]["mode"] == ("now" if options else "soft")


@pytest.mark.slow
def test_stop_while_a_hang_is_handled(tmp_path: Path) -> None:
    """A stop that comes in the middle of a hang is final: no further attempt starts."""
    running = start_fast(tmp_path, program_command("loader_fork_lock.py"))
    running.wait_for("stall_declared", 60)
    running.send(signal.SIGTERM)
    run = running.result(60).check(77)
    assert_tree_is_gone(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()


def start_loop(cwd: Path, *args: str, ask_s: float = 10.0) -> RunningWtrain:
    """A loop that asks should_stop(), at a step; `ask_s`: how long its answer may take."""
    config = write_fast_config(cwd)
    config.write_text(config.read_text().replace("ask_s: 10", f"ask_s: {ask_s}"))
    running = start_fast(cwd, program_command("asks_to_stop.py", *args))
    running.wait_for("first_step", 60)
    return running


def signalled(run: CompletedRun) -> list[int]:
    return [one["signal"] for one in signals_of(run.events)]


def test_a_loop_that_asks_ends_by_itself(tmp_path: Path) -> None:
    """Ctrl-C: nobody is signalled, the loop saves its newest step and ends; exit 130."""
    running = start_loop(tmp_path)
    run_wtrain("save", cwd=tmp_path).check(78)
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    assert_ended_in_order(run)
    assert not signalled(run), run.describe()
    asked = run.only("stop_asked")
    assert not asked["expects_save"]
    assert run.only("request_answered")["request"] == "stop"
    step = int(re.search(r"stopped step=(\d+)", run.stdout)[1])  # type: ignore[index]
    assert step >= asked["step"]
    assert (tmp_path / f"checkpoints-0/step-{step:06d}.pt").exists()
    assert run.only("attempt_exited")["code"] == 0
    assert run.only("run_finished")["warning"] is None


@pytest.mark.slow
def test_an_evaluation_may_go_on_before_the_answer(tmp_path: Path) -> None:
    """A request is read after a step: an evaluation longer than the limit costs no work."""
    running = start_loop(tmp_path, "--eval-s", "14", ask_s=10.0)
    (tmp_path / "evaluate").touch()
    wait_until((tmp_path / "evaluating").exists, 30, "it evaluates")
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    assert not signalled(run), run.describe()
    assert "stopped step=" in run.stdout


@pytest.mark.slow
def test_a_loop_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    """It has had its time, and several steps: then SIGTERM, with the reason."""
    running = start_loop(tmp_path, "--deaf", ask_s=1.0)
    run_wtrain("stop", cwd=tmp_path).check(0)
    run = running.result(60).check(77)
    assert_tree_is_gone(run)
    assert signalled(run)[0] == signal.SIGTERM
    assert "it has not ended within" in sentence(run.of_type("signalling")[0]["why"])
    assert not run.of_type("request_answered")


def test_a_script_that_cannot_be_asked_is_called_so(tmp_path: Path) -> None:
    """In the words of the run, and in those of a request to save."""
    running = start_training(tmp_path)
    refused = run_wtrain("save", cwd=tmp_path).check(78)
    assert "cannot be asked to save" in refused.stderr
    assert "cannot be asked to save" in run_wtrain("status", cwd=tmp_path).stdout
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    assert "it cannot be asked to save first" in sentence(run.of_type("signalling")[0]["why"])
    assert "cannot be asked to save" in run.stderr


@pytest.mark.slow
def test_a_save_under_way_is_not_interrupted(tmp_path: Path) -> None:
    """A slow save of a script that cannot be asked: Ctrl-C waits for its end."""
    config = write_fast_config(tmp_path)
    config.write_text(config.read_text().replace("grace_s: 5", "grace_s: 60", 1))
    running = start_fast(tmp_path, program_command("healthy.py", "big_save"), env={"LONG_S": "4"})
    running.wait_for("progress", 60, lambda e: any(r["phase"] == "checkpoint" for r in e["ranks"]))
    running.send(signal.SIGINT)
    run = running.result(60).check(130)
    (noticed,) = [event for event in run.of_type("noticed") if event["kind"] == "save"]
    assert noticed["seq"] < run.of_type("signalling")[0]["seq"]
    assert (tmp_path / "big.pt").stat().st_size > 4 * 200_000


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    """Two ranks that wait for each other at every step agree on the one to stop at."""
    torchrun = [str(bin_path("torchrun")), "--standalone", "--nproc-per-node", "2"]
    running = start_fast(tmp_path, [*torchrun, str(PROGRAMS / "asks_to_stop.py")])
    running.wait_for("first_step", 120)
    running.send(signal.SIGINT)
    run = running.result(90).check(130)
    assert not signalled(run), run.describe()
    steps = re.findall(r"stopped step=(\d+) rank=(\d)", run.stdout)
    assert {rank for _, rank in steps} == {"0", "1"}, run.describe()
    assert len({step for step, _ in steps}) == 1, steps
