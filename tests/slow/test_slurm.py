"""Two nodes of two ranks on a real Slurm: scripts/test-slurm makes one, and runs this.

The batch script is examples/slurm.sbatch, the training is torchrun with gloo and an unmodified
script, and Slurm's nodes are this machine under several names.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.checks import assert_blames
from tests.slurm import cluster
from tests.slurm.jobs import Job, ranks_of_nodes, set_node, submit
from tests.support import (
    EXAMPLES,
    Event,
    bin_path,
    of_type,
    run_directories,
    run_wtrain,
    wait_until,
)
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.store.log_reading import read_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", autouse=True)
def _slurm() -> None:
    why = cluster.found()
    if why is not None:
        pytest.skip(f"NOT RUN: {why}")


Submit = Callable[..., Job]
TWO_NODES = ("--resume-arg", "--resume {checkpoint}")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Submit]:
    """Submits a job; what is left of it at the end is cancelled."""
    jobs: list[Job] = []

    def submitted(*command: str, **how: Any) -> Job:
        jobs.append(submit(tmp_path, *command, **how))
        return jobs[-1]

    yield submitted
    for job in jobs:
        job.cancel()


def step_of(log: list[Event]) -> int:
    return max((one["progress"]["step"] or 0 for one in of_type(log, "progress")), default=0)


def wait_for_step(job: Job, step: int) -> None:
    """Until both nodes have got so far."""

    def there() -> bool:
        return min(step_of(job.log(0)), step_of(job.log(1))) >= step

    wait_until(there, 240, f"both nodes are at step {step}", poll_s=0.2)


def assert_finished(job: Job, *, first: int) -> None:
    """All four ranks came to the end, from this step on."""
    text = job.described()
    assert job.state == "COMPLETED", text
    for rank in range(4):
        assert f"finished rank={rank} from={first} step=40" in job.output, text


def replay_of(job: Job) -> State:
    """The state that the job's log says."""
    (path,) = run_directories(job.cwd)
    return replay(read_events(path / "events.jsonl", spill_dir=path / "spill").events)


def finishes(log: list[Event]) -> list[int]:
    return [one["exit_code"] for one in of_type(log, "run_finished")]


def test_a_hang_is_caught_and_the_job_goes_on(begin: Submit) -> None:
    """Evidence of both nodes before the first kill, one plan, all resumed inside the allocation."""
    job = begin(*ranks_of_nodes("--fault", "hang"), flags=TWO_NODES)
    job.wait_for_end(600)
    assert_finished(job, first=20)
    text = job.described()
    assert job.restarts == 0, text
    log = job.log(0)
    evidence = of_type(log, "evidence_collected")
    assert {one.get("host", "") for one in evidence} == {"", "node1"}, text
    assert min(one["captured"] for one in evidence) >= 3, text  # torchrun and two ranks
    killed = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
    assert max(one["seq"] for one in evidence) < min(killed), text
    for node in (0, 1):
        plans = [one["plan"] for one in of_type(job.log(node), "attempt_launching")]
        assert [one["attempt"] for one in plans] == [1, 2], text
        assert plans[1]["checkpoint"]["path"].endswith("checkpoints/step-000020.pt"), text
        (started,) = of_type(job.log(node), "run_started")
        assert started["host"] == f"n{node + 1}", text
    (diagnosed,) = [one for one in of_type(log, "stall_explained") if one["tasks"]]
    assert diagnosed["tasks"] == [0, 1], text
    assert_blames(diagnosed, 3, ("rank-left-early",), surely=True)


@pytest.mark.parametrize("victim", [1, 0], ids=["another's", "the leader's"])
def test_a_supervisor_is_killed_and_the_job_is_requeued(begin: Submit, victim: int) -> None:
    """The other one ends with 75, though srun says 137; all ranks go on from a checkpoint.

    Where Slurm tracks processes by cgroups the ranks end with their supervisor, and those of the
    other node fail. Elsewhere they live on, hang, and are found again when the job is requeued.
    The job does not get the leader's node again.
    """
    job = begin(*ranks_of_nodes("--fault", "hang", "--step-s", "0.5"), flags=TWO_NODES)
    wait_for_step(job, 12)
    drained = ["n1"] if victim == 0 and cluster.ends_with_its_tasks() else []
    other = job.log(1 - victim)[0]["run_id"]
    try:
        for name in drained:
            set_node(name, "drain")
        os.kill(of_type(job.log(victim), "run_started")[0]["pid"], signal.SIGKILL)
        job.wait_for_end(600)
    finally:
        for name in drained:
            set_node(name, "resume")
    text = job.described()
    (log,) = [log for log in job.all_logs() if log[0]["run_id"] == other]
    assert finishes(log)[0] == 75, text
    assert of_type(log, "evidence_collected"), text
    assert finishes(job.log(0))[-1] == 0, text
    assert job.restarts == 1, text
    assert job.state == "COMPLETED", text
    assert job.fields()["NodeList"] == ("n[2-3]" if drained else "n[1-2]"), text
    ends = [line for line in job.output.splitlines() if line.startswith("finished ")]
    assert len(ends) == 4, text
    assert {line.split()[2] for line in ends} <= {"from=10", "from=20"}, text


def test_an_exit_with_75_is_requeued_and_the_run_goes_on(begin: Submit) -> None:
    """The same run with the next attempt, and what it had left of its restarts."""
    flags = (*TWO_NODES, "--max-restarts", "0")
    job = begin(*ranks_of_nodes("--fault", "hang"), flags=flags, lines={"requeues": "1"})
    job.wait_for_end(600)
    text = job.described()
    assert job.restarts == 1, text
    assert_finished(job, first=20)
    events = job.log(0)
    assert len(run_directories(job.cwd)) == 1, text
    assert finishes(events) == [75, 0], text
    (reopened,) = of_type(events, "reopened")
    assert not reopened["fresh_budget"], text
    assert replay_of(job).restarts == 1, text
    for log, numbers in ((events, [1, 2]), (job.log(1), [2])):
        assert [one["attempt"] for one in of_type(log, "attempt_launched")][-1:] == [2], text
        assert {one["attempt"] for one in of_type(log, "attempt_launching")} == set(numbers), text


def test_the_guilty_node_is_left_out(begin: Submit) -> None:
    """The requeued job gets the third node; where too few would be left it gets the same ones."""
    how: dict[str, Any] = {
        "flags": (*TWO_NODES, "--max-restarts", "0"),
        "lines": {"requeues": "1", "exclude_guilty": "yes"},
    }
    job = begin(*ranks_of_nodes("--fault", "hang"), **how)
    job.wait_for_end(600)
    text = job.described()
    assert_finished(job, first=20)
    (host,) = {one["host"] for one in of_type(job.log(0), "stall_explained") if one["tasks"]}
    left = {"n1": "n[2-3]", "n2": "n[1,3]"}[host]  # torchrun says which node has which ranks
    fields = job.fields()
    assert (fields["ExcNodeList"], fields["NodeList"], job.restarts) == (host, left, 1), text
    assert f"wtrain: excluded from this job: {host}" in job.output, text
    assert f"the fault may lie with {host}: the other ranks waited for rank 3" in job.output, text
    set_node("n3", "drain")
    try:
        job = begin(*ranks_of_nodes("--fault", "hang"), asked=("--partition=debug",), **how)
        job.wait_for_end(600)
    finally:
        set_node("n3", "resume")
    assert (job.restarts, job.state, job.fields()["NodeList"]) == (1, "COMPLETED", "n[1-2]")


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_end_of_the_time_is_answered_by_a_save(
    begin: Submit, tmp_path: Path, nodes: int
) -> None:
    """Asked for a save, a whole checkpoint, a stop with 77; the requeued job goes on from there.

    On two nodes the ranks of both are asked, though the batch script knows only the first one.
    """
    script = tmp_path / "train.py"
    text = (EXAMPLES / "hf_trainer.py").read_text()
    text = text.replace("dataloader_num_workers=2", "dataloader_num_workers=0")
    script.write_text(text.replace("save_steps=10,", "save_steps=100000,"))
    (tmp_path / "text.txt").write_text((EXAMPLES / "text.txt").read_text())
    command = (str(bin_path("torchrun")), "--nproc-per-node=1", str(script), "--max_steps", "90000")
    warn_s = 60 if nodes == 1 else 120
    how: dict[str, Any] = {
        "asked": ("--time=6", f"--signal=B:USR1@{warn_s}"),
        "lines": {"save_s": str(warn_s // 2)},
    }
    job = begin(*command, nodes=nodes, **how)

    def goes_on() -> bool:
        return len(of_type(job.log(0), "first_step")) == 2

    wait_until(goes_on, 900, "the requeued job has gone on", poll_s=0.5)
    text = job.described()
    assert job.restarts == 1, text
    events = job.log(0)
    asked = of_type(events, "save_requested")[0]
    proven = next(one for one in of_type(events, "save_proven") if one["request"] == "save")
    assert asked["can_be_asked"], text
    assert asked["seq"] < proven["seq"], text
    assert [one["request"] for one in of_type(events, "request_answered")] == ["save", "stop"]
    assert finishes(events) == [77], text
    plan = of_type(events, "attempt_launching")[-1]["plan"]
    assert plan["checkpoint"]["step"] >= proven["step"], text
    assert len(job.all_logs()) == 1 + 2 * (nodes - 1), text
    assert run_wtrain("stop", job.name, cwd=tmp_path, timeout_s=200).returncode == 0
    job.wait_for_end(120)
    assert (job.state, job.fields()["ExitCode"], job.restarts) == ("FAILED", "77:0", 1)


def test_the_end_of_the_time_of_a_script_that_cannot_be_asked(begin: Submit) -> None:
    """Stopped on both nodes with 77, and begun again from a save."""
    how: dict[str, Any] = {
        "flags": TWO_NODES,
        "asked": ("--time=6", "--signal=B:USR1@60"),
        "lines": {"save_s": "30"},
    }
    job = begin(*ranks_of_nodes("--step-s", "1", "--steps", "2000"), **how)
    wait_until(lambda: job.restarts == 1, 450, "the job is requeued", poll_s=0.5)
    ended = step_of(job.log(0))

    def goes_on() -> bool:
        return min(step_of(job.log(0)), step_of(job.log(1))) > ended

    wait_until(goes_on, 500, "the requeued job goes on", poll_s=0.5)
    text = job.described()
    for log in job.all_logs():
        assert finishes(log)[:1] in ([77], []), text
        assert not of_type(log, "stall_declared"), text
    plans = [one["plan"] for one in of_type(job.log(0), "attempt_launching")]
    assert [one["checkpoint"] is None for one in plans] == [True, False], text
