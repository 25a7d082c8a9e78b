"""Names of processes that are not ours, for a person."""

from __future__ import annotations

import os
import sys

from watchdog_train.system.protocol import ProcessSystem

LONGEST_NAME = 40


def stranger(system: ProcessSystem, pid: int) -> str:
    """`pid 4242 (python, user alice)`; of the command only its name: arguments hold secrets."""
    known = []
    argv = system.command_line(pid)
    if argv:
        known.append(os.path.basename(argv[0])[:LONGEST_NAME])
    uid = system.user_id(pid)
    if uid is not None:
        known.append(f"user {user_name(uid)}")
    return f"pid {pid}" + (f" ({', '.join(known)})" if known else "")


def user_name(uid: int) -> str:
    """As the system calls it, else the number."""
    if sys.platform == "win32":
        return str(uid)
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name[:LONGEST_NAME]
    except (KeyError, OSError):
        return str(uid)
