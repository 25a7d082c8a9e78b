"""Control groups of version 2 that tests make, and see empty at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def hierarchy() -> Path:
    """Where the whole hierarchy is mounted; skips the test where it is not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, about = line.partition(" - ")
        if about.startswith("cgroup2 ") and mount.split()[3] == "/":
            return Path(mount.split()[4])
    pytest.skip("no hierarchy of version 2 is mounted here")


def removed(folder: Path, *, with_those_below: bool = False) -> bool:
    """A group goes only when nobody is in it and, unless they go too, none is below it."""
    below = os.walk(folder, topdown=False) if with_those_below else ()
    try:
        for each in (*(path for path, _, _ in below), folder):
            if os.path.isdir(each):
                os.rmdir(each)
    except OSError:
        return False
    return True
