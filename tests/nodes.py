"""Jobs of two nodes of two ranks, each node under its own wtrain around its own torchrun.

Both are on this machine; where root may do so, each has a host name of its own, so that neither
supervisor can tell by its pid whether the other one lives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import (
    PROGRAMS,
    Event,
    RunningWtrain,
    bin_path,
    free_port,
    is_alive,
    of_type,
    outline,
    read_log,
    run_directories,
    start_wtrain,
    wait_until,
    write_fast_config,
)

NODES = 2
JOB = "job: {gather_s: 90, plan_s: 60, lost_s: 30}\n"


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
        wtrain = [*self.prefix, str(bin_path("wtrain"))]
        return start_wtrain(*args, cwd=cwd, env=self.env, wtrain=wtrain)


def places(*, hosts: bool = True) -> list[Place]:
    """Two nodes in one network; with host names of their own where that is allowed."""
    return [Place(tuple(own_host(number)) if hosts else ()) for number in range(NODES)]


def start_nodes(
    cwd: Path,
    *program: str,
    hosts: bool = True,
    options: tuple[str, ...] = (),
    meet: str = "meet",
    at: Sequence[Place] | None = None,
    port: int | None = None,
    script: Path = PROGRAMS / "node_ranks.py",
    ask_s: int = 10,
    job: str = JOB,
) -> list[RunningWtrain]:
    """A job of two nodes; its torchruns meet at this port of the first, or at one free now."""
    at = places(hosts=hosts) if at is None else at
    port = free_port() if port is None else port
    config = write_fast_config(cwd, job)
    config.write_text(config.read_text().replace("ask_s: 10", f"ask_s: {ask_s}"))
    return [
        place.start(
            cwd,
            *("run", "--config", str(config), "--resume-arg", "--resume {checkpoint}", *options),
            *("--nodes", str(NODES), "--node-rank", str(number), "--coordination", meet, "--"),
            *(str(bin_path("torchrun")), f"--nnodes={NODES}", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={at[0].address}:{port}"),
            *(f"--local-addr={place.address}", str(script), *program),
        )
        for number, place in enumerate(at)
    ]


def logs(cwd: Path) -> dict[int, list[Event]]:
    """The event log of each node."""
    found = {}
    for path in run_directories(cwd):
        events = read_log(path)
        for joined in of_type(events, "task_joined")[:1]:
            found[joined["task"]["task"]] = events
    return dict(sorted(found.items()))


def described(cwd: Path) -> str:
    parts = [f"--- node {n}\n{outline(events)}" for n, events in sorted(logs(cwd).items())]
    errors = [path.read_text("utf-8", "replace")[-1500:] for path in cwd.glob(".command-*.err")]
    return "\n".join([*parts, *errors])


def ended(
    job: list[RunningWtrain], *codes: int, timeout_s: float = 280.0
) -> tuple[dict[int, list[Event]], str]:
    """The event log of each node of a job that ended with these codes, and all of it as text."""
    done = [node.result(timeout_s) for node in job]
    text = described(job[0].cwd)
    assert tuple(one.returncode for one in done) == codes, text
    return logs(job[0].cwd), text


def wait_for_step(cwd: Path, step: int) -> None:
    """Until every node has got so far."""

    def there() -> bool:
        reached = [
            max((one["progress"]["step"] or 0 for one in of_type(log, "progress")), default=0)
            for log in logs(cwd).values()
        ]
        return len(reached) == NODES and min(reached) >= step

    wait_until(there, 240, f"every node is at step {step}")


def assert_nothing_lives(found: dict[int, list[Event]], text: str) -> None:
    for events in found.values():
        members = {one["pid"] for each in of_type(events, "progress") for one in each["members"]}
        left = [pid for pid in members if is_alive(pid)]
        assert not left, text
