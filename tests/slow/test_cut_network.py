"""Two nodes in network namespaces of their own, and a link between them that is cut.

A cut is silent: no error anywhere, the ranks wait in a collective, torchrun in its store.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.scenarios.test_nodes import (
    JOB,
    assert_nothing_lives,
    described,
    logs,
    wait_for_step,
)
from tests.support import (
    PROGRAMS,
    RunningWtrain,
    bin_path,
    of_type,
    start_wtrain,
    types,
    wait_until,
    write_fast_config,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(900),
]
ADDRESSES = ("10.99.0.1", "10.99.0.2")
OWN = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'  # no reverse look-ups
BOUND_S = 30 + 30 + 60
"""job.lost_s, job.barrier_s and job.plan_s of these nodes: what a cut may take, beside the work."""


@dataclass
class Network:
    """Two namespaces and the link between them."""

    names: tuple[str, str]
    hosts: Path

    def prefix(self, node: int) -> list[str]:
        """A command that gives what follows this node's network and host name."""
        inside = ["ip", "netns", "exec", self.names[node], "unshare", "--uts", "--mount"]
        return [*inside, "sh", "-c", OWN, "sh", str(self.hosts), f"node-{node}"]

    def cut(self) -> None:
        _ip("-n", self.names[1], "link", "set", self.names[1], "down")

    def mend(self) -> None:
        _ip("-n", self.names[1], "link", "set", self.names[1], "up")

    def pids(self) -> str:
        return "".join(_ip("netns", "pids", name) for name in self.names)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two nodes that reach each other and nobody else."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("NOT RUN: only root can make network namespaces, with ip of iproute2")
    names = (f"wt{os.getpid()}a", f"wt{os.getpid()}b")
    hosts = tmp_path / "hosts"
    lines = [f"{address} node-{number}\n" for number, address in enumerate(ADDRESSES)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], check=False).returncode != 0:
                pytest.skip("NOT RUN: no network namespaces here")
            made.append(name)
        _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("link", "set", name, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            for device in (name, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield Network(names, hosts)
    finally:
        for name in made:  # the devices go with them
            subprocess.run(["ip", "netns", "del", name], check=False)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def start(cwd: Path, network: Network, meet: str, *program: str) -> list[RunningWtrain]:
    config = write_fast_config(cwd, JOB)
    return [
        start_wtrain(
            *("run", "--config", str(config), "--resume-arg", "--resume {checkpoint}"),
            *("--nodes", "2", "--node-rank", str(number), "--coordination", meet, "--"),
            *(str(bin_path("torchrun")), "--nnodes=2", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29500"),
            *(f"--local-addr={address}", str(PROGRAMS / "node_ranks.py"), *program),
            cwd=cwd,
            env={"GLOO_SOCKET_IFNAME": network.names[number]},
            wtrain=[*network.prefix(number), str(bin_path("wtrain"))],
        )
        for number, address in enumerate(ADDRESSES)
    ]


def test_a_cut_network_ends_both_sides_in_time(tmp_path: Path, network: Network) -> None:
    """Over a store nobody hears anybody: dumped, ended, and given back with 75, on both sides."""
    job = start(tmp_path, network, f"tcp://{ADDRESSES[0]}:29400", "--steps", "4000")
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
    job = start(tmp_path, network, "meet", "--step-s", "0.5")
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
