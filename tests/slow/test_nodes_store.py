"""Two nodes whose supervisors meet at torch's TCPStore instead of a directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.nodes import (
    assert_nothing_lives,
    described,
    ended,
    logs,
    own_host,
    start_nodes,
    wait_for_step,
)
from tests.scenarios.checks import assert_blames
from tests.scenarios.test_nodes import assert_finished, assert_one_plan
from tests.support import free_port, of_type, run_wtrain, types

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(1000),
]


def at_store() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_a_hang_is_caught_and_all_nodes_begin_again(tmp_path: Path) -> None:
    """As over a directory: evidence of both nodes, one plan, resumed, finished; nothing is left."""
    job = start_nodes(tmp_path, "--fault", "hang", meet=at_store())
    found, text = ended(job, 0, 0, timeout_s=800)
    assert_one_plan(found, text)
    assert_finished(job, 2, text)
    (diagnosed,) = [one for one in of_type(found[0], "stall_explained") if one["tasks"]]
    assert_blames(diagnosed, 3, ("rank-left-early",), surely=True)
    assert not list(tmp_path.glob("tcp*")), "it was taken for a directory"


@pytest.mark.parametrize("victim", [1, 0], ids=["another's", "the leader's"])
def test_a_supervisor_is_killed(tmp_path: Path, victim: int) -> None:
    """The leader takes the store along: the other says so, catches the hang and ends with 75."""
    if not own_host(0):
        pytest.skip("only root can give the supervisors hosts of their own")
    job = start_nodes(tmp_path, "--fault", "hang", meet=at_store())
    wait_for_step(tmp_path, 5)
    os.kill(job[victim].process.pid, signal.SIGKILL)
    done = job[1 - victim].result(800)
    found, text = logs(tmp_path), described(tmp_path)
    assert done.returncode == 75, text
    events = found[1 - victim]
    assert of_type(events, "evidence_collected"), text
    assert "barrier_missed" in types(events), text
    assert ("the peers of this node cannot be told" in done.stderr) == (victim == 0), text
    taken = run_wtrain("adopt", found[victim][0]["run_id"], cwd=tmp_path, timeout_s=300)
    assert taken.returncode != 70, taken.describe()
    assert_nothing_lives(logs(tmp_path), text)
