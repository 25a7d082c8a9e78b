"""What is there beside the training to come: others that run already, the clock, OpenMP twice."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator

import msgspec
import psutil

from watchdog_train.doctor import Check
from watchdog_train.doctor.ask import AskError, ask
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.store.registry import LiveRun, live_runs
from watchdog_train.system import proc

MOST_NAMED = 4
MAPS_CAP_BYTES = 4 << 20
COMMAND_CAP = 80
OPENMP_S = 60.0
"""For imports from a cold disk; what is late is not known."""
_STA_UNSYNC = 0x0040
"""adjtimex(2): nobody disciplines the clock."""
_TORCH = b"/libtorch_cpu."
_IMPORTS = """\
import json, re, sys
for name in sys.argv[1:]:
    try:
        __import__(name)
    except Exception:
        pass
with open("/proc/self/maps") as maps:
    found = {"/" + line.strip().partition("/")[2] for line in maps if "/" in line}
pattern = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")
print(json.dumps(sorted(path for path in found if pattern.search(path))))
"""
_STORE_PROGRAM = "/watchdog_train/store_process.py"
_LIKELY = ("torch", "numpy", "scipy", "sklearn", "cv2")
"""Libraries that bring an OpenMP of their own, in the order in which scripts import them."""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this user that has torch loaded."""

    pid: int
    command: str
    is_orphan: bool
    """Its parent is init."""


def around(python: str, boot_id: str | None) -> Iterator[Check]:
    """All of them.

    Args:
        python: the interpreter of the training.
        boot_id: of this boot, where it is known.
    """
    yield from runs(live_runs(boot_id=boot_id))
    yield from trainings(find_trainings())
    yield from clock()
    yield from openmp(python)


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


def find_trainings() -> tuple[Training, ...]:
    """Processes of this user with torch, without those of wtrain's living runs.

    Only Linux tells what a process has loaded; elsewhere nothing is found.
    """
    found: list[Training] = []
    if sys.platform != "linux":
        return ()
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
            is_orphan = process.ppid() == 1
            found.append(Training(pid=process.pid, command=shown, is_orphan=is_orphan))
        except (psutil.Error, OSError, AttributeError):
            continue  # gone meanwhile, or not ours
    return tuple(found)


def _has_torch(pid: int) -> bool:
    return _TORCH in (proc.read(f"/proc/{pid}/maps", MAPS_CAP_BYTES) or b"")


def trainings(found: Iterable[Training]) -> Iterator[Check]:
    """Others that would share GPUs, memory and ports with the one to come."""
    others = list(found)
    if not others:
        return
    named = "; ".join(
        f"pid {one.pid} ({one.command}{', its parent is gone' if one.is_orphan else ''})"
        for one in others[:MOST_NAMED]
    )
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    yield Check(
        name="other trainings",
        status="warning",
        says=f"{len(others)} run already, not under wtrain: {named}{more}",
        mend="they share CPU, memory and GPU with the next one: end what nobody needs (kill PID)",
    )


def clock() -> Iterator[Check]:
    """Whether somebody keeps the clock right: steps of it are survived, but logs do not match."""
    if sys.platform != "linux":
        return
    # struct timex is 208 bytes on 64-bit Linux: modes comes first, status as fifth long.
    buffer = (ctypes.c_long * 64)()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return
    if state < 0:
        return
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    if status & _STA_UNSYNC:
        yield Check(
            name="clock",
            status="warning",
            says="nobody keeps the clock right (the kernel calls it unsynchronised)",
            mend="timedatectl set-ntp true; with several nodes their logs do not match otherwise",
        )
    else:
        yield Check(name="clock", status="ok", says="the clock is kept right")


def openmp(python: str) -> Iterator[Check]:
    """Two OpenMP runtimes in one process: known to hang after a fork, and to be slow.

    Source: threadpoolctl's notes on multiple OpenMP runtimes (Intel's and LLVM's on Linux).
    """
    if sys.platform != "linux":
        return
    try:
        paths = ask(python, _IMPORTS, *_LIKELY, within_s=OPENMP_S, answer=list[str])
    except AskError as error:
        says = f"which OpenMP it loads is not known: {error}"
        yield Check(name="OpenMP", status="unknown", says=says)
        return
    yield judged_openmp(paths)


def judged_openmp(paths: list[str]) -> Check:
    """By the files that are loaded; several copies of GNU's get along, Intel's and LLVM's not."""
    kinds = {
        kind
        for path in paths
        for kind in ("gomp", "iomp5", "omp")
        if os.path.basename(path).startswith((f"lib{kind}.", f"lib{kind}-"))
    }
    if {"iomp5", "omp"} <= kinds or ("gomp" in kinds and "iomp5" in kinds):
        return Check(
            name="OpenMP",
            status="warning",
            says=f"{len(paths)} runtimes in one process: {', '.join(sorted(paths))[:400]}",
            mend="take all of them from one place (pip or conda); forked workers may hang",
        )
    told = f"{len(paths)} of one kind" if len(paths) > 1 else "one runtime"
    return Check(name="OpenMP", status="ok", says=told if paths else "none is loaded")
