"""A machine of a job is lost with its supervisor, its ranks and its runs, and another one comes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.led import (
    agents,
    assert_nothing_lives,
    attempts,
    described,
    leader,
    logs,
    runs,
    wait_for_step,
)
from tests.nodes import KEY, places, start_nodes
from tests.support import (
    RunningWtrain,
    of_type,
    start_wtrain,
    wait_until,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(600),
]
JOB = "job: {gather_s: 120, lost_s: 120}\n"


def lose(node: RunningWtrain, cwd: Path, number: int) -> None:
    """As a pod or a machine that is gone: nothing of it can be asked for anything any more."""
    log, run = logs(cwd)[number], runs(cwd)[number]
    keeper = of_type(log, "attempt_launched")[-1]["keeper_pid"]
    members = {one["pid"] for each in of_type(log, "progress") for one in each["members"]}
    os.kill(node.process.pid, signal.SIGKILL)
    for pid in (keeper, *members):
        os.kill(pid, signal.SIGKILL)
    node.process.wait(30)
    shutil.rmtree(run)


@pytest.mark.parametrize("number", [0, 1], ids=["leader", "agent"])
def test_a_node_that_is_made_anew_begins_with_the_others(tmp_path: Path, number: int) -> None:
    """What lives of the old attempt is ended by order, and the job goes on from its checkpoint."""
    pytest.importorskip("zmq")
    at = places()
    if not at[0].prefix:
        pytest.skip("NOT RUN: a machine of its own needs a host name of its own, and so root")
    options = ("--checkpoints", "checkpoints")
    job = start_nodes(tmp_path, "--step-s", "0.5", at=at, job=JOB, options=options)
    wait_for_step(tmp_path, 2)
    reached = "the first checkpoint is there"
    wait_until(lambda: list(tmp_path.glob("checkpoints/step-000010.pt")), 120, reached)
    lose(job[number], tmp_path, number)
    job[number] = start_wtrain(cwd=tmp_path, env=KEY, wtrain=job[number].args)
    codes = [node.result(400).returncode for node in job]
    text = described(tmp_path)
    assert codes == [0, 0], text
    begun = of_type(leader(tmp_path), "attempt_launching")
    assert [one["attempt"] for one in begun] == [1, 2], text
    assert begun[1]["plan"]["checkpoint"]["step"] >= 10, text
    (agent,) = agents(tmp_path)
    assert attempts(agent) == ([2] if number else [1, 2]), text
    assert_nothing_lives(tmp_path, text)
