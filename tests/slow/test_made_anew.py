"""A machine of a job is lost with its supervisor, its ranks and its runs, and another one comes."""

from __future__ import annotations

import dataclasses
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
from tests.nodes import KEY, ended, places, start_nodes
from tests.support import RunningWtrain, members_of, of_type, start_wtrain, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOB = "job: {gather_s: 120, lost_s: 120}\n"
ENV = {"WTRAIN_CHECKPOINTS": "checkpoints"}


def lose(node: RunningWtrain, cwd: Path, number: int) -> None:
    """As a pod or a machine that is gone: nothing of it can be asked for anything any more."""
    log = logs(cwd)[number]
    (launched,) = [one for one in of_type(log, "attempt_launched") if not one.get("host")]
    own = {one.pid for one in members_of(log) if not one.host}
    for pid in (node.process.pid, launched["keeper_pid"], *own):
        os.kill(pid, signal.SIGKILL)
    node.process.wait(30)
    shutil.rmtree(runs(cwd)[number])


@pytest.mark.parametrize("number", [0, 1], ids=["leader", "agent"])
def test_a_node_that_is_made_anew_begins_with_the_others(tmp_path: Path, number: int) -> None:
    """What lives of the old attempt is ended by order, and the job goes on from its checkpoint."""
    at = [dataclasses.replace(place, env=ENV) for place in places()]
    if not at[0].prefix:
        pytest.skip("NOT RUN: a machine of its own needs a host name of its own, and so root")
    job = start_nodes(tmp_path, "--step-s", "0.5", at=at, job=JOB)
    wait_for_step(tmp_path, 2)
    reached = "the first checkpoint is there"
    wait_until(lambda: list(tmp_path.glob("checkpoints/step-000010.pt")), 120, reached)
    lose(job[number], tmp_path, number)
    job[number] = start_wtrain(cwd=tmp_path, env={**KEY, **ENV}, wtrain=job[number].args)
    text = ended(job, 0, 0, timeout_s=400)
    begun = of_type(leader(tmp_path), "attempt_launching")
    assert attempts(leader(tmp_path)) == [1, 2], text
    assert begun[1]["plan"]["checkpoint"]["step"] >= 10, text
    (agent,) = agents(tmp_path)
    assert attempts(agent) == ([2] if number else [1, 2]), text
    assert_nothing_lives(tmp_path, described(tmp_path))
