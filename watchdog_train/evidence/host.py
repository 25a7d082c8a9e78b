"""Facts about the machine: memory, swap, load, disk, /dev/shm, kills by the memory killer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from watchdog_train.core.diagnosis.facts import HostFacts
from watchdog_train.system import proc

_CGROUP_ROOT = "/sys/fs/cgroup"
_MOST_LEVELS = 32


def oom_kills(pid: int | str = "self") -> int | None:
    """Kills by the memory killer in the cgroup of a process so far; None where it does not tell."""
    for folder in _memory_folders(pid):
        for name in ("memory.events", "memory.oom_control"):
            text = proc.text(f"{folder}/{name}")
            if text is not None:
                return _value(text, "oom_kill")
    return None


def _memory_folders(pid: int | str) -> list[str]:
    """Where the memory cgroup of a process may have its files, version 2 or 1, its own first."""
    found = []
    for line in (proc.text(f"/proc/{pid}/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if hierarchy == "0":
            root = _CGROUP_ROOT
        elif "memory" in controllers.split(","):
            root = f"{_CGROUP_ROOT}/memory"
        else:
            continue
        # A group without files of its own counts to the next one above that has them. In a
        # container the path may be the host's, and the root is the container's own.
        words = [word for word in path.split("/") if word][:_MOST_LEVELS]
        found += ["/".join((root, *words[:depth])) for depth in range(len(words), -1, -1)]
    return found


_USED = ("memory.current", "memory.usage_in_bytes")
_NO_LIMIT = 1 << 62


def cgroup_memory(pid: int | str = "self") -> dict[str, int | None] | None:
    """Memory of the container of a process: used, its limit (None: no limit), swap; in bytes."""
    uses = (f"{folder}/{name}" for folder in _memory_folders(pid) for name in _USED)
    folder = next((os.path.dirname(path) for path in uses if os.path.exists(path)), None)
    if folder is None:
        return None
    names = {
        "used_bytes": _USED,
        "limit_bytes": ("memory.max", "memory.limit_in_bytes"),
        "swap_bytes": ("memory.swap.current",),
    }
    found: dict[str, int | None] = {}
    for key, files in names.items():
        texts = (proc.text(f"{folder}/{name}") for name in files)
        text = next(filter(None, texts), "").strip()
        found[key] = int(text) if text.isdigit() and int(text) < _NO_LIMIT else None
    return found


def cgroup_cache_bytes(pid: int | str = "self") -> int:
    """Of what cgroup_memory() calls used: cached files, which the kernel gives back when needed."""
    for folder in _memory_folders(pid):
        found = {}
        for line in (proc.text(f"{folder}/memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("active_file", "inactive_file") and value.strip().isdigit():
                found[name] = int(value)
        if found:
            return sum(found.values())
    return 0


def pressure() -> dict[str, str]:
    """Share of time in which something, or everything, waited for memory, disk or CPU."""
    found = {}
    for name in ("memory", "io", "cpu"):
        text = proc.text(f"/proc/pressure/{name}", 1024)
        if text:
            found[name] = text.strip().replace("\n", "; ")
    return found


def _value(text: str | None, key: str) -> int | None:
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name.rstrip(":") == key:
            number = value.split()[0] if value.split() else ""
            return int(number) if number.isdigit() else None
    return None


def collect(paths: Sequence[str], oom_kills_before: int | None) -> tuple[HostFacts, dict[str, Any]]:
    """What rules may ask, and everything for host.json. `paths`: whose disks to look at."""
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
    free = [disk["free_bytes"] for path, disk in disks.items() if disk and path != "/dev/shm"]  # noqa: S108
    facts = HostFacts(
        oom_kills=kills - (oom_kills_before or 0) if kills is not None else None,
        oom_since_start=since_start,
        shm_used_share=shm["used_share"] if shm else None,
        memory_available_share=available / total if total and available is not None else None,
        swap_used_share=1 - swap_free / swap if swap and swap_free is not None else None,
        load_per_core=load[0] / cores if load else None,
        disk_free_bytes=min(free) if free else None,
    )
    details = {
        "memory_bytes": memory,
        "load": load,
        "cores": cores,
        "disks": disks,
        "oom_kills": kills,
        "oom_kills_before": oom_kills_before,
        "cgroup_memory": cgroup_memory(),
        "pressure": pressure(),
    }
    return facts, details


def _memory() -> dict[str, int]:
    wanted = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem", "Dirty", "Writeback")
    found = {}
    for name, value in proc.fields("/proc/meminfo").items():
        if name in wanted and value.split() and value.split()[0].isdigit():
            found[name] = int(value.split()[0]) * 1024
    return found or _psutil_memory()


def _psutil_memory() -> dict[str, int]:
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
