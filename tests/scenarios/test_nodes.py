"""Two nodes of two ranks, each node under its own wtrain around its own torchrun."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.nodes import (
    NODES,
    assert_nothing_lives,
    described,
    ended,
    logs,
    own_host,
    start_nodes,
    wait_for_step,
)
from tests.scenarios.checks import assert_blames
from tests.support import (
    Event,
    RunningWtrain,
    of_type,
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
    pytest.mark.timeout(400),
]


def assert_one_plan(found: dict[int, list[Event]], text: str, *, crashed: bool = False) -> None:
    """All dumped before anybody was killed; all began attempt 2 from one checkpoint, elsewhere."""
    plans = []
    for number, events in found.items():
        assert "barrier_missed" not in types(events), text
        barrier = of_type(events, "barrier_reached")[0]["seq"]
        evidence = of_type(events, "evidence_collected")[0]
        assert evidence["seq"] < barrier, text
        # After a crash nobody may be left: torchrun ends the ranks of both nodes by itself.
        assert crashed or evidence["captured"] >= 1, text
        killed = [one["seq"] for one in of_type(events, "signalling") if one["targets"]]
        assert not killed or barrier < killed[0], text
        assert len(of_type(events, "plan_received")) == 2 * (number > 0), text
        plans.append([one["plan"] for one in of_type(events, "attempt_launching")])
    for first, second in plans:
        assert (first["attempt"], second["attempt"]) == (1, 2), text
        for name in ("PET_RDZV_ID", "PET_RDZV_ENDPOINT"):
            assert first["env"][name] != second["env"][name], text
            assert second["env"][name] == plans[0][1]["env"][name], text
        assert f"--rdzv-endpoint={second['env']['PET_RDZV_ENDPOINT']}" in second["argv"], text
        assert second["checkpoint"]["path"].endswith("checkpoints/step-000020.pt"), text
    hosts = [second["env"]["PET_RDZV_CONF"] for _, second in plans]
    assert hosts == ["is_host=1", "is_host=0"], text


def assert_finished(job: list[RunningWtrain], attempt: int, text: str) -> None:
    """The last step was reached by every rank, and nothing of the meeting is left."""
    said = "\n".join(node.result(1).stdout for node in job)
    start = 20 if attempt > 1 else 0
    for rank in range(4):
        assert f"finished rank={rank} from={start} step=40 attempt={attempt}" in said, text
    meet = job[0].cwd / "meet"
    assert not meet.exists() or not list(meet.iterdir()), text


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_a_rank_of_one_node_fails_and_all_nodes_begin_again(tmp_path: Path, fault: str) -> None:
    """Evidence of both nodes before the first kill, one plan, all resumed, all finished."""
    job = start_nodes(tmp_path, "--fault", fault)
    found, text = ended(job, 0, 0)
    assert_one_plan(found, text, crashed=fault == "crash")
    assert_finished(job, 2, text)
    if fault == "hang":
        # Each node alone sees its own ranks wait; the leader reads what all have taken.
        (diagnosed,) = [one for one in of_type(found[0], "stall_explained") if one["tasks"]]
        assert diagnosed["tasks"] == [0, 1]
        assert_blames(diagnosed, 3, ("rank-left-early",), surely=True)
        guilty = next(n for n in found if "node_ranks" in text and _holds(found[n], 3))
        assert diagnosed["host"] == found[guilty][0]["host"], text
        shown = run_wtrain("status", "--json", found[0][0]["run_id"], cwd=tmp_path).json()
        assert shown["job"]["kind"] == "node"
        assert shown["last_stall"]["explanation"] == diagnosed["explanation"]


def _holds(events: list[Event], rank: int) -> bool:
    """Whether a rank of the first attempt was on this node."""
    first = [one for one in of_type(events, "progress") if one["attempt"] == 1]
    return any(each["rank"] == rank for one in first for each in one["ranks"])


@pytest.mark.slow
def test_a_rank_that_evaluates_alone_is_no_stall(tmp_path: Path) -> None:
    """Ten soft budgets long rank 0 works and three wait, on both nodes: nobody is dumped for it."""
    job = start_nodes(tmp_path, "--fault", "eval", "--rank", "0")
    found, text = ended(job, 0, 0)
    # By the steps that it had made itself, whatever the machine has made of them.
    said = "".join(node.result(1).stdout for node in job)  # rank 0 may be on either
    (budgets,) = re.findall(r"^evaluated budgets=([\d.]+)", said, re.MULTILINE)
    assert float(budgets) >= 10, text
    for events in found.values():
        assert not of_type(events, "stall_declared"), text
        assert not [one for one in of_type(events, "signalling") if one["targets"]], text
        assert len(of_type(events, "attempt_launched")) == 1, text
    assert_finished(job, 1, text)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_supervisor_is_killed_where_no_other_can_replace_it(tmp_path: Path, victim: int) -> None:
    """The leader's or the other's: the hang is caught all the same, and the engine is asked."""
    if not own_host(0):
        pytest.skip("only root can give the supervisors hosts of their own")
    job = start_nodes(tmp_path, "--fault", "hang")
    wait_for_step(tmp_path, 5)
    os.kill(job[victim].process.pid, signal.SIGKILL)
    other = 1 - victim
    done = job[other].result(280)
    found, text = logs(tmp_path), described(tmp_path)
    assert done.returncode == 75, text
    events = found[other]
    assert of_type(events, "evidence_collected"), text
    assert of_type(events, "barrier_missed")[0]["missing"] == [victim], text
    assert f"node {victim} (node-{victim})" in sentence(
        of_type(events, "run_finished")[0]["why"]
    ), text
    # What the dead one has left is its own node's: there it is taken up, and ended.
    run = found[victim][0]["run_id"]
    taken = run_wtrain("adopt", run, cwd=tmp_path, timeout_s=200)
    assert taken.returncode != 70, taken.describe()
    assert_nothing_lives(logs(tmp_path), text)


@pytest.mark.slow
def test_a_supervisor_is_killed_beside_another_one(tmp_path: Path) -> None:
    """Two nodes of a job on one machine: the other's supervisor gives its run a new one."""
    job = start_nodes(tmp_path, "--fault", "hang", hosts=False)
    wait_for_step(tmp_path, 5)
    os.kill(job[0].process.pid, signal.SIGKILL)
    assert job[1].result(280).returncode == 0, described(tmp_path)

    def finished() -> bool:
        found = logs(tmp_path)
        return len(found) == NODES and all(of_type(one, "run_finished") for one in found.values())

    wait_until(finished, 60, "both runs come to their end")
    found, text = logs(tmp_path), described(tmp_path)
    assert of_type(found[1], "peer_lost"), text
    assert of_type(found[0], "adopted"), text
    assert {of_type(one, "run_finished")[0]["exit_code"] for one in found.values()} == {0}, text


@pytest.mark.slow
def test_a_stop_of_one_stops_all(tmp_path: Path) -> None:
    """`wtrain stop` of one node: both end with 77, and nothing is left."""
    job = start_nodes(tmp_path, "--steps", "4000")
    wait_for_step(tmp_path, 2)
    name = next(path.name for path in run_directories(tmp_path) if "-node1-" in path.name)
    assert run_wtrain("stop", name, cwd=tmp_path, timeout_s=90).returncode == 0
    found, text = ended(job, 77, 77)
    assert_nothing_lives(found, text)


@pytest.mark.slow
def test_a_node_that_is_alone_says_what_it_waits_for(tmp_path: Path) -> None:
    """Nothing is started before all nodes have met; a second one of the same number is refused."""
    config = write_fast_config(tmp_path)
    options = ("run", "--config", str(config), "--coordination", "meet")
    node = start_wtrain(*options, *("--nodes", "2", "--node-rank", "1", "--", "true"), cwd=tmp_path)
    wait_until(lambda: logs(tmp_path).get(1), 30, "the node has joined")
    as_well = ("--duplicates", "ignore", "--nodes", "2", "--node-rank", "1", "--", "true")
    again = run_wtrain(*options, *as_well, cwd=tmp_path)
    assert again.returncode == 78, again.describe()
    assert "has a supervisor already" in again.stderr
    wait_until(lambda: of_type(logs(tmp_path)[1], "noticed"), 30, "it says that it waits")
    node.process.send_signal(signal.SIGTERM)
    done = node.result(60)
    assert done.returncode == 77, done.describe()
    assert "waiting for 1 node that nothing was heard of" in done.stderr
    assert not list((tmp_path / "meet").iterdir())
    assert not of_type(logs(tmp_path)[1], "attempt_launching")
