"""A small world for one case: its own pids, its own mounts, its own shared memory.

Inside, "nothing is left" can be told exactly, pids can be made to come back, disks can be filled,
and a wrong kill cannot reach the machine. Where the kernel does not allow it a case runs in the
open, and faults that need it are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

INSIDE = "WTRAIN_CHAOS_ISOLATED"
_UNSHARE = ("--pid", "--mount", "--fork", "--mount-proc", "--kill-child")


@cache
def prefix() -> tuple[str, ...] | None:
    """The words before a command that put it into a world of its own; None: not possible here."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return None
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    words = ("unshare", *user, *_UNSHARE)
    try:
        test = subprocess.run(
            [*words, "sh", "-c", "mount -t tmpfs none /dev/shm"],
            capture_output=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return words if test.returncode == 0 else None


def is_isolated() -> bool:
    """Whether this process is in such a world."""
    return os.environ.get(INSIDE) == "1"


def command(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """How a command is started in a world of its own where there can be one."""
    words = prefix()
    if words is None:
        return list(argv), dict(os.environ)
    return [*words, *argv], {**os.environ, INSIDE: "1"}


def settle(work: Callable[[], int]) -> int:
    """Run the work; as the first process of a world, reap what it leaves meanwhile."""
    if not is_isolated() or os.getpid() != 1:
        return work()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", "/dev/shm"], check=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = work()
        except BaseException:
            traceback.print_exc()  # nobody else would: the exit below tells nothing
            raise
        finally:
            sys.stderr.flush()
            os._exit(code)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def start_as(pid: int, start: Callable[[], subprocess.Popen[bytes]], tries: int = 20):
    """Start a process with this very pid, which must be free; None where that does not come off."""
    if not is_isolated():
        return None
    for _ in range(tries):
        if Path(f"/proc/{pid}").exists():
            return None
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), "ascii")
        process = start()
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None
