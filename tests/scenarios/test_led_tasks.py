"""Several tasks of one job under one leader: the other tasks' processes are its agents."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_blames
from tests.scenarios.test_several_tasks import (
    RunningWtrain,
    as_srun,
    assert_all_finished,
    pids,
)
from tests.support import (
    PROGRAMS,
    Event,
    bin_path,
    free_port,
    is_alive,
    of_type,
    outline,
    read_log,
    run_directories,
    run_wtrain,
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
JOB = "job: {tasks: together, gather_s: 90, lost_s: 25}\n"


def start_job(cwd: Path, tasks: int, *program: str) -> RunningWtrain:
    config = write_fast_config(cwd, JOB)
    resume = ("--resume-arg", "--resume {checkpoint}")
    command = [str(bin_path("python")), str(PROGRAMS / "task_ranks.py"), *program]
    return start_wtrain(
        *("run", "--config", str(config), *resume, "--", *command),
        cwd=cwd,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        wtrain=as_srun(tasks, bin_path("wtrain")),
    )


def leaders(cwd: Path) -> list[Event]:
    """The one log of the job; empty before there is one."""
    found = run_directories(cwd)
    return read_log(found[0]) if found else []


def agents(cwd: Path) -> list[list[Event]]:
    folder = cwd / "wtrain-runs" / ".agents"
    return [read_log(path.parent) for path in sorted(folder.glob("*-*/events.jsonl"))]


def described(cwd: Path) -> str:
    parts = [outline(leaders(cwd)), *(f"--- agent\n{outline(one)}" for one in agents(cwd))]
    errors = [path.read_text("utf-8", "replace")[-1500:] for path in cwd.glob("*-*.err")]
    return "\n".join([*parts, *errors])


def wait_for_step(cwd: Path, tasks: int) -> None:
    """Until every task has recorded its first step."""

    def stepping() -> bool:
        logs = [leaders(cwd), *agents(cwd)]
        return len([1 for log in logs if of_type(log, "first_step")]) == tasks

    wait_until(stepping, 120, "every task makes steps")


def assert_one_plan(cwd: Path, text: str, tasks: int = 2) -> None:
    """Evidence of every task before the first signal, and attempt 2 begun once by each."""
    log = leaders(cwd)
    (begun,) = [one for one in of_type(log, "attempt_launching") if one["attempt"] == 2]
    assert len(begun["hosts"]) == tasks, text
    collected = [one["seq"] for one in of_type(log, "evidence_collected")]
    signals = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
    assert len(collected) == tasks, text
    assert not signals or max(collected) < signals[0], text
    for each in agents(cwd):
        attempts = [one["attempt"] for one in of_type(each, "attempt_launching")]
        assert attempts == [1, 2], text


def assert_nothing_lives(cwd: Path, text: str) -> None:
    for log in (leaders(cwd), *agents(cwd)):
        members = {one["pid"] for each in of_type(log, "progress") for one in each["members"]}
        assert not [pid for pid in members if is_alive(pid)], text


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_one_rank_fails_and_all_begin_again(tmp_path: Path, fault: str) -> None:
    """One log, one bundle, one explanation, one plan; every agent carries it out."""
    job = start_job(tmp_path, 2, "--fault", fault)
    done = job.result(280)
    text = described(tmp_path)
    assert done.returncode == 0, text
    assert_one_plan(tmp_path, text)
    assert_all_finished(tmp_path, 2, 2, text)
    assert_nothing_lives(tmp_path, text)
    (run,) = run_directories(tmp_path)
    bundle = run / "stalls" / "0001"
    for folder in (bundle, bundle / "machines" / "task1"):
        assert (folder / "verdict.json").is_file(), sorted(folder.rglob("*"))
    said = run / "attempts" / "0002" / "machines" / "task1" / "stdout.log"
    assert "finished rank=1" in said.read_text(), text
    if fault == "hang":
        # Each task alone sees one rank wait; the leader reads what all have taken.
        (diagnosed,) = [
            one for one in of_type(leaders(tmp_path), "stall_explained") if one["tasks"]
        ]
        assert diagnosed["tasks"] == [0, 1]
        assert_blames(diagnosed, 1, ("rank-left-early",), surely=True)
    else:
        shown = run_wtrain("status", "--json", cwd=tmp_path).json()
        assert "rank 1 (pid" in str(shown["last_stall"]), shown
        assert "exited with code 3 at step 25" in str(shown["last_stall"]), shown


@pytest.mark.slow
@pytest.mark.parametrize("who", ["leader", "agent"])
def test_a_supervisor_is_killed(tmp_path: Path, who: str) -> None:
    """The other one has its run adopted; a hang after that is handled as ever."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    os.kill(pids(job)[who == "agent"], signal.SIGKILL)
    done = job.result(280)

    def finished() -> bool:
        logs = [leaders(tmp_path), *agents(tmp_path)]
        return all(of_type(log, "run_finished") for log in logs)

    wait_until(finished, 120, "leader and agent come to their end")
    text = described(tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, text
    logs = [leaders(tmp_path), *agents(tmp_path)]
    assert [len(of_type(log, "adopted")) for log in logs] == [who == "leader", who == "agent"], text
    assert {of_type(log, "run_finished")[0]["exit_code"] for log in logs} == {0}, text
    assert_one_plan(tmp_path, text)
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_a_signal_to_one_task_stops_all(tmp_path: Path) -> None:
    """As scancel and an eviction send it: to any task, or to all of them."""
    job = start_job(tmp_path, 2, "--steps", "4000")
    wait_for_step(tmp_path, 2)
    os.kill(pids(job)[1], signal.SIGTERM)
    done = job.result(280)
    text = described(tmp_path)
    assert done.returncode == 77, text
    (stop,) = of_type(leaders(tmp_path), "stop_requested")
    assert stop["by"] == "task1: SIGTERM", text
    assert "evidence_collecting" not in types(leaders(tmp_path)), text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_a_silent_agent_costs_nothing_while_ranks_make_steps(tmp_path: Path) -> None:
    """Its machine cannot be heard for longer than lost_s, and is heard again: the job goes on."""
    job = start_job(tmp_path, 2, "--steps", "900")
    wait_for_step(tmp_path, 2)
    agent = pids(job)[1]
    os.kill(agent, signal.SIGSTOP)
    reached = last_step(tmp_path)
    wait_until(
        lambda: silent_s(tmp_path) > 30 and (last_step(tmp_path) or 0) > (reached or 0) + 5,
        120,
        "the rank that is heard makes steps while the other is not heard",
    )
    os.kill(agent, signal.SIGCONT)
    assert run_wtrain("stop", cwd=tmp_path, timeout_s=90).returncode == 0
    done = job.result(280)
    text = described(tmp_path)
    assert done.returncode == 77, text
    log = leaders(tmp_path)
    assert not {"stall_declared", "machine_lost", "given_up"} & set(types(log)), text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_a_machine_that_stays_silent_gives_the_job_back(tmp_path: Path) -> None:
    """Nobody who is heard makes steps, and `lost_s` is over: evidence, 75 on all, nothing left."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    agent = pids(job)[1]
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: of_type(leaders(tmp_path), "run_finished"), 200, "the leader gives up")
    os.kill(agent, signal.SIGCONT)  # it comes back late, and has to learn that it is over
    done = job.result(280)
    text = described(tmp_path)
    assert done.returncode == 75, text
    (lost,) = of_type(leaders(tmp_path), "machine_lost")
    assert lost["host"] == "task1", text
    assert of_type(leaders(tmp_path), "evidence_collected"), text
    assert [one["attempt"] for one in of_type(leaders(tmp_path), "attempt_launching")] == [1], text
    (agents_log,) = agents(tmp_path)
    assert of_type(agents_log, "run_finished")[0]["exit_code"] == 75, text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_an_agent_without_a_leader_ends_its_idle_ranks(tmp_path: Path) -> None:
    """The leader cannot be heard, and is not known to be dead: evidence, end, 75."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    leader = pids(job)[0]
    os.kill(leader, signal.SIGSTOP)
    wait_until(lambda: of_type(agents(tmp_path)[0], "run_finished"), 200, "the agent gives up")
    (log,) = agents(tmp_path)
    text = described(tmp_path)
    assert of_type(log, "run_finished")[0]["exit_code"] == 75, text
    signals = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
    assert of_type(log, "evidence_collected")[0]["seq"] < signals[0], text
    assert "peer_lost" not in types(log), text
    os.kill(leader, signal.SIGCONT)
    done = job.result(280)
    text = described(tmp_path)
    assert done.returncode == 75, text
    assert [one["attempt"] for one in of_type(leaders(tmp_path), "attempt_launching")] == [1], text
    assert_nothing_lives(tmp_path, text)


def last_step(cwd: Path) -> int | None:
    steps = [one["progress"]["step"] for one in of_type(leaders(cwd), "progress")]
    return steps[-1] if steps else None


def silent_s(cwd: Path) -> float:
    """For how long the agent has written nothing, by the wall clock of both."""
    (log,) = agents(cwd)
    newest = leaders(cwd)[-1]["t"]
    return newest - log[-1]["t"]
