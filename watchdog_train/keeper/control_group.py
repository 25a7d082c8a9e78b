"""Linux: the keeper puts itself into a control group of its own: all it starts is born there.

Only where the supervisor's group was given to it to divide; see system/control_group.py.
"""

from __future__ import annotations

import os
from contextlib import suppress


def enter(path: str) -> str | None:
    """Be in a new group; why not, if that fails: the training goes on without."""
    with suppress(OSError):  # an empty one: of a keeper that was killed while it started
        os.rmdir(path)
    try:
        os.mkdir(path, 0o755)  # one that is there already is somebody else's
    except OSError as error:
        return f"{path} cannot be made: {error.strerror}"
    try:
        with open(f"{path}/cgroup.procs", "wb", buffering=0) as procs:
            procs.write(b"0")  # the writer itself
    except OSError as error:
        os.rmdir(path)
        return f"{path} cannot be entered: {error.strerror}"
    return None
