"""Crashes: evidence, restart from the newest whole checkpoint, limits, and honest exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound, assert_tree_is_gone, kills, last_line
from tests.support import program_command, run_wtrain, write_fast_config
from watchdog_train.checkpoints.pickle_head import counters
from watchdog_train.report.history import history
from watchdog_train.store.log_reading import read_events

pytestmark = [pytest.mark.processes, pytest.mark.scenario, pytest.mark.torch]

AUTO = ("--resume-arg", "auto")
RESUME = ("--resume-arg", "--resume {checkpoint}")
WAYS = {
    "exception": (1, None),
    "exit": (9, None),
    "kill": (None, 9),
    "segv": (None, 11),
}


@pytest.mark.parametrize(
    "how",
    ["exception", *(pytest.param(x, marks=pytest.mark.slow) for x in ("kill", "exit", "segv"))],
)
def test_crash_once(how: str, tmp_path: Path) -> None:
    """A training that crashes once goes on from its checkpoint and succeeds.

    The option that takes the checkpoint is found in the script's own parser.
    """
    config = write_fast_config(tmp_path)
    command = program_command("crash_at_step.py", how)
    run = run_wtrain("run", "--config", str(config), *AUTO, "--", *command, cwd=tmp_path)
    run.check(0)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    first, second = run.of_type("attempt_exited")
    assert (first["code"], first["signal"]) == WAYS[how]
    assert (second["code"], second["signal"]) == (0, None)
    bundle = run.only("evidence_collected")
    assert bundle["why"] == "crash"
    chosen = run.only("checkpoint_chosen")
    assert Path(chosen["path"]).name == "step-000010.pt"
    plan = run.of_type("plan_made")[-1]["plan"]
    assert plan["argv"][-2:] == ["--resume", chosen["path"]], plan
    assert run.only("resume_verified")["ok"], run.describe()
    assert last_line(run.stdout).startswith("finished step=20 ")
    if how == "exception":
        summary = next(run.run_dir.glob("stalls/*/log-tail.txt")).read_text("utf-8")
        assert "planted failure" in summary


SHORT_OF_FILES = """
import errno, sys
from watchdog_train.cli import main
from watchdog_train.supervisor import perform

real, calls = perform.start_keeper, []

def start_keeper(*args):
    calls.append(args)
    if len(calls) in (2, 3):  # as the system answers when the limit was lowered a moment before
        raise OSError(errno.EMFILE, "Too many open files")
    return real(*args)

perform.start_keeper = start_keeper
sys.exit(main.run(sys.argv[1:]))
"""


def test_a_restart_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    """It is put off, under its plan; nobody takes the command for one that cannot be started."""
    script = tmp_path / "short_of_files.py"
    script.write_text(SHORT_OF_FILES)
    config = write_fast_config(tmp_path)
    command = program_command("crash_at_step.py", "exception")
    words = ("run", "--config", str(config), *AUTO, "--", *command)
    run = run_wtrain(*words, cwd=tmp_path, wtrain=(sys.executable, str(script))).check(0)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    assert [one["why"] for one in run.of_type("launch_postponed")] == ["Too many open files"] * 2
    assert [one["plan"]["attempt"] for one in run.of_type("attempt_launching")] == [1, 2, 2, 2]
    assert [one["attempt"] for one in run.of_type("attempt_launched")] == [1, 2]
    assert "1 restart, 1 crash" in run.stderr
    assert "could not be started (Too many open files); it is tried again" in run.stderr
    events = read_events(run.run_dir / "events.jsonl").events
    assert [one.attempt for one in history(events).attempts] == [1, 2]


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_crash_always_gives_up(tmp_path: Path) -> None:
    """A training that never gets further is given up with 76 after a bounded number of attempts."""
    config = write_fast_config(tmp_path)
    command = program_command("crash_at_step.py", "exit", "--always")
    run = run_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path).check(76)
    assert_log_is_sound(run)
    assert 2 <= len(run.of_type("attempt_launched")) <= 6, run.describe()
    assert run.only("run_finished")["outcome"] == "gave_up"
    assert run.only("given_up")["why"]


@pytest.mark.parametrize(
    ("how", "code"), [("exit", 9), pytest.param("kill", 137, marks=pytest.mark.slow)]
)
def test_no_restart_passes_the_code_through(how: str, code: int, tmp_path: Path) -> None:
    """With --on-crash stop the child's own code (128+N for a signal) is ours."""
    command = program_command("crash_at_step.py", how, "--at", "2")
    run = run_wtrain("run", "--on-crash", "stop", "--", *command, cwd=tmp_path).check(code)
    assert run.only("run_finished")["outcome"] == "failed"
    assert len(run.of_type("attempt_launched")) == 1


@pytest.mark.slow
def test_success_without_one_step_warns(tmp_path: Path) -> None:
    """Code 0 without a step is success, with a warning that says so."""
    run = run_wtrain("run", "--", *program_command("exit0_early.py"), cwd=tmp_path).check(0)
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"
    assert "step" in finished["warning"]
    assert not kills(run.events)


def test_success_below_the_known_total_warns(tmp_path: Path) -> None:
    """Code 0 after 7 of 40 known steps is success, with a warning that names the numbers."""
    script = (
        "import watchdog_train as wt\n"
        "for step in range(1, 8): wt.beat(step, 40)\n"
        "import time; time.sleep(3)\n"
    )
    run = run_wtrain("run", "--", sys.executable, "-c", script, cwd=tmp_path).check(0)
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"
    assert "40" in (finished["warning"] or ""), run.describe()


def test_command_that_is_no_training(tmp_path: Path) -> None:
    """A command that has nothing to do with Python passes its own code through."""
    run = run_wtrain("run", "--on-crash", "stop", "--", "sh", "-c", "exit 3", cwd=tmp_path)
    run.check(3)


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_a_file_that_was_torn_in_place_goes_on_from_its_copy(tmp_path: Path) -> None:
    """Killed in the middle of overwriting its only checkpoint, it goes on from the kept copy."""
    config = write_fast_config(tmp_path)
    command = program_command("overwrites_in_place.py")
    run = run_wtrain("run", "--config", str(config), *AUTO, "--", *command, cwd=tmp_path).check(0)
    assert_log_is_sound(run)
    kept = run.of_type("checkpoint_kept")[0]
    assert (kept["step"], Path(kept["path"]).name) == (10, "last.pt"), run.describe()
    rejected = run.only("checkpoint_rejected")
    chosen = run.only("checkpoint_chosen")
    assert (rejected["path"], chosen["path"]) == (kept["path"], kept["copy"])
    assert chosen["step"] == 10
    assert run.only("resume_verified")["ok"], run.describe()
    assert last_line(run.stdout).startswith("finished step=20 ")
    assert not (run.run_dir / "kept").exists(), "after a success nobody needs it"


@pytest.mark.timeout(120)
def test_a_restart_that_did_not_resume_saves_over_nothing(tmp_path: Path) -> None:
    """It is stopped before its first save; its checkpoint is there still, and a copy of it."""
    config = write_fast_config(tmp_path)
    command = program_command("overwrites_in_place.py", "--begins-again")
    run = run_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path).check(76)
    assert_log_is_sound(run)
    assert_tree_is_gone(run)
    last = tmp_path / "checkpoints" / "last.pt"
    kept = run.of_type("checkpoint_kept")[-1]
    assert counters(str(last)) == counters(kept["copy"]) == {"step": 10}, run.describe()
    told = run.of_type("resume_verified")[-1]
    assert told["contradicted"], run.describe()
    why = run.only("given_up")["why"]
    assert f"wtrain run --resume-arg '--resume {{checkpoint}}' -- {command[0]}" in why
    assert why.count(f"--resume {last}") == 1
    assert kept["copy"] in why
    assert len(run.of_type("evidence_collected")) == 1, "of the crash, not of what was stopped"


@pytest.mark.timeout(120)
def test_a_torn_file_is_replaced_by_its_copy_where_the_script_opens_it(tmp_path: Path) -> None:
    """The script knows one path only: the copy is put there, and the torn file beside it."""
    config = write_fast_config(tmp_path)
    command = program_command("overwrites_in_place.py", "--own")
    run = run_wtrain("run", "--config", str(config), "--", *command, cwd=tmp_path).check(0)
    assert_log_is_sound(run)
    restored = run.only("checkpoint_restored")
    assert Path(restored["aside"]).stat().st_size == 1000
    assert run.only("checkpoint_chosen")["path"] == restored["path"], run.describe()
    assert len(run.of_type("attempt_launched")) == 2
    assert "at step 10" in run.stdout
    assert last_line(run.stdout).startswith("finished step=20 ")
