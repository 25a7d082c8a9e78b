"""Two network namespaces and a link between them that can be cut: two nodes on one machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.nodes import JOB, Launch, Place, c10d, start_nodes
from tests.support import RunningWtrain

ADDRESSES = ("10.99.0.1", "10.99.0.2")
OWN = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'  # no reverse look-ups


@dataclass(frozen=True)
class Network:
    """Two namespaces and the link between them."""

    names: tuple[str, str]
    hosts: Path

    def places(self) -> list[Place]:
        """The nodes: network, host name and the device of gloo."""
        return [
            Place(
                (
                    *("ip", "netns", "exec", name, "unshare", "--uts", "--mount"),
                    *("sh", "-c", OWN, "sh", str(self.hosts), f"node-{number}"),
                ),
                address,
                {"GLOO_SOCKET_IFNAME": name},
            )
            for number, (name, address) in enumerate(zip(self.names, ADDRESSES, strict=True))
        ]

    def start(
        self, cwd: Path, *program: str, job: str = JOB, launch: Launch = c10d
    ) -> list[RunningWtrain]:
        """A job of these two nodes."""
        return start_nodes(cwd, *program, at=self.places(), port=29500, job=job, launch=launch)

    def cut(self) -> None:
        _ip("-n", self.names[1], "link", "set", self.names[1], "down")

    def mend(self) -> None:
        _ip("-n", self.names[1], "link", "set", self.names[1], "up")

    def pids(self) -> str:
        """Of whatever lives in either of them."""
        return "".join(_ip("netns", "pids", name) for name in self.names)


class NoNetworkError(Exception):
    """Why there can be none here."""


@contextlib.contextmanager
def two_networks(folder: Path) -> Iterator[Network]:
    """Two nodes that reach each other and nobody else.

    Raises:
        NoNetworkError: only root can make network namespaces, with iproute2, where the kernel lets.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNetworkError("only root can make network namespaces, with ip of iproute2")
    names = (f"wt{os.getpid()}a", f"wt{os.getpid()}b")
    hosts = folder / "hosts"
    lines = [f"{address} node-{number}\n" for number, address in enumerate(ADDRESSES)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], check=False).returncode != 0:
                raise NoNetworkError("no network namespaces here")
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
