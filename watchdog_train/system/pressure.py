"""How short a machine is of memory, storage and CPU, as Linux tells it; unknown elsewhere."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from watchdog_train.core.model import HostLoad
from watchdog_train.system import proc


def host_load() -> HostLoad:
    """The machine now; three files of a few lines, and one of a few hundred."""
    return HostLoad(
        swap_bytes=swap_bytes(),
        memory_pressure=_pressure("memory"),
        io_pressure=_pressure("io"),
        cpu_pressure=_pressure("cpu"),
    )


def swap_bytes() -> int | None:
    """Read from and written to swap since boot; None where it is not told."""
    pages = None
    for line in (proc.text("/proc/vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("pswpin", "pswpout") and value.isdigit():
            pages = (pages or 0) + int(value)
    return None if pages is None else pages * _page_size()


def _page_size() -> int:
    if sys.platform != "win32":
        with suppress(OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE")
    return 4096


def _pressure(what: str) -> float | None:
    """Per cent of the last minute in which some process waited; needs CONFIG_PSI."""
    first = (proc.text(f"/proc/pressure/{what}") or "").partition("\n")[0]
    for field in first.split():
        name, _, value = field.partition("=")
        if name == "avg60":
            with suppress(ValueError):
                return float(value)
    return None
