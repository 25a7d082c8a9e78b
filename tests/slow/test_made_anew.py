"""A machine of a job is lost with its supervisor, its ranks and its runs, and another one comes."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
from pathlib import Path

import pytest

from tests.nodes import places, start_nodes
from tests.scenarios.test_led_tasks import (
    agents,
    assert_nothing_lives,
    described,
    leaders,
    wait_for_step,
)
from tests.support import (
    RunningWtrain,
    free_port,
    of_type,
    run_directories,
    start_wtrain,
    wait_until,
)
from watchdog_train.supervisor.hands.link.keys import VARIABLE

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
    log = (agents(cwd)[0] if number else leaders(cwd)) or []
    keeper = of_type(log, "attempt_launched")[-1]["keeper_pid"]
    members = {one["pid"] for each in of_type(log, "progress") for one in each["members"]}
    os.kill(node.process.pid, signal.SIGKILL)
    for pid in (keeper, *members):
        os.kill(pid, signal.SIGKILL)
    node.process.wait(30)
    (run,) = run_directories(cwd, "wtrain-runs/.agents" if number else "wtrain-runs")
    shutil.rmtree(run)


@pytest.mark.parametrize("number", [0, 1], ids=["leader", "agent"])
def test_a_node_that_is_made_anew_begins_with_the_others(tmp_path: Path, number: int) -> None:
    """What lives of the old attempt is ended by order, and the job goes on from its checkpoint."""
    pytest.importorskip("zmq")
    at = places()
    if not at[0].prefix:
        pytest.skip("NOT RUN: a machine of its own needs a host name of its own, and so root")
    at = [dataclasses.replace(place, env={VARIABLE: KEY}) for place in at]
    options = ("--checkpoints", "checkpoints")
    meet = f"tcp://127.0.0.1:{free_port()}"
    job = start_nodes(tmp_path, "--step-s", "0.5", at=at, job=JOB, meet=meet, options=options)
    wait_for_step(tmp_path, 2)
    reached = "the first checkpoint is there"
    wait_until(lambda: list(tmp_path.glob("checkpoints/step-000010.pt")), 120, reached)
    lose(job[number], tmp_path, number)
    job[number] = start_wtrain(cwd=tmp_path, env=at[number].env, wtrain=job[number].args)
    codes = [node.result(400).returncode for node in job]
    text = described(tmp_path)
    assert codes == [0, 0], text
    begun = of_type(leaders(tmp_path), "attempt_launching")
    assert [one["attempt"] for one in begun] == [1, 2], text
    assert begun[1]["plan"]["checkpoint"]["step"] >= 10, text
    (agent,) = agents(tmp_path)
    mine = [one["attempt"] for one in of_type(agent, "attempt_launching")]
    assert mine == ([2] if number else [1, 2]), text
    assert_nothing_lives(tmp_path, text)


KEY = secrets.token_hex(32)
