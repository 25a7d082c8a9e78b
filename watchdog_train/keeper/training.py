"""The training's root process: started, waited for by its pid, and its orphans adopted.

It must not wait on any child but by its pid, and must leave nothing of its own in the training: no
descriptor, no signal mask.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from contextlib import suppress

from watchdog_train.keeper import EXIT_AT_GATE

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SCAN_EVERY_S = 0.5  # looking for adopted zombies reads all of /proc
LOOK_EVERY_S = 60.0  # without a SIGCHLD
HERD_S = 0.04  # deaths come in herds; deaths of this moment stay pending
FAILURE_BYTES = 65536
DEAF_TO = [  # meant for the training, so ignored here
    getattr(signal, name)
    for name in (
        *("SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP"),
        *("SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGXFSZ", "SIGBREAK"),
    )
    if hasattr(signal, name)
]
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


class Training:
    """The training's root process, and the orphans of it that are given to us."""

    def __init__(
        self, orders: dict[str, Any], child_fds: dict[str, int], announce: Callable[[int], None]
    ) -> None:
        """Start it. Until `announce` has returned, it exits without exec if the keeper dies.

        Raises:
            OSError: it cannot be started, or not be announced.
        """
        self.some_stay = False
        if sys.platform == "win32":
            import subprocess

            flags = subprocess.CREATE_NEW_PROCESS_GROUP
            options = {**child_fds, "cwd": orders["cwd"], "env": orders["env"]}
            self.process = subprocess.Popen(orders["argv"], creationflags=flags, **options)
            self.pid: int = self.process.pid
            announce(self.pid)
            return
        # SIGTERM waits, too: after the end of the root it says that who is left stays.
        blocked = {signal.SIGCHLD, signal.SIGTERM}
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        (heard, told), (gate, go) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go)
            if not os.read(gate, 1):
                os._exit(EXIT_AT_GATE)
            _become(orders, child_fds, told, old_mask)
        os.close(told)
        os.close(gate)
        try:
            announce(self.pid)
            with suppress(BrokenPipeError):  # it was killed: wait() shows it
                os.write(go, b".")
        finally:
            os.close(go)
        failure = os.read(heard, FAILURE_BYTES)  # empty: closed by a successful exec
        os.close(heard)
        if failure:
            os.waitpid(self.pid, 0)
            number, _, where = failure.decode("utf-8", "surrogateescape").partition(" ")
            raise OSError(int(number), os.strerror(int(number)), where)

    def wait(self) -> int:
        """The exit code, -N for signal N; orphans are reaped meanwhile."""
        if sys.platform == "win32":
            return self.process.wait()
        scan_at = 0.0
        pending = False
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                if sys.platform == "linux":
                    signal.sigtimedwait({signal.SIGTERM}, 0)  # it was meant for the training
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if pending and now >= scan_at:
                self._others_gone()
                pending, scan_at = False, now + SCAN_EVERY_S
            died = _next_death(max(scan_at - now, 0.0) if pending else LOOK_EVERY_S)
            pending = pending or died

    def wait_for_others(self) -> bool:
        """Until only processes that stay are left; False where the system cannot list them."""
        if sys.platform != "linux":
            return False
        while not self._others_gone():
            heard = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, 5.0)
            if heard is not None and heard.si_signo == signal.SIGTERM:
                self.some_stay = True
                break
            time.sleep(HERD_S)
        return True

    def _others_gone(self) -> bool:
        """Reap adopted processes; whether none is left."""
        if sys.platform == "win32":
            return False
        while True:
            left, reaped = self._reap()
            # An exited process may have had a child since the list was made: we have adopted it.
            if left or not reaped:
                return not left

    def _reap(self) -> tuple[int, int]:
        """How many children live on, and how many have been reaped."""
        if sys.platform == "win32":
            return 0, 0
        left = reaped = 0
        me = os.getpid()
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            stats = {pid: stat_of(pid, strict=True) for pid in pids}
        except OSError:  # no descriptor, or no memory: a process may be left
            return 1, 0
        for pid, found in stats.items():
            state, parent, _ = found or ("", 0, 0)
            if parent == me:
                gone = state == "Z" and pid != self.pid and os.waitpid(pid, os.WNOHANG)[0] == pid
                reaped += gone
                left += not gone
        return left, reaped


def prepare(*, adopt_orphans: bool) -> None:
    """Ignore the signals that are meant for the training, and adopt its orphans if possible."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_NAME, b"wtrain-keeper", 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, int(adopt_orphans), 0, 0, 0)


def stat_of(pid: int, *, strict: bool = False) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; a name may contain spaces and parentheses.

    Raises:
        OSError: strict, and nothing can be opened, whatever it is.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError as error:
        if strict and error.errno in SHORTAGES:
            raise
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def _become(orders: dict[str, Any], child_fds: dict[str, int], told: int, mask: set[int]) -> None:
    """In the forked child: become the training, or report why not."""
    if sys.platform == "win32":
        return
    where = orders["cwd"]
    try:
        os.setsid()
        for number in DEAF_TO:
            if number != signal.SIGHUP or not orders["ignore_hup"]:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # First above 0, 1 and 2, then into place.
        for target, fd in enumerate([os.dup(child_fds[n]) for n in ("stdin", "stdout", "stderr")]):
            os.dup2(fd, target)
        os.chdir(where)
        where = orders["argv"][0]
        environment = os.environ if orders["env"] is None else orders["env"]
        os.execvpe(where, orders["argv"], environment)  # noqa: S606
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        os.write(told, f"{code} {where}".encode("utf-8", "surrogateescape"))
    finally:
        os._exit(127)


def _next_death(timeout_s: float) -> bool:
    if sys.platform == "win32":
        return False
    if sys.platform == "linux":
        return signal.sigtimedwait({signal.SIGCHLD}, timeout_s) is not None
    return signal.sigwait({signal.SIGCHLD}) is not None
