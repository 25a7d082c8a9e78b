"""Memory and processor time of the supervisor, the keeper and all helpers beside many processes.

    python scripts/bench/footprint.py [--processes 8 320] [--seconds 30] [--runs 3]

The processes are a real tree under a real run: one in five, and at most 256, is a rank that steps
ten times a second through `watchdog_train.beat`, the others are its workers.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measured import WTRAIN, Row, bare_environment, machine, table

TREE = """
import os, sys, time
count = int(sys.argv[1])
world = max(1, min(256, -(-(count - 1) // 5)))
import watchdog_train as wt

def rank(number, workers):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world))
    for _ in range(workers):
        if os.fork() == 0:
            time.sleep(3600)
    step = 0
    while True:
        step += 1
        wt.beat(step)
        time.sleep(0.1)

ours = count - 1 - world
if count == 1:
    open("ready", "w").close()
    rank(0, 0)
for number in range(world):
    if os.fork() == 0:
        rank(number, ours // world + (number < ours % world))
open("ready", "w").close()
time.sleep(3600)
"""
BUDGETS = {8: (45.0, 0.2), 320: (45.0, 1.5)}
READY_S = 60.0
SETTLE_S = 135.0
"""Until looks are as far apart as in a calm run."""


def rows(counts: tuple[int, ...], seconds: float, runs: int) -> list[Row]:
    """MiB and per cent of a core for each number of processes."""
    found = []
    for count in counts:
        memory: list[float] = []
        cpu: list[float] = []
        parts: list[str] = []
        for _ in range(runs):
            mib, share, words = _once(count, seconds)
            memory.append(mib)
            cpu.append(share)
            parts.append(words)
        budget_mib, budget_cpu = BUDGETS.get(count, (None, None))
        found += [
            Row(f"memory beside {count} processes", memory, "MiB", budget_mib, parts[-1]),
            Row(
                f"processor time beside {count} processes",
                cpu,
                "% of a core",
                budget_cpu,
                f"over {seconds:.0f} s each",
            ),
        ]
    return found


def _once(count: int, seconds: float) -> tuple[float, float, str]:
    with tempfile.TemporaryDirectory() as place:
        env = {**bare_environment(), "XDG_STATE_HOME": f"{place}/state"}
        Path(f"{place}/tree.py").write_text(TREE)
        supervisor = subprocess.Popen(
            [WTRAIN, "run", "--", sys.executable, "tree.py", str(count)],
            cwd=place,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + READY_S
            while not Path(f"{place}/ready").exists():
                if time.monotonic() > deadline or supervisor.poll() is not None:
                    raise SystemExit("the tree did not start in time")
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            children = Path(f"/proc/{supervisor.pid}/task").glob("*/children")
            pids = [
                supervisor.pid,
                *(int(pid) for one in children for pid in one.read_text().split()),
            ]
            before, began = [_cpu_s(pid) for pid in pids], time.monotonic()
            time.sleep(seconds)
            spent = [_cpu_s(pid) - old for pid, old in zip(pids, before, strict=True)]
            share = 100.0 * sum(spent) / (time.monotonic() - began)
            own = [_own_mib(pid) for pid in pids]
        finally:
            for _ in range(2):
                supervisor.send_signal(signal.SIGTERM)
                time.sleep(0.5)
            supervisor.communicate(timeout=60)
        words = f"supervisor {own[0]:.0f}, keeper {own[1]:.0f}, {len(own) - 2} helpers"
        return sum(own), share, words


def _cpu_s(pid: int) -> float:
    """Of all its threads, finer than clock ticks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _own_mib(pid: int) -> float:
    """Resident memory, shared libraries counted in full."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 320])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(table(rows(tuple(options.processes), options.seconds, options.runs)))


if __name__ == "__main__":
    main()
