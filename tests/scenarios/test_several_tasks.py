"""Several tasks of one job on this machine, each under its own wtrain, as srun starts them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.led import (
    agents,
    assert_evidence_first,
    assert_nothing_lives,
    assert_one_plan,
    attempts,
    described,
    last_step,
    leader,
    logs,
    runs,
    wait_for_step,
)
from tests.scenarios.checks import assert_blames
from tests.support import (
    PROGRAMS,
    RunningWtrain,
    free_port,
    is_alive,
    of_type,
    read_log,
    run_directories,
    run_wtrain,
    sentence,
    start_wtrain,
    types,
    wait_until,
    write_fast_config,
    wtrain_of,
)

pytestmark = pytest.mark.timeout(300)
LED = "job: {nodes: auto, gather_s: 90, lost_s: 25}\n"
FAMILIES = {"hang": ("rank-left-early",), "receive": ("collective-mismatch", "gloo-timeout")}
"""What a hang of one rank is called when the evidence of all tasks is read together."""


def start_job(cwd: Path, tasks: int, *program: str, port: int = 0) -> RunningWtrain:
    """The job; its ranks meet at a port that is free now, or at the one that is given."""
    config = write_fast_config(cwd, LED)
    resume = ("--resume-arg", "--resume {checkpoint}")
    command = [sys.executable, str(PROGRAMS / "task_ranks.py"), *program]
    return start_wtrain(
        *("run", "--config", str(config), *resume, "--", *command),
        cwd=cwd,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())},
        wtrain=as_srun(tasks, wtrain_of(cwd)),
    )


def as_srun(tasks: int, program: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / "srun_like.py"), str(tasks), program]


def ended(job: RunningWtrain, code: int = 0) -> str:
    """All that is known of a job that ended with this code, as text."""
    done = job.result(280)
    text = described(job.cwd)
    assert done.returncode == code, text
    return text


def pids(job: RunningWtrain) -> list[int]:
    """Of the supervisors."""
    path = job.cwd / "tasks.pids"
    wait_until(path.exists, 20, "the tasks are started")
    return [int(word) for word in path.read_text().split()]


def assert_all_finished(cwd: Path, tasks: int, attempt: int, text: str) -> None:
    for number in range(tasks):
        said = (cwd / f"task-{number}.out").read_text()
        assert f"rank {number} attempt {attempt}" in said, text
        assert f"finished rank={number} step=40" in said, text
    assert_nothing_lives(cwd, text)


@pytest.mark.parametrize(
    "fault",
    [
        "hang",
        "crash",
        pytest.param("receive", marks=pytest.mark.slow),
        pytest.param("die-in-save", marks=pytest.mark.slow),
    ],
)
def test_one_rank_fails_and_all_begin_again(tmp_path: Path, fault: str) -> None:
    """One log, one bundle, one explanation, one plan; every agent carries it out."""
    text = ended(start_job(tmp_path, 2, "--fault", fault))
    assert_one_plan(tmp_path, text)
    assert_all_finished(tmp_path, 2, 2, text)
    run, log = runs(tmp_path)[0], leader(tmp_path)
    bundle = run / "stalls" / "0001"
    for folder in (bundle, bundle / "machines" / "task1"):
        assert (folder / "verdict.json").is_file(), sorted(folder.rglob("*"))
    for attempt, words in ((1, "attempt 1"), (2, "finished rank=1")):
        said = run / "attempts" / f"000{attempt}" / "machines" / "task1" / "stdout.log"
        assert words in said.read_text(), text
    assert len(run_directories(tmp_path)) == 1, text
    if fault == "die-in-save":
        rejected = of_type(log, "checkpoint_rejected")
        assert [Path(one["path"]).name for one in rejected] == ["step-000030.pt"], text
    shown = run_wtrain("status", "--json", run.name, cwd=tmp_path).json()["last_stall"]
    if fault in FAMILIES:
        # Each task alone sees one rank wait; the leader reads what all have taken.
        (diagnosed,) = [one for one in of_type(log, "stall_explained") if one["tasks"]]
        assert diagnosed["tasks"] == [0, 1]
        assert_blames(diagnosed, 1, FAMILIES[fault], surely=fault == "hang")
        assert shown["explanation"] == diagnosed["explanation"]
    elif fault == "crash":
        assert "rank 1 (pid" in str(shown), shown
        assert "exited with code 3 at step 25" in str(shown), shown


def test_the_tasks_of_a_sweep_are_left_alone(tmp_path: Path) -> None:
    """One of eight crashes and begins again by itself; the others end, each in its own time."""
    config = write_fast_config(tmp_path)
    command = ("run", "--config", str(config), "--", sys.executable, str(PROGRAMS / "sweep.py"))
    job = start_wtrain(*command, cwd=tmp_path, wtrain=as_srun(8, wtrain_of(tmp_path)))
    done = job.result(200)
    found = {path.name: read_log(path) for path in run_directories(tmp_path)}
    assert done.returncode == 0, found
    assert len(found) == 8, found
    assert not [log for log in found.values() if of_type(log, "task_joined")]
    launched = {name.split("-")[1]: attempts(log) for name, log in found.items()}
    crashed = launched.pop("task5")
    assert crashed == [1, 2]
    assert all(each == [1] for each in launched.values()), launched


@pytest.mark.slow
def test_a_rank_that_evaluates_alone_is_no_stall(tmp_path: Path) -> None:
    """Ten soft budgets long one rank works and three wait: nobody is dumped or killed for it."""
    text = ended(start_job(tmp_path, 4, "--fault", "eval"))
    log = leader(tmp_path)
    assert not of_type(log, "stall_declared"), text
    assert not [one for one in of_type(log, "signalling") if one["targets"]], text
    assert len(agents(tmp_path)) == 3, text
    assert_all_finished(tmp_path, 4, 1, text)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["leader", "agent"])
def test_a_supervisor_is_killed(tmp_path: Path, who: str) -> None:
    """`wtrain adopt` takes its run back; a hang after that is handled as before."""
    started = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    wait_until(lambda: of_type(leader(tmp_path), "machine_heard"), 60, "they know each other")
    victim = pids(started)[who == "agent"]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_alive(victim), 20, "it is dead")
    adopted = run_wtrain("adopt", str(runs(tmp_path)[who == "agent"]), cwd=tmp_path, timeout_s=280)
    assert adopted.returncode == 0, adopted.describe()
    done = started.result(280)

    def finished() -> bool:
        return all(of_type(log, "run_finished") for log in logs(tmp_path).values())

    wait_until(finished, 120, "leader and agent come to their end")
    text = described(tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, text
    found = logs(tmp_path)
    assert [len(of_type(log, "adopted")) for log in found.values()] == [
        who == "leader",
        who == "agent",
    ], text
    assert {of_type(log, "run_finished")[0]["exit_code"] for log in found.values()} == {0}, text
    assert_one_plan(tmp_path, text)
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_stop_of_one_task_stops_all(tmp_path: Path, how: str) -> None:
    """As scancel and an eviction send it, and as a person asks: to any task."""
    job = start_job(tmp_path, 2, "--steps", "4000")
    wait_for_step(tmp_path, 2)
    if how == "signal":
        os.kill(pids(job)[1], signal.SIGTERM)
    else:
        wait_until(lambda: of_type(leader(tmp_path), "machine_heard"), 60, "they know each other")
        listed = run_wtrain("ps", cwd=tmp_path)
        assert "0/2 slurm" in listed.stdout, listed.describe()
        assert "1/2 slurm" not in listed.stdout, "one line a job"
        dumped = run_wtrain("dump", "--json", runs(tmp_path)[0].name, cwd=tmp_path, timeout_s=90)
        assert [one["rank"] for one in dumped.json()["processes"] if one["role"] == "rank"] == [
            0,
            1,
        ]
        (told,) = of_type(leader(tmp_path), "stall_explained")
        assert told["tasks"] == [0, 1]
        assert dumped.json()["explanation"] == told["explanation"]
        name = runs(tmp_path)[1].name
        assert run_wtrain("stop", name, cwd=tmp_path, timeout_s=90).returncode == 0
    text = ended(job, 77)
    (stop,) = of_type(leader(tmp_path), "stop_requested")
    assert stop["by"] == f"task1: {'SIGTERM' if how == 'signal' else 'wtrain stop'}", text
    assert [one["why"] for one in of_type(leader(tmp_path), "evidence_collecting")] == (
        [] if how == "signal" else ["manual", "manual"]
    ), text
    for log in logs(tmp_path).values():
        assert of_type(log, "run_finished")[0]["exit_code"] == 77, text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The job cannot begin; the next attempt of all its tasks meets at another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = ended(start_job(tmp_path, 2, port=port))
    assert_all_finished(tmp_path, 2, 2, text)
    plans = [of_type(log, "attempt_launching")[-1]["plan"] for log in logs(tmp_path).values()]
    ports = {plan["env"]["MASTER_PORT"] for plan in plans}
    assert len(ports) == 1, text
    assert ports != {str(port)}, text
    assert "MASTER_PORT is taken" in sentence(plans[0]["why"]), text


@pytest.mark.slow
def test_all_tasks_crash_at_once(tmp_path: Path) -> None:
    """Each of them has an end of its own to tell of; they begin again together, once."""
    text = ended(start_job(tmp_path, 2, "--fault", "crash", "--rank", "-1"))
    assert_all_finished(tmp_path, 2, 2, text)
    exits = [one for one in of_type(leader(tmp_path), "attempt_exited") if one["attempt"] == 1]
    assert [one["code"] for one in exits] == [3, 3], text
    for log in logs(tmp_path).values():
        assert attempts(log) == [1, 2], text


@pytest.mark.slow
def test_a_silent_agent_costs_nothing_while_ranks_make_steps(tmp_path: Path) -> None:
    """Its machine cannot be heard for longer than lost_s, and is heard again: the job goes on."""
    job = start_job(tmp_path, 2, "--steps", "900")
    wait_for_step(tmp_path, 2)
    agent = pids(job)[1]
    os.kill(agent, signal.SIGSTOP)
    reached = last_step(tmp_path)

    def silent_s() -> float:
        newest: float = leader(tmp_path)[-1]["t"]
        return newest - agents(tmp_path)[0][-1]["t"]

    wait_until(
        lambda: silent_s() > 30 and last_step(tmp_path) > reached + 5,
        120,
        "the rank that is heard makes steps while the other is not heard",
    )
    os.kill(agent, signal.SIGCONT)
    heard = "it is heard again, so a stop reaches it"
    wait_until(lambda: len(of_type(leader(tmp_path), "machine_heard")) > 1, 60, heard)
    assert run_wtrain("stop", cwd=tmp_path, timeout_s=90).returncode == 0
    text = ended(job, 77)
    log = leader(tmp_path)
    assert not {"stall_declared", "machine_lost", "given_up"} & set(types(log)), text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_a_machine_that_stays_silent_gives_the_job_back(tmp_path: Path) -> None:
    """Nobody who is heard makes steps, and `lost_s` is over: evidence, 75 on all, nothing left."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    agent = pids(job)[1]
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: of_type(leader(tmp_path), "run_finished"), 200, "the leader gives up")
    os.kill(agent, signal.SIGCONT)  # it comes back late, and has to learn that it is over
    text = ended(job, 75)
    (lost,) = of_type(leader(tmp_path), "machine_lost")
    assert lost["host"] == "task1", text
    assert of_type(leader(tmp_path), "evidence_collected"), text
    assert attempts(leader(tmp_path)) == [1], text
    (log,) = agents(tmp_path)
    assert of_type(log, "run_finished")[0]["exit_code"] == 75, text
    assert_nothing_lives(tmp_path, text)


@pytest.mark.slow
def test_an_agent_without_a_leader_ends_its_idle_ranks(tmp_path: Path) -> None:
    """The leader cannot be heard, and is not known to be dead: evidence, end, 75."""
    job = start_job(tmp_path, 2, "--fault", "hang", "--at", "35")
    wait_for_step(tmp_path, 2)
    first = pids(job)[0]
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: of_type(agents(tmp_path)[0], "run_finished"), 200, "the agent gives up")
    (log,) = agents(tmp_path)
    text = described(tmp_path)
    assert of_type(log, "run_finished")[0]["exit_code"] == 75, text
    assert_evidence_first(log, text)
    os.kill(first, signal.SIGCONT)
    text = ended(job, 75)
    assert attempts(leader(tmp_path)) == [1], text
    assert_nothing_lives(tmp_path, text)
