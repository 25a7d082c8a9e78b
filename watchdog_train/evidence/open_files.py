"""What processes have open, and who writes to whom through a pipe. Only reads /proc."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchdog_train.system import proc

_FILES_CAP = 256


def open_files(pid: int) -> dict[str, Any]:
    """Open files by kind, the regular ones by name, and the inodes of sockets."""
    counts: dict[str, int] = {}
    names: list[str] = []
    sockets: list[str] = []
    entries = proc.numbers(pid, "fd")
    if entries is None:
        return {}
    for entry in entries[:_FILES_CAP]:
        target = proc.link(pid, f"fd/{entry}")
        if target is None:
            continue
        kind = target.partition(":")[0] if ":" in target else "file"
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "socket":
            sockets.append(target[len("socket:[") : -1])
        elif kind == "file" and (not target.startswith("/dev/") or "nvidia" in target):
            names.append(target[:300])
    return {
        "total": len(entries),
        "kinds": counts,
        "files": sorted(set(names))[:32],
        "sockets": sockets,
    }


def is_fed_by(pid: int, others: Iterable[int]) -> bool:
    """Whether one of these processes holds the writing end of the pipe that is its input.

    `python train.py | tee log`: tee waits for the training, not for a person.
    """
    pipe = proc.link(pid, "fd/0") or ""
    return pipe.startswith("pipe:") and any(
        file.name == pipe and file.writes
        for other in others
        for file in proc.open_files(other) or ()
    )
