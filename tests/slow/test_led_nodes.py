"""Two nodes under one leader, over ZeroMQ, in network namespaces whose link is cut."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cut_link import ADDRESSES, Network, NoNetworkError, two_networks
from tests.nodes import places
from tests.scenarios.test_led_tasks import (
    agents,
    assert_nothing_lives,
    described,
    leaders,
    wait_for_step,
)
from tests.slow.test_nodes_save import proofs, signals, start_trainer
from tests.support import (
    RunningWtrain,
    free_port,
    of_type,
    run_directories,
    run_wtrain,
    types,
    wait_until,
)
from watchdog_train.supervisor.hands.link.keys import VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(900),
]
MEET = f"tcp://{ADDRESSES[0]}:29400"


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two nodes that reach each other and nobody else."""
    pytest.importorskip("zmq")
    try:
        with two_networks(tmp_path) as found:
            yield found
    except NoNetworkError as error:
        pytest.skip(f"NOT RUN: {error}")


def led_settings(lost_s: int) -> str:
    return f"job: {{tasks: together, gather_s: 120, lost_s: {lost_s}}}\n"


def start(network: Network, cwd: Path, *program: str, lost_s: int) -> list[RunningWtrain]:
    return network.start(
        cwd, MEET, *program, job=led_settings(lost_s), env={VARIABLE: secrets.token_hex(32)}
    )


def test_a_hang_on_one_node_begins_again_on_both(tmp_path: Path, network: Network) -> None:
    """One rendezvous for each attempt, one explanation, which names the node."""
    job = start(network, tmp_path, "--fault", "hang", "--rank", "3", lost_s=60)
    codes = [node.result(500).returncode for node in job]
    text = described(tmp_path)
    assert codes == [0, 0], text
    log = leaders(tmp_path)
    assert [one["attempt"] for one in of_type(log, "attempt_launching")] == [1, 2], text
    (diagnosed,) = [one for one in of_type(log, "stall_explained") if one["tasks"]]
    assert diagnosed["host"] == "node-1", text
    assert diagnosed["explanation"]["root"]["who"]["rank"] == 3, text
    assert_nothing_lives(tmp_path, text)


def test_a_cut_link_ends_both_sides_in_time(tmp_path: Path, network: Network) -> None:
    """All ranks wait: each side takes its evidence, ends its own, and exits with 75."""
    job = start(network, tmp_path, "--steps", "4000", lost_s=30)
    wait_for_step(tmp_path, 2)
    network.cut()
    codes = [node.result(500).returncode for node in job]
    text = described(tmp_path)
    assert codes == [75, 75], text
    for log in (leaders(tmp_path), *agents(tmp_path)):
        evidence = [one["seq"] for one in of_type(log, "evidence_collected")]
        killed = [one["seq"] for one in of_type(log, "signalling") if one["targets"]]
        assert evidence, text
        assert evidence[0] < killed[0], text
        assert len(of_type(log, "attempt_launching")) == 1, text
    (lost,) = of_type(leaders(tmp_path), "machine_lost")
    assert lost["host"] == "node1", text
    wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either namespace")


def test_a_link_that_heals_in_time_is_used_again(tmp_path: Path, network: Network) -> None:
    """Nothing was concluded from the silence; the job ends well, with or without a restart."""
    job = start(network, tmp_path, "--step-s", "0.5", lost_s=300)
    wait_for_step(tmp_path, 2)
    network.cut()
    wait_until(lambda: "suspected" in types(leaders(tmp_path)), 120, "the silence is seen")
    network.mend()
    codes = [node.result(600).returncode for node in job]
    text = described(tmp_path)
    assert codes == [0, 0], text
    assert "machine_lost" not in types(leaders(tmp_path)), text
    assert_nothing_lives(tmp_path, text)
    wait_until(lambda: not network.pids().strip(), 20, "nothing lives in either namespace")


def test_a_save_and_a_stop_reach_the_ranks_of_all(tmp_path: Path) -> None:
    """One request, one number, one step of all four ranks, a whole checkpoint; then the stop."""
    pytest.importorskip("zmq")
    key = {VARIABLE: secrets.token_hex(32)}
    at = [dataclasses.replace(place, env=key) for place in places()]
    job = start_trainer(
        tmp_path, meet=f"tcp://127.0.0.1:{free_port()}", at=at, job=led_settings(120)
    )
    wait_for_step(tmp_path, 2)
    (run,) = run_directories(tmp_path)
    saved = run_wtrain("save", "--wait", run.name, cwd=tmp_path, timeout_s=200)
    text = described(tmp_path)
    assert saved.returncode == 0, saved.describe() + text
    (proven,) = proofs(leaders(tmp_path), "save")
    for rank in range(4):
        assert (Path(proven["path"]) / f"rng_state_{rank}.pth").exists(), text
    assert run_wtrain("stop", run.name, cwd=tmp_path, timeout_s=200).returncode == 0
    assert [node.result(300).returncode for node in job] == [77, 77], described(tmp_path)
    text = described(tmp_path)
    log = leaders(tmp_path)
    assert not signals(log), text
    assert not of_type(log, "checkpoints_shared"), text
    assert proofs(log, "stop")[0]["step"] > proven["step"], text
    assert {one["code"] for one in of_type(log, "attempt_exited")} == {0}, text
    assert_nothing_lives(tmp_path, text)
