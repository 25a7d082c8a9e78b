"""What is there beside the training to come: others that run already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping

import psutil

from watchdog_train.doctor import Check
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.store.registry import LiveRun, live_runs
from watchdog_train.system import proc

MOST_NAMED = 4
MAPS_CAP_BYTES = 4 << 20
COMMAND_CAP = 80
_TORCH = b"/libtorch_cpu."
_STORE_PROGRAM = "/watchdog_train/store_process.py"


def around(boot_id: str | None) -> Iterator[Check]:
    """All of them."""
    yield from runs(live_runs(boot_id=boot_id))
    yield from trainings(find_trainings())


def runs(found: Iterable[LiveRun]) -> Iterator[Check]:
    """Runs of wtrain that nobody watches over, and how many are watched."""
    left = [run.run_id for run in found if run.supervised is False]
    if left:
        named = ", ".join(left[:MOST_NAMED]) + (" and more" if len(left) > MOST_NAMED else "")
        yield Check(
            name="runs",
            status="warning",
            says=f"{len(left)} of wtrain's runs have no supervisor: {named}",
            mend="wtrain status RUN; wtrain adopt RUN goes on, wtrain stop RUN ends what is left",
        )


def find_trainings() -> dict[int, str]:
    """Processes of this user with torch, without those of wtrain's living runs: what each runs.

    Only Linux tells what a process has loaded; elsewhere nothing is found.
    """
    found: dict[int, str] = {}
    if sys.platform != "linux":
        return found
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid() or process.pid == os.getpid():
                continue
            if not _has_torch(process.pid) or "WTRAIN_RUN_ID" in process.environ():
                continue
            parent = process.parent()
            if parent is not None and parent.pid != os.getpid() and _has_torch(parent.pid):
                continue  # a worker; its main process is named
            command = process.cmdline()
            if any(word.endswith(_STORE_PROGRAM) for word in command[1:3]):
                continue  # beside a supervisor of several nodes; of any installation of wtrain
            words = " ".join(redact_argv(command))
            shown = "".join(c if c.isprintable() else "?" for c in words[:COMMAND_CAP])
            found[process.pid] = shown + (", its parent is gone" if process.ppid() == 1 else "")
        except (psutil.Error, OSError, AttributeError):
            continue  # gone meanwhile, or not ours
    return found


def _has_torch(pid: int) -> bool:
    return _TORCH in (proc.read(f"/proc/{pid}/maps", MAPS_CAP_BYTES) or b"")


def trainings(others: Mapping[int, str]) -> Iterator[Check]:
    """Others that would share GPUs, memory and ports with the one to come."""
    if not others:
        return
    shown = list(others.items())[:MOST_NAMED]
    named = "; ".join(f"pid {pid} ({words})" for pid, words in shown)
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    yield Check(
        name="other trainings",
        status="warning",
        says=f"{len(others)} run already, not under wtrain: {named}{more}",
        mend="they share CPU, memory and GPU with the next one: end what nobody needs (kill PID)",
    )
