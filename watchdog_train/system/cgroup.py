"""The cgroups of a process, version 2 or 1: kills, use, limit, cached files; its freezer."""

from __future__ import annotations

import mmap
import os

from watchdog_train.system import proc

_CGROUP_ROOT = "/sys/fs/cgroup"
_UNIFIED = "/sys/fs/cgroup/unified"  # version 2 beside version 1
_MOST_LEVELS = 32


def oom_kills() -> int | None:
    """Kills by the memory killer in our own cgroup so far; None where it does not tell."""
    for folder in _folders("self", "memory"):
        for name in ("memory.events", "memory.oom_control"):
            text = proc.text(f"{folder}/{name}")
            if text is not None:
                return _value(text, "oom_kill")
    return None


def frozen_by(pid: int) -> str | None:
    """The file that has frozen a process, with its cgroup or one above, and thaws it."""
    for folder in _folders(pid, "freezer"):
        old = folder.startswith(f"{_CGROUP_ROOT}/freezer")
        sign = "freezer.self_freezing" if old else "cgroup.freeze"
        if (proc.read(f"{folder}/{sign}", proc.SMALL_BYTES) or b"").strip() == b"1":
            return f"{folder}/{'freezer.state' if old else sign}"
    return None


def _folders(pid: int | str, controller: str) -> list[str]:
    """Where the cgroup of a process may have files of a controller, its own first."""
    found = []
    for line in (proc.text(f"/proc/{pid}/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if hierarchy == "0":
            roots = [_CGROUP_ROOT, _UNIFIED]
        elif controller in controllers.split(","):
            roots = [f"{_CGROUP_ROOT}/{controller}"]
        else:
            continue
        # A group without files of its own counts to the next one above that has them. In a
        # container the path may be the host's, and the root is the container's own.
        words = [word for word in path.split("/") if word][:_MOST_LEVELS]
        words = [] if ".." in words else words  # above what this namespace shows
        for root in roots:
            found += ["/".join((root, *words[:depth])) for depth in range(len(words), -1, -1)]
    return found


_USED = ("memory.current", "memory.usage_in_bytes")
_NO_LIMIT = 1 << 62


def cgroup_memory() -> dict[str, int | None] | None:
    """Memory of our container: used, its limit (None: no limit), swap; in bytes."""
    uses = (f"{folder}/{name}" for folder in _folders("self", "memory") for name in _USED)
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


def cgroup_cache_bytes() -> int:
    """Of what cgroup_memory() calls used: cached files, which the kernel gives back when needed."""
    for folder in _folders("self", "memory"):
        found = {}
        for line in (proc.text(f"{folder}/memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("active_file", "inactive_file") and value.strip().isdigit():
                found[name] = int(value)
        if found:
            return sum(found.values())
    return 0


def _value(text: str | None, key: str) -> int | None:
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name.rstrip(":") == key:
            number = value.split()[0] if value.split() else ""
            return int(number) if number.isdigit() else None
    return None


def swap_bytes() -> int | None:
    """Read from and written to swap since boot; None where it is not told."""
    pages = None
    for line in (proc.text("/proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("pswpin", "pswpout") and value.isdigit():
            pages = (pages or 0) + int(value)
    return None if pages is None else pages * mmap.PAGESIZE
