"""How much a machine has swapped, as Linux tells it; unknown elsewhere."""

from __future__ import annotations

import mmap

from watchdog_train.system import proc


def swap_bytes() -> int | None:
    """Read from and written to swap since boot; None where it is not told."""
    pages = None
    for line in (proc.text("/proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("pswpin", "pswpout") and value.isdigit():
            pages = (pages or 0) + int(value)
    return None if pages is None else pages * mmap.PAGESIZE
