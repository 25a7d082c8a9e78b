"""Two nodes in network namespaces of their own, and a link between them that is cut.

A cut is silent: no error anywhere, the ranks wait in a collective, torchrun in its store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cut_link import ADDRESSES, Network, NoNetworkError, two_networks
from tests.nodes import assert_nothing_lives, described, logs, wait_for_step
from tests.support import of_type, types, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(900),
]
BOUND_S = 30 + 30 + 60
"""job.lost_s, job.barrier_s and job.plan_s of these nodes: what a cut may take, beside the work."""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two nodes that reach each other and nobody else."""
    try:
        with two_networks(tmp_path) as found:
            yield found
    except NoNetworkError as error:
        pytest.skip(f"NOT RUN: {error}")


def test_a_cut_network_ends_both_sides_in_time(tmp_path: Path, network: Network) -> None:
    """Over a store nobody hears anybody: dumped, ended, and given back with 75, on both sides."""
    job = network.start(tmp_path, f"tcp://{ADDRESSES[0]}:29400", "--steps", "4000")
    wait_for_step(tmp_path, 12)
    network.cut()
    began = time.monotonic()
    codes = [node.result(500).returncode for node in job]
    took_s = time.monotonic() - began
    found, text = logs(tmp_path), described(tmp_path)
    assert codes == [75, 75], text
    assert took_s < 4 * BOUND_S, text
    print(f"both ended {took_s:.0f} s after the cut")
    for number, events in found.items():
        evidence = of_type(events, "evidence_collected")
        assert evidence, text
        assert evidence[0]["captured"] >= 3, text
        killed = [one["seq"] for one in of_type(events, "signalling") if one["targets"]]
        assert evidence[0]["seq"] < min(killed), text
        assert of_type(events, "barrier_missed")[0]["missing"] == [1 - number], text
        assert len(of_type(events, "attempt_launched")) == 1, text
    assert "the peers of this node cannot be told" in job[1].result(1).stderr, text
    assert_nothing_lives(found, text)
    wait_until(lambda: not network.pids().strip(), 10, "nothing lives in either namespace")


def test_a_network_that_comes_back_is_used_again(tmp_path: Path, network: Network) -> None:
    """Over a directory both sides still hear each other, and do the same.

    Where the ranks get on before anything was killed, nothing is; else all begin again together.
    """
    job = network.start(tmp_path, "meet", "--step-s", "0.5")
    wait_for_step(tmp_path, 12)
    network.cut()

    def stalled() -> bool:
        return all("stall_declared" in types(events) for events in logs(tmp_path).values())

    wait_until(stalled, 300, "both sides have said that it hangs")
    network.mend()
    codes = [node.result(500).returncode for node in job]
    found, text = logs(tmp_path), described(tmp_path)
    assert codes == [0, 0], text
    ways = set()
    for events in found.values():
        assert "barrier_missed" not in types(events), text
        attempts = len(of_type(events, "attempt_launched"))
        ways.add((attempts, bool(of_type(events, "stall_recovered"))))
    assert ways in ({(1, True)}, {(2, False)}), text
    said = "\n".join(node.result(1).stdout for node in job)
    assert said.count("finished rank=") == 4, text
    assert_nothing_lives(found, text)
    wait_until(lambda: not network.pids().strip(), 10, "nothing lives in either namespace")
