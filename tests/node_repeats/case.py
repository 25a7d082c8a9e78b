"""One job of two nodes, and what is done to it."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.cut_link import Network
from tests.led import described, leader, logs, runs
from tests.nodes import NODES, Place, places, start_nodes
from tests.support import (
    MARKER,
    Event,
    RunningWtrain,
    marked_processes,
    of_type,
    wait_until,
)

STEPS = 60
STEP_S = 0.1
"""Beside a tenth of a second that each step takes anyhow."""
READY_S = 240.0
ENDED_S = 500.0
KINDS: dict[str, tuple[str, ...]] = {
    "kill": ("a rank", "torchrun", "a supervisor, adopted", "a supervisor, and a hang"),
    "hang": ("a rank sleeps",),
    "cut": ("a link", "a link, mended"),
    "healthy": ("rank 0 evaluates alone",),
}
"""What can be done, by kind; the cases of a kind take them in turn."""
SOFT_BUDGETS = 10
_LINE = re.compile(r"^(began|saved|fault|evaluated|finished)\b(.*)$", re.MULTILINE)


class MissedError(Exception):
    """The moment of the fault did not come in time: nothing was tried."""


@dataclass(frozen=True)
class Spec:
    """What happens in one case."""

    seed: int
    kind: str
    number: int

    @property
    def way(self) -> str:
        """Of KINDS."""
        ways = KINDS[self.kind]
        return ways[self.number % len(ways)]


@dataclass
class Case:
    """A job under way."""

    spec: Spec
    cwd: Path
    network: Network | None
    chance: random.Random
    at: list[Place] = field(default_factory=list)
    job: list[RunningWtrain] = field(default_factory=list)
    """Of each node, the newest command that supervises it."""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    struck_at: float | None = None
    """Unix time of the fault."""
    restarted: bool = False

    def start(self, *program: str) -> None:
        """Both nodes."""
        sizes = ("--steps", str(STEPS), "--step-s", str(STEP_S))
        if self.network is not None:
            self.at = self.network.places()
            self.job = self.network.start(self.cwd, *sizes, *program)
            return
        self.at = places()
        self.job = start_nodes(self.cwd, *sizes, *program, at=self.at)

    def random_moment(self, *, startup: bool = True) -> None:
        """Wait for one: while the ranks start, or after a step, and then up to a second more."""
        if startup and self.chance.random() < 0.2:
            self.pids_of_ranks()
            moment, rest_s = "while the ranks start", self.chance.uniform(0.0, 3.0)
        else:
            step = self.chance.randrange(1, STEPS * 2 // 3)
            moment, rest_s = f"after step {step}", self.chance.uniform(0.0, 1.0)
            self.until_step(step)
        self.notes.append(f"{moment} and {rest_s:.1f} s")
        time.sleep(rest_s)

    def until_step(self, step: int) -> None:
        """Wait for it on both nodes.

        Raises:
            MissedError: it has not come, and no node has ended; the machine is too slow.
        """
        try:
            self.until(lambda: self.least_step() >= step, f"every node is at step {step}")
        except AssertionError as error:
            if any(node.process.poll() is not None for node in self.job):
                raise
            raise MissedError(str(error)) from error

    def until(self, holds: Callable[[], object], why: str, timeout_s: float = READY_S) -> None:
        """Wait for it, but not when a node has ended."""

        def look() -> bool:
            for number, node in enumerate(self.job):
                code = node.process.poll()
                assert code in (None, 0), f"node {number} ended with {code} before {why}"
            return bool(holds())

        wait_until(look, timeout_s, why, poll_s=0.1)

    def least_step(self) -> int:
        """The step that every node has recorded."""
        found = logs(self.cwd).values()
        steps = [
            max((p["progress"]["step"] or 0 for p in progress(log)), default=0) for log in found
        ]
        return min(steps) if len(steps) == NODES else 0

    def pids_of_ranks(self) -> dict[int, int]:
        """Rank -> pid, once all four are there."""

        def all_four() -> dict[int, int]:
            found = {}
            for pid, command in marked_processes(os.environ[MARKER]).items():
                rank = variable(pid, "RANK") if "node_ranks.py" in command else None
                if rank is not None:
                    found[int(rank)] = pid
            return found if len(found) == 2 * NODES else {}

        return wait_until(all_four, READY_S, "all ranks are there", poll_s=0.1)

    def strike(self, pid: int, number: int) -> None:
        """Send a signal, and note when."""
        self.struck_at = time.time()
        os.kill(pid, number)

    def run_of(self, node: int) -> Path:
        """The run directory of a node."""
        return runs(self.cwd)[node]

    def codes(self) -> list[int]:
        """Of both nodes, when they have ended."""
        return [node.result(ENDED_S).returncode for node in self.job]

    def restart(self) -> None:
        """As an engine does that starts a job again."""
        began = time.time()
        before, name = self.launched(), self.run_of(0).name
        which = ("restart", "--node-rank")
        self.job = [
            place.start(self.cwd, *which, str(node), name) for node, place in enumerate(self.at)
        ]
        self.restarted = True
        self.until(lambda: self.launched() > before, "both are launched again")
        self.seconds["restarted"] = time.time() - began

    def launched(self) -> int:
        """The attempts that the leader has seen launched on both nodes."""
        seen = [one.get("host", "") for one in of_type(leader(self.cwd), "attempt_launched")]
        return min(seen.count(""), seen.count("node1"))

    def said(self) -> list[tuple[str, dict[str, str]]]:
        """What the ranks have said in all attempts, as the leader has it of both nodes."""
        found = []
        for path in sorted(self.run_of(0).glob("attempts/**/*.log")):
            for word, rest in _LINE.findall(path.read_text("utf-8", "replace")):
                pairs = (each.partition("=") for each in rest.split() if "=" in each)
                found.append((word, {name: value for name, _, value in pairs}))
        return found

    def describe(self) -> str:
        """Everything that a person needs to understand a failure."""
        return f"{described(self.cwd)}\n--- notes\n{self.notes}"


def progress(events: list[Event]) -> list[Event]:
    """Its samples."""
    return of_type(events, "progress")


def variable(pid: int, name: str) -> str | None:
    """Of the environment that a process was started with."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{name}=".encode()
    return next((e[len(prefix) :].decode() for e in entries if e.startswith(prefix)), None)
