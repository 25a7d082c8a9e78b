"""Several tasks of one job on this machine, each under its own wtrain, as srun starts them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_blames
from tests.support import (
    PROGRAMS,
    Event,
    RunningWtrain,
    bin_path,
    free_port,
    is_alive,
    of_type,
    outline,
    read_log,
    run_directories,
    run_wtrain,
    sentence,
    start_wtrain,
    types,
    wait_until,
    write_fast_config,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(300),
]


def start_job(
    cwd: Path, tasks: int, *program: str, port: int = 0, options: tuple[str, ...] = ()
) -> RunningWtrain:
    """The job; its ranks meet at a port that is free now, or at the one that is given."""
    port = port or free_port()
    config = write_fast_config(cwd)
    resume = ("--resume-arg", "--resume {checkpoint}")
    command = [sys.executable, str(PROGRAMS / "task_ranks.py"), *program]
    return start_wtrain(
        *("run", "--config", str(config), *resume, *options, "--", *command),
        cwd=cwd,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        wtrain=as_srun(tasks, bin_path("wtrain")),
    )


def as_srun(tasks: int, program: Path) -> list[str]:
    return [sys.executable, str(PROGRAMS / "srun_like.py"), str(tasks), str(program)]


def logs(cwd: Path) -> dict[int, list[Event]]:
    """The event log of each task."""
    found = {}
    for path in run_directories(cwd):
        events = read_log(path)
        joined = of_type(events, "task_joined")
        if joined:
            found[joined[0]["task"]["task"]] = events
    return found


def described(cwd: Path) -> str:
    parts = [f"--- task {n}\n{outline(events)}" for n, events in sorted(logs(cwd).items())]
    errors = [path.read_text("utf-8", "replace")[-1500:] for path in cwd.glob("task-*.err")]
    return "\n".join([*parts, *errors])


def ended(job: RunningWtrain, code: int = 0) -> tuple[dict[int, list[Event]], str]:
    """The event log of each task of a job that ended with this code, and all of it as text."""
    done = job.result(280)
    text = described(job.cwd)
    assert done.returncode == code, text
    return logs(job.cwd), text


def pids(job: RunningWtrain) -> list[int]:
    """Of the supervisors."""
    path = job.cwd / "tasks.pids"
    wait_until(path.exists, 20, "the tasks are started")
    return [int(word) for word in path.read_text().split()]


def wait_for_step(cwd: Path, tasks: int) -> None:
    """Until every task has recorded its first step."""
    wait_until(
        lambda: len([1 for events in logs(cwd).values() if of_type(events, "first_step")]) == tasks,
        120,
        "every task makes steps",
    )


def assert_one_plan(found: dict[int, list[Event]], text: str) -> None:
    """All dumped before anybody was killed, and all began attempt 2 from the same checkpoint."""
    plans = []
    for number, events in found.items():
        names = types(events)
        assert "barrier_reached" in names, text
        assert "barrier_missed" not in names, text
        killed = [one["seq"] for one in of_type(events, "signalling") if one["targets"]]
        barrier = of_type(events, "barrier_reached")[0]["seq"]
        assert of_type(events, "evidence_collected")[0]["seq"] < barrier, text
        assert not killed or barrier < killed[0], text
        assert len(of_type(events, "plan_received")) == (number > 0), text
        plans.append(of_type(events, "attempt_launching")[-1]["plan"])
    assert all(plan == plans[0] for plan in plans), text
    assert plans[0]["attempt"] == 2, text


def assert_all_finished(cwd: Path, tasks: int, attempt: int, text: str) -> None:
    for number in range(tasks):
        said = (cwd / f"task-{number}.out").read_text()
        assert f"rank {number} attempt {attempt}" in said, text
        assert f"finished rank={number} step=40" in said, text
    runtime = cwd / ".home" / "runtime"
    assert not list(runtime.rglob("task-*.json")), text


FAMILIES = {"hang": ("rank-left-early",), "receive": ("collective-mismatch", "gloo-timeout")}
"""What a hang of one rank is called when the evidence of all tasks is read together."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "receive", "crash", "die-in-save"])
def test_one_rank_fails_and_all_begin_again(tmp_path: Path, fault: str) -> None:
    """Evidence of every task before the first kill, one plan, all resumed, all finished."""
    job = start_job(tmp_path, 2, "--fault", fault)
    found, text = ended(job)
    assert_one_plan(found, text)
    assert_all_finished(tmp_path, 2, 2, text)
    joint = {
        n: [one for one in of_type(log, "stall_explained") if one["tasks"]]
        for n, log in found.items()
    }
    assert not joint[1], text
    if fault == "die-in-save":
        rejected = of_type(found[0], "checkpoint_rejected")
        assert [Path(one["path"]).name for one in rejected] == ["step-000030.pt"], text
    if fault in FAMILIES:
        # Each task alone sees one rank wait; the leader reads what all have taken.
        (diagnosed,) = joint[0]
        assert diagnosed["tasks"] == [0, 1]
        assert_blames(diagnosed, 1, FAMILIES[fault], surely=fault == "hang")
        shown = run_wtrain("status", "--json", found[0][0]["run_id"], cwd=tmp_path).json()
        assert shown["last_stall"]["explanation"] == diagnosed["explanation"]


@pytest.mark.slow
def test_a_rank_that_evaluates_alone_is_no_stall(tmp_path: Path) -> None:
    """Ten soft budgets long one rank works and three wait: nobody is dumped or killed for it."""
    job = start_job(tmp_path, 4, "--fault", "eval")
    found, text = ended(job)
    for events in found.values():
        assert not of_type(events, "stall_declared"), text
        assert not [one for one in of_type(events, "signalling") if one["targets"]], text
    assert_all_finished(tmp_path, 4, 1, text)


@pytest.mark.slow
def test_the_leaders_supervisor_is_killed(tmp_path: Path) -> None:
    """A peer gives its run another supervisor; a hang after that is handled as ever."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    os.kill(pids(job)[0], signal.SIGKILL)
    done = job.result(280)

    def finished() -> bool:
        found = logs(tmp_path)
        return len(found) == 2 and all(of_type(one, "run_finished") for one in found.values())

    wait_until(finished, 60, "both runs come to their end")
    text = described(tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, text
    found = logs(tmp_path)
    assert of_type(found[1], "peer_lost"), text
    assert of_type(found[0], "adopted"), text
    assert {of_type(one, "run_finished")[0]["exit_code"] for one in found.values()} == {0}, text


@pytest.mark.slow
def test_a_stop_of_one_stops_all(tmp_path: Path) -> None:
    """`wtrain stop` of one task: every task ends with 77, and nothing is left."""
    job = start_job(tmp_path, 2, "--steps", "4000")
    wait_for_step(tmp_path, 2)
    listed = run_wtrain("ps", cwd=tmp_path)
    assert "1/2 slurm" in listed.stdout, listed.describe()
    name = next(path.name for path in run_directories(tmp_path) if "-task1-" in path.name)
    assert run_wtrain("stop", name, cwd=tmp_path, timeout_s=90).returncode == 0
    found, text = ended(job, 77)
    for events in found.values():
        assert of_type(events, "run_finished")[0]["exit_code"] == 77, text
        assert not [one for one in of_type(events, "attempt_launched") if is_alive(one["pid"])]


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The job cannot begin; the next attempt of all its tasks meets at another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found, text = ended(start_job(tmp_path, 2, port=port))
    assert_all_finished(tmp_path, 2, 2, text)
    plans = [of_type(log, "attempt_launching")[-1]["plan"] for log in found.values()]
    ports = {plan["env"]["MASTER_PORT"] for plan in plans}
    assert len(ports) == 1, text
    assert ports != {str(port)}, text
    assert "MASTER_PORT is taken" in sentence(plans[0]["why"]), text


@pytest.mark.slow
def test_all_tasks_crash_at_once(tmp_path: Path) -> None:
    """Each of them has an end of its own to tell of; they begin again together, once."""
    job = start_job(tmp_path, 2, "--fault", "crash", "--rank", "-1")
    found, text = ended(job)
    assert_one_plan(found, text)
    assert_all_finished(tmp_path, 2, 2, text)
    for events in found.values():
        first = of_type(events, "attempt_exited")[0]
        assert (first["attempt"], first["code"]) == (1, 3), text
        assert len(of_type(events, "attempt_launched")) == 2, text


@pytest.mark.slow
def test_a_job_that_has_ended_is_restarted_together(tmp_path: Path) -> None:
    """`wtrain restart` in every task: one plan from one checkpoint, under one leader, as before."""
    first = start_job(
        tmp_path, 2, "--fault", "crash", "--rank", "-1", options=("--on-crash", "stop")
    )
    found, text = ended(first, 3)
    alone = run_wtrain("restart", found[1][0]["run_id"], cwd=tmp_path).check(78)
    assert "srun sh -c 'wtrain restart task_ranks-task$SLURM_PROCID'" in alone.stderr
    script = tmp_path / "restart.sh"
    script.write_text(
        f"#!/bin/sh\nexec {bin_path('wtrain')} restart task_ranks-task$SLURM_PROCID\n"
    )
    script.chmod(0o700)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    again = start_wtrain(cwd=tmp_path, env=meeting, wtrain=as_srun(2, script))
    found, text = ended(again)
    for events in found.values():
        assert [one["exit_code"] for one in of_type(events, "run_finished")] == [3, 0], text
        assert len(of_type(events, "task_joined")) == 2, text
    plans = [of_type(events, "attempt_launching")[-1]["plan"] for events in found.values()]
    assert plans[0] == plans[1], text
    assert Path(plans[0]["checkpoint"]["path"]).name == "step-000020.pt", text
    assert_all_finished(tmp_path, 2, 2, text)
