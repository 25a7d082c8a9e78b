"""Facts about the machine: memory, swap, load, disk, /dev/shm, kills by the memory killer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from watchdog_train.core.diagnosis.facts import HostFacts
from watchdog_train.system.cgroup import oom_kills


def collect(paths: Sequence[str], oom_kills_before: int | None) -> tuple[HostFacts, dict[str, Any]]:
    """Facts for rules, and everything for host.json. `paths`: places whose disks are read."""
    memory = _memory()
    kills = oom_kills()
    since_start = kills is not None and oom_kills_before is not None
    disks = {path: _disk(path) for path in (*paths, "/dev/shm") if os.path.isdir(path)}  # noqa: S108
    shm = disks.get("/dev/shm")  # noqa: S108
    cores = os.cpu_count() or 1
    load: tuple[float, ...] | None = None
    if sys.platform != "win32":
        with suppress(OSError):
            load = os.getloadavg()
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    swap, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    facts = HostFacts(
        oom_kills=kills - (oom_kills_before or 0) if kills is not None else None,
        oom_since_start=since_start,
        shm_used_share=shm["used_share"] if shm else None,
        memory_available_share=available / total if total and available is not None else None,
        swap_used_share=1 - swap_free / swap if swap and swap_free is not None else None,
        load_per_core=load[0] / cores if load else None,
    )
    details = {
        "memory_bytes": memory,
        "load": load,
        "cores": cores,
        "disks": disks,
        "oom_kills": kills,
        "oom_kills_before": oom_kills_before,
    }
    return facts, details


def _memory() -> dict[str, int]:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "MemTotal": memory.total,
        "MemAvailable": memory.available,
        "SwapTotal": swap.total,
        "SwapFree": swap.free,
    }


def _disk(path: str) -> dict[str, Any] | None:
    if sys.platform == "win32":
        return None
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return {
        "total_bytes": total,
        "free_bytes": free,
        "used_share": 1 - free / total if total else None,
        "inodes_free": status.f_favail,
    }
