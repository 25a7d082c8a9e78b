"""The cgroups of a process, version 2 or 1: kills, use, limit, cached files; its freezer."""

from __future__ import annotations

import mmap
import os

from watchdog_train.system import proc

_CGROUP_ROOT = "/sys/fs/cgroup"
_UNIFIED = "/sys/fs/cgroup/unified"  # version 2 next to version 1
_MOST_LEVELS = 32


def oom_kills() -> int | None:
    """Kills by the memory killer in our own cgroup so far; None if unknown."""
    for folder in _folders("self", "memory"):
        for name in ("memory.events", "memory.oom_control"):
            counts = _counts(f"{folder}/{name}")
            if counts is not None:
                return counts.get("oom_kill")
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
    """Cached files in the `used` of cgroup_memory(), which the kernel frees when needed."""
    for folder in _folders("self", "memory"):
        counts = _counts(f"{folder}/memory.stat") or {}
        found = [counts[name] for name in ("active_file", "inactive_file") if name in counts]
        if found:
            return sum(found)
    return 0


def _counts(path: str) -> dict[str, int] | None:
    """A file of lines `name number`; None where it cannot be read."""
    text = proc.text(path)
    if text is None:
        return None
    words = (line.split() for line in text.splitlines())
    return {w[0].rstrip(":"): int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def swap_bytes() -> int | None:
    """Read from and written to swap since boot; None if unknown."""
    counts = _counts("/proc/vmstat") or {}
    pages = [counts[name] for name in ("pswpin", "pswpout") if name in counts]
    return sum(pages) * mmap.PAGESIZE if pages else None
