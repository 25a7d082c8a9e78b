"""What one look at the processes costs: medians over many looks, with few and with many processes.

Run: python scripts/bench/snapshot.py [--processes 8 320] [--looks 100]
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import time

from watchdog_train.core.model import ProcessId
from watchdog_train.system.linux import LinuxSystem
from watchdog_train.system.portable import PortableSystem
from watchdog_train.system.protocol import ProcessSystem


def look_ms(system: ProcessSystem, known: list[ProcessId], looks: int) -> tuple[float, float]:
    """Median and longest look in milliseconds; the longest is a full one."""
    times = []
    for _ in range(looks):
        began = time.perf_counter()
        rows = system.snapshot(known)
        times.append((time.perf_counter() - began) * 1000)
        assert all(who.pid in rows for who in known)
    return statistics.median(times), max(times)


def measure(count: int, looks: int) -> None:
    """Start processes, look at them, end them."""
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        for system in (LinuxSystem(), PortableSystem()):
            known = [who for p in sleepers if (who := system.identity(p.pid)) is not None]
            before = resource.getrusage(resource.RUSAGE_SELF)
            median, longest = look_ms(system, known, looks)
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_ms = 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            began = time.perf_counter()
            moved = system.tcp_bytes(who.pid for who in known)
            tcp_ms = (time.perf_counter() - began) * 1000
            tcp = "unknown" if moved is None else f"{tcp_ms:.2f} ms"
            print(
                f"{count:4} processes  {system.name:9}  median {median:7.2f} ms  "
                f"longest {longest:7.2f} ms  CPU at one look a second "
                f"{cpu_ms / looks / 10:.3f} % of a core  tcp_bytes {tcp}"
            )
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()


def main() -> None:
    """Print one line for each number of processes and each implementation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 320])
    parser.add_argument("--looks", type=int, default=100)
    options = parser.parse_args()
    others = len(LinuxSystem().all_processes())
    print(
        f"Linux {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{others} other processes, {options.looks} looks each"
    )
    for count in options.processes:
        measure(count, options.looks)


if __name__ == "__main__":
    main()
