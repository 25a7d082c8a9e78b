"""Measures a collection over many processes: `python scripts/bench/evidence.py [PROCESSES] [RUNS]`.

Prints the median of several runs for both modes, and what reading the waits alone costs: of all
threads, and of the deciding ones. Starts sleeping Pythons of 30 threads and ends them.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from watchdog_train.core.diagnosis.facts import BundleVerdict
from watchdog_train.core.model import Member
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.request import EvidenceRequest
from watchdog_train.system.waits import WaitReader

_READY_S = 60.0


def main() -> None:
    """Starts, measures, prints, ends."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    code = (
        "import threading, time\n"
        "for _ in range(29): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(1, flush=True); time.sleep(3600)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)
    ]
    try:
        until = time.monotonic() + _READY_S
        for child in children:
            if child.stdout is None or time.monotonic() > until or not child.stdout.readline():
                raise SystemExit("the processes did not start in time")
        members = tuple(
            Member(pid=child.pid, start=0, role="worker" if at % 5 else "rank", rank=at // 5)
            for at, child in enumerate(children)
        )
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        for name, only in (("all threads", False), ("deciding threads", True)):
            costs = [_waits([child.pid for child in children], only=only) for _ in range(runs)]
            cpu_ms = [cost_s * 1e3 for cost_s, _ in costs]
            print(
                f"waits of {name}: {costs[0][1]} threads, median {statistics.median(cpu_ms):.1f} "
                f"ms of a core ({min(cpu_ms):.1f}-{max(cpu_ms):.1f})"
            )
        for mode in ("look", "full"):
            results = [_once(mode, members) for _ in range(runs)]
            seconds = [passed for passed, _ in results]
            print(
                f"{mode}: {count} processes, median {statistics.median(seconds):.2f} s of {runs} "
                f"({min(seconds):.2f}-{max(seconds):.2f}), captured {[got for _, got in results]}"
            )
    finally:
        for child in children:
            child.kill()
            child.wait()


def _waits(pids: list[int], *, only: bool) -> tuple[float, int]:
    started, reader = time.process_time(), WaitReader()
    read = sum(len(reader.threads(pid, [pid] if only else None)) for pid in pids)
    return time.process_time() - started, read


def _once(mode: str, members: tuple[Member, ...]) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        result = collect(
            EvidenceRequest(
                mode="look" if mode == "look" else "full",
                verdict=BundleVerdict(id="0001", why="manual", at=0.0),
                out_dir=str(Path(folder) / "out"),
                staging_dir=str(Path(folder) / "staging"),
                members=members,
            )
        )
        return time.monotonic() - started, result.captured


if __name__ == "__main__":
    main()
