"""The main path: a hang is caught, explained, ended, and the training brought to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_evidence_came_first,
    assert_hang_was_handled,
    assert_tree_is_gone,
    first_seq,
    kills,
    last_line,
)
from tests.support import (
    CompletedRun,
    children_of,
    is_alive,
    program_command,
    run_command,
    run_fast,
    run_program,
    run_wtrain,
    scenario_environment,
    start_fast,
)

pytestmark = pytest.mark.timeout(300)

RESUME = ("--resume-arg", "--resume {checkpoint}")


def uninterrupted(cwd: Path, *args: str) -> str:
    """The last line of the same training without us."""
    cwd.mkdir(parents=True)
    result = run_command(program_command(*args), cwd=cwd, env=scenario_environment(cwd))
    return last_line(result.stdout)


def check_recovered(run: CompletedRun, checkpoint: str, step: int) -> None:
    """One stall, one restart from `checkpoint` with safer loading, and success."""
    assert_hang_was_handled(run)
    events = run.events
    order = ("suspected", "stall_declared", "evidence_collected", "stall_explained", "signalling")
    order += ("tree_gone", "checkpoint_chosen")
    positions = [first_seq(events, name) for name in order]
    assert positions == sorted(positions), run.describe()
    found = run.only("stall_explained")["explanation"]
    assert found["because"], found
    assert found["root"]["who"]["role"] == "worker", found
    assert found["root"]["own"]["function"] == "__getitem__", found
    roles = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert roles.count("rank") == 1, roles
    assert roles.count("worker") == 2, roles
    chosen = run.only("checkpoint_chosen")
    assert Path(chosen["path"]).name == checkpoint
    assert chosen["step"] == step
    plan = run.of_type("plan_made")[-1]["plan"]
    assert "num-workers-0" in {use["id"] for use in plan["remedies"]}, plan
    taken = {event["remedy"] for event in run.of_type("remedy_taken") if event["took"]}
    assert "num-workers-0" in taken, run.describe()
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"


def test_workers_on_a_lock_held_at_fork(tmp_path: Path) -> None:
    """A plain script whose workers deadlock ends as if nothing had happened, weights included."""
    expected = uninterrupted(tmp_path / "alone", "loader_fork_lock.py", "--hang-at", "-1")
    cwd = tmp_path / "run"
    run = run_fast(cwd, program_command("loader_fork_lock.py", "--half", "21"), *RESUME).check(0)
    check_recovered(run, "step-000020.pt", 20)
    rejected = run.of_type("checkpoint_rejected")
    assert [Path(event["path"]).name for event in rejected] == ["step-000021.pt"], run.describe()
    assert rejected[0]["why"]
    assert last_line(run.stdout) == expected


@pytest.mark.slow
def test_a_spawned_worker_that_sleeps(tmp_path: Path) -> None:
    """A spawned worker asleep for ever is found; settings by environment are reported as taken."""
    run = run_fast(
        tmp_path,
        program_command("loader_sleep.py", "--method", "spawn"),
        *("--with", "omp-1", *RESUME),
        env={"OMP_NUM_THREADS": "2"},
    ).check(0)
    taken = {event["remedy"] for event in run.of_type("remedy_taken") if event["took"]}
    assert {"num-workers-0", "omp-1"} <= taken, run.describe()
    for event in run.of_type("attempt_launching"):
        assert event["plan"]["env"]["OMP_NUM_THREADS"] == "1", run.describe()
    assert_evidence_came_first(run)
    assert_tree_is_gone(run)
    assert last_line(run.stdout).startswith("finished step=40 ")


@pytest.mark.slow
def test_with_the_default_settings(tmp_path: Path) -> None:
    """Without any configuration the same hang is declared within 45 s and the run finished."""
    command = program_command("loader_fork_lock.py")
    run = run_wtrain("run", *RESUME, "--", *command, cwd=tmp_path, timeout_s=240).check(0)
    check_recovered(run, "step-000020.pt", 20)
    assert run.only("stall_declared")["age_s"] < 45


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("double_fork", marks=pytest.mark.needs_subreaper),
        pytest.param("ignore_sigterm", marks=pytest.mark.slow),
        pytest.param("socket_read", marks=pytest.mark.slow),
        pytest.param("ctypes_gil", marks=pytest.mark.slow),
        pytest.param("ctypes_nogil", marks=pytest.mark.slow),
        pytest.param("dead_file_lock", marks=pytest.mark.slow),
        pytest.param("import_hang", marks=pytest.mark.slow),
    ],
)
def test_hang_of_the_first_attempt(kind: str, tmp_path: Path) -> None:
    """A main process that hangs once is ended with everything it started, and then finishes."""
    run = run_program(tmp_path, "hangs.py", kind).check(0)
    assert_hang_was_handled(run)
    if kind == "double_fork":  # one of them shows no token, nor the mark of this test
        helpers = (tmp_path / "helpers.txt").read_text("ascii").split()
        assert not [pid for pid in helpers if is_alive(int(pid))], run.describe()
    assert len(run.of_type("attempt_launched")) == 2, run.describe()
    assert last_line(run.stdout).startswith("finished step=40 ")
    if kind != "import_hang":
        plan = run.of_type("plan_made")[-1]["plan"]
        assert plan["checkpoint"]["step"] == 20, plan


@pytest.mark.slow
def test_hang_after_the_training_is_done(tmp_path: Path) -> None:
    """A process that hangs while it exits is ended, never restarted, and called a success."""
    run = run_program(tmp_path, "hangs.py", "hang_after_finish").check(0)
    assert_tree_is_gone(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    finished = run.only("run_finished")
    assert finished["outcome"] == "succeeded"
    assert finished["warning"]


def test_observing_kills_nothing(tmp_path: Path) -> None:
    """With --observe a hang is dumped and reported, and the processes are left as they are."""
    running = start_fast(tmp_path, program_command("loader_fork_lock.py"), "--observe")
    running.wait_for("would_have_killed", 60)
    running.wait_for("evidence_collected", 30)
    launched = running.wait_for("attempt_launched", 5)
    assert not kills(running.events)
    workers = children_of(launched["pid"])
    for pid in (launched["pid"], *workers):
        os.kill(pid, 9)
    run = running.result(60)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    assert not kills(run.events), run.describe()
