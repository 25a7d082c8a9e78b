"""Jobs of two nodes of two ranks, each node under its own wtrain around its own torchrun.

Both are on this machine; where root may do so, each has a host name of its own, so that neither
supervisor can tell by its pid whether the other one lives.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.led import described
from tests.support import (
    PROGRAMS,
    CompletedRun,
    RunningWtrain,
    bin_path,
    free_port,
    start_wtrain,
    write_fast_config,
    wtrain_of,
)
from watchdog_train.supervisor.hands.link.peers import VARIABLE

NODES = 2
JOB = "job: {gather_s: 120, lost_s: 30}\n"
KEY = {VARIABLE: secrets.token_hex(32)}


def own_host(number: int) -> list[str]:
    """A command that gives what follows a host name of its own; empty where that is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        return []
    tried = subprocess.run([unshare, "--uts", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        return []
    return [unshare, "--uts", "sh", "-c", f'hostname node-{number}; exec "$@"', "sh"]


@dataclass(frozen=True)
class Place:
    """Where one node of a job runs."""

    prefix: tuple[str, ...] = ()
    """Before each of its commands."""
    address: str = "127.0.0.1"
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self, cwd: Path, *args: str) -> RunningWtrain:
        """A command of wtrain on this node."""
        wtrain = [*self.prefix, wtrain_of(cwd)]
        return start_wtrain(*args, cwd=cwd, env={**KEY, **self.env}, wtrain=wtrain)

    def run(self, cwd: Path, *args: str, timeout_s: float = 200.0) -> CompletedRun:
        """The same, to its end."""
        return self.start(cwd, *args).result(timeout_s)


def places(*, hosts: bool = True) -> list[Place]:
    """Two nodes in one network; with host names of their own where that is allowed."""
    return [Place(tuple(own_host(number)) if hosts else ()) for number in range(NODES)]


Launch = Callable[[int, Sequence[Place], int], Sequence[str]]
"""How node `number` of these starts its ranks, which meet at this port of the first."""


def c10d(number: int, at: Sequence[Place], port: int) -> Sequence[str]:
    """By a torchrun to which torch gives the numbers of its ranks."""
    return (
        *(str(bin_path("torchrun")), f"--nnodes={NODES}", "--nproc-per-node=2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={at[0].address}:{port}"),
        f"--local-addr={at[number].address}",
    )


def start_nodes(
    cwd: Path,
    *program: str,
    at: Sequence[Place] | None = None,
    port: int | None = None,
    script: Path = PROGRAMS / "node_ranks.py",
    options: tuple[str, ...] = (),
    ask_s: int = 10,
    job: str = JOB,
    launch: Launch = c10d,
) -> list[RunningWtrain]:
    """A job of two nodes; their launchers meet at this port of the first, or at one free now."""
    at = places() if at is None else at
    port = free_port() if port is None else port
    meet = f"tcp://{at[0].address}:{free_port()}"
    config = write_fast_config(cwd, job)
    config.write_text(config.read_text().replace("ask_s: 10", f"ask_s: {ask_s}"))
    return [
        place.start(
            cwd,
            *("run", "--config", str(config), "--resume-arg", "--resume {checkpoint}", *options),
            *("--nodes", str(NODES), "--node-rank", str(number), "--coordination", meet, "--"),
            *(*launch(number, at, port), str(script), *program),
        )
        for number, place in enumerate(at)
    ]


def ended(job: list[RunningWtrain], *codes: int, timeout_s: float = 280.0) -> str:
    """All that is known of a job whose nodes have ended with these codes, as text."""
    done = [node.result(timeout_s) for node in job]
    text = described(job[0].cwd)
    assert tuple(one.returncode for one in done) == codes, text
    return text
