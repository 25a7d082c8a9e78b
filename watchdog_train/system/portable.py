"""Any system that psutil knows: no subreaper, no pidfd, and None for what it does not know.

It must check a process's start as late as it can before it signals it; the gap that remains is
the reason why Linux has an implementation of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from watchdog_train.core.model import ProcessId, ProcessRow
from watchdog_train.system.file_systems import private_directory
from watchdog_train.system.protocol import (
    SHORTAGES,
    BlindError,
    ProcessSystem,
    SignalResult,
)

if sys.platform == "win32":
    CLOCK_TICKS = 100
else:
    CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SIGKILL, SIGTERM = 9, 15
REFUSED = (psutil.Error, OSError, NotImplementedError, SystemError)
"""What psutil raises for a process that is gone, not visible to us, or half gone."""
STATES = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_IDLE: "I",
}


class PortableSystem(ProcessSystem):
    """What psutil can do; all else is None, as the protocol has it."""

    name = "portable"

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def identity(self, pid: int) -> ProcessId | None:
        with suppress(*REFUSED):
            return ProcessId(pid, _start(psutil.Process(pid)))
        return None

    def is_alive(self, who: ProcessId) -> bool | None:
        try:
            process = psutil.Process(who.pid)
            return _start(process) == who.start and _state(process) not in ("Z", "X")
        except psutil.NoSuchProcess:
            return False
        except REFUSED:
            return None

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        starts = {who.pid: who.start for who in known}
        pids = _pids()
        seen, self._seen = self._seen, set(pids)
        wanted = (pid for pid in pids if full or pid not in seen or pid in starts)
        return _rows(wanted, starts)

    def all_processes(self) -> Mapping[int, ProcessRow]:
        return _rows(_pids(), {})

    def command_line(self, pid: int) -> tuple[str, ...] | None:
        with suppress(*REFUSED):
            return tuple(psutil.Process(pid).cmdline())
        return None

    def user_id(self, pid: int) -> int | None:
        """Its real user; Windows has no numbers for users."""
        if sys.platform != "win32":
            with suppress(*REFUSED):
                return int(psutil.Process(pid).uids().real)
        return None

    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        with suppress(*REFUSED):
            shown = psutil.Process(pid).environ()
            return {name: shown[name] for name in names if name in shown} if shown else None
        return None

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """Checked immediately before."""
        if who.pid <= 1 or who.pid == os.getpid():
            return "not-ours"
        alive = self.is_alive(who)
        if not alive:
            now = self.identity(who.pid)
            return "gone" if alive is None or now in (None, who) else "not-ours"
        if sys.platform == "win32" and signal_number not in (SIGKILL, SIGTERM):
            return "denied"  # os.kill() would kill it there, whatever the number
        with _refusals() as result:
            os.kill(who.pid, signal_number)
        return result[0]

    def send_signal_to_group(self, leader: ProcessId, signal_number: int) -> SignalResult:
        """Checked immediately before."""
        if sys.platform == "win32" or leader.pid <= 1 or self.identity(leader.pid) != leader:
            return "not-ours" if psutil.pid_exists(leader.pid) else "gone"
        with _refusals() as result:
            if os.getpgid(leader.pid) != leader.pid or os.getpgrp() == leader.pid:
                return "not-ours"
            os.killpg(leader.pid, signal_number)
        return result[0]

    def slot_directory(self, run_id: str) -> Path | None:
        return private_directory(run_id)

    def remove_shared_memory(self, name: str) -> bool:
        """Never: what cannot be listed cannot be known to be ours."""
        del name
        return False


@contextmanager
def _refusals() -> Iterator[list[SignalResult]]:
    result: list[SignalResult] = ["sent"]
    try:
        yield result
    except ProcessLookupError:
        result[0] = "gone"
    except PermissionError:
        result[0] = "denied"


def _start(process: psutil.Process) -> int:
    """ProcessId.start; on Linux clock ticks since boot, as client and keeper know it.

    There psutil adds the time of boot, which moves with every step of the clock; older versions
    keep the boot time that was asked for last.
    """
    if sys.platform == "linux":
        boot_time = psutil.boot_time()
        return round((process.create_time() - boot_time) * CLOCK_TICKS)
    return round(process.create_time() * 100)


def _state(process: psutil.Process) -> str | None:
    return STATES.get(process.status())


def _rows(pids: Iterable[int], starts: Mapping[int, int]) -> dict[int, ProcessRow]:
    found = ((pid, _row_of(pid, starts)) for pid in pids)
    return {pid: row for pid, row in found if row is not None}


def _row_of(pid: int, starts: Mapping[int, int]) -> ProcessRow | None:
    try:
        return _row(psutil.Process(pid), starts)
    except REFUSED as error:
        # What is refused for want of descriptors says nothing about the process.
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            raise BlindError(error.errno, error.strerror) from error
        return None


def look(pid: int) -> tuple[ProcessRow, int] | None:
    """One process, and the number of its threads."""
    with suppress(*REFUSED):
        process = psutil.Process(pid)
        return _row(process, {}), process.num_threads()
    return None


def _pids() -> list[int]:
    try:
        return list(psutil.pids())
    except OSError as error:
        raise BlindError(error.errno, error.strerror) from error


def _row(process: psutil.Process, starts: Mapping[int, int]) -> ProcessRow:
    start = _start(process)
    with process.oneshot():
        cpu_s = reaped_cpu_s = io_bytes = None
        with suppress(*REFUSED):
            times = process.cpu_times()
            cpu_s = times.user + times.system
            if sys.platform != "darwin":
                reaped_cpu_s = times.children_user + times.children_system
        if starts.get(process.pid) == start and sys.platform != "darwin":
            with suppress(*REFUSED):
                moved = process.io_counters()
                read = getattr(moved, "read_chars", moved.read_bytes)
                io_bytes = read + getattr(moved, "write_chars", moved.write_bytes)
        return ProcessRow(
            pid=process.pid,
            start=start,
            ppid=process.ppid(),
            state=_state(process),
            cpu_s=cpu_s,
            reaped_cpu_s=reaped_cpu_s,
            io_bytes=io_bytes,
            name=process.name(),
        )
