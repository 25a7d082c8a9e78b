"""Other supervisors on this machine: where their pids mean something, and how one is replaced."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from watchdog_train.core.actions import TakeOver
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.system import proc
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import open_regular


def machine_of(system: ProcessSystem) -> str:
    """Within which the number of a process means something: host, boot and pid namespace."""
    namespace = proc.link("self", "ns/pid") or ""
    return f"{socket.gethostname()}/{system.boot_id() or ''}/{namespace}"


def replace_supervisor(action: TakeOver, children: ChildTable) -> str | None:
    """Start `wtrain adopt` for its run; what it says goes into that run's directory.

    Returns:
        Why it could not be started, None when it was.
    """
    run_dir = Path(action.run_dir)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(open_regular(run_dir / "adopted.log", flags), "ab") as said:
            child = children.spawn(
                [sys.executable, "-I", "-m", "watchdog_train", "adopt", str(run_dir)],
                name=f"take-over-{action.task}",
                deadline_s=None,
                stdout=said,
                stderr=said,
            )
    except OSError as error:
        return str(error)
    children.release(child)  # it outlives us, and its run is its own
    return None
