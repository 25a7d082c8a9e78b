"""Linux: /proc, pidfds and clocks; it must never signal a process whose start is unchecked."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.core.model import ProcessId, ProcessRow, ThreadWait
from watchdog_train.core.model.waits import ProcessRef, Stopped
from watchdog_train.system import cgroup, proc, sock_diag
from watchdog_train.system.file_systems import NETWORK_FILE_SYSTEMS, private_directory
from watchdog_train.system.protocol import (
    OUR_TOOL,
    Connections,
    ExitWatch,
    ProcessSystem,
    SignalResult,
)

if sys.platform != "linux":
    raise ImportError("only for Linux; see system.current()")

import fcntl

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's place for it, not a temporary file
OUR_SHARED_MEMORY = "wtrain-"
MOST_THREADS = 512
"""Maximum number of threads whose wait for a CPU is read: 10 microseconds each."""
PR_SET_CHILD_SUBREAPER = 36
PIDFD_GETFD = 438  # since Linux 5.6; Python has no name for it
PIDFD_GETFD_MACHINES = ("x86_64", "aarch64")
PIDFD_SIGNAL_PROCESS_GROUP = 4  # since Linux 6.9
NO_PIDFD = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EMFILE, errno.ENFILE)
READ_CALLS = {"x86_64": {0, 19}, "aarch64": {63, 65}}.get(platform.machine(), set())
SELECT_CALLS = {"x86_64": {23, 270}, "aarch64": {72}}.get(platform.machine(), set())
_HUMAN_END = re.compile(r"/dev/(tty|pts/|console)|pipe:|socket:")


def held(pid: int, state: str | None) -> Stopped | None:
    """Why a process in this state does not run; None: nothing, or a tool of wtrain."""
    if (freezer := cgroup.frozen_by(pid)) is not None:
        return Stopped(freezer=freezer)
    if state != "t":
        return Stopped() if state == "T" else None
    tracer = int(proc.status_field(pid, "TracerPid") or 0)
    found = proc.read_stat(tracer or pid)
    if tracer == 0:  # it has detached meanwhile, or is in a parent pid namespace
        return Stopped(traced=True) if found is not None and found.state == "t" else None
    if proc.parse_environment(proc.read(f"/proc/{tracer}/environ") or b"", (OUR_TOOL,)):
        return None
    debugger = ProcessRef(tracer, found.start, found.name) if found is not None else None
    return Stopped(traced=True, debugger=debugger)


class LinuxSystem(ProcessSystem):
    name = "linux"
    command_line = staticmethod(proc.command_line)
    held = staticmethod(held)
    open_files = staticmethod(proc.open_files)
    shared_mappings = staticmethod(proc.shared_mappings)

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._tcp = sock_diag.TcpCounter()

    def boot_id(self) -> str | None:
        text = proc.read("/proc/sys/kernel/random/boot_id")
        return text.decode().strip() if text else None

    def identity(self, pid: int) -> ProcessId | None:
        """The process that has this pid now, also a zombie."""
        found = proc.read_stat(pid)
        return ProcessId(pid, found.start) if found else None

    def is_alive(self, who: ProcessId) -> bool | None:
        found = proc.read_stat(who.pid)
        if found is None:
            return None if proc.exists(who.pid) else False
        return found.start == who.start and not found.is_dead

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        """Known processes with their I/O, and those new since the last call, or all (`full`).

        A pid that was reused within one interval is noticed at the next full snapshot.
        """
        starts = {who.pid: who.start for who in known}
        pids = proc.list_pids()
        seen, self._seen = self._seen, set(pids)
        rows = {}
        for pid in pids:
            if not full and pid in seen and pid not in starts:
                continue
            found = proc.read_stat(pid, strict=True)
            if found is not None:
                is_known = starts.get(pid) == found.start
                rows[pid] = found.row(proc.read_io_bytes(pid) if is_known else None)
        return rows

    def all_processes(self) -> Mapping[int, ProcessRow]:
        stats = (proc.read_stat(pid, strict=True) for pid in proc.list_pids())
        return {found.pid: found.row() for found in stats if found}

    def user_id(self, pid: int) -> int | None:
        """Its real user: the owner of /proc/PID is root for a process that may not be dumped."""
        field = proc.status_field(pid, "Uid")
        return int(field.split()[0]) if field else None

    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        """Empty files of zombies are unknown."""
        text = proc.read(f"/proc/{pid}/environ")
        return proc.parse_environment(text, names) if text else None

    def waits_for_input(self, pid: int) -> bool | None:
        """By the system call its main thread is in; by where it sleeps when that is hidden."""
        place = proc.read(f"/proc/{pid}/wchan") or b"0"
        if b"n_tty_read" in place:
            return True
        call = proc.read(f"/proc/{pid}/syscall")
        fields = call.split() if call else []
        if len(fields) > 2:
            number, first = int(fields[0]), int(fields[1], 16)
            if READ_CALLS and first == 0 and number in READ_CALLS:
                return self._reads_from_a_person(pid)
            # The readline library (pdb, a shell) selects on descriptor 0 alone before it reads.
            if SELECT_CALLS and first == 1 and number in SELECT_CALLS:
                return self._reads_from_a_person(pid)
            if READ_CALLS:
                return False
        elif fields in ([b"running"], [b"-1"]):
            return False
        return None if place in (b"0", b"") or b"pipe" in place else False

    @staticmethod
    def _reads_from_a_person(pid: int) -> bool | None:
        stdin = proc.link(pid, "fd/0")
        return None if stdin is None else _HUMAN_END.match(stdin) is not None

    def handles_signal(self, pid: int, signal_number: int) -> bool | None:
        return _in_mask(pid, "SigCgt", signal_number)

    def ignores_signal(self, pid: int, signal_number: int) -> bool | None:
        return _in_mask(pid, "SigIgn", signal_number)

    def watch_exit(self, who: ProcessId) -> ExitWatch | None:
        """By a pidfd; None for another process of that pid, and without descriptors."""
        try:
            descriptor = os.pidfd_open(who.pid)
        except OSError:
            return None
        # Only now: an identity that was checked before the open could have changed since.
        found = proc.read_stat(who.pid)
        if found is None or found.start != who.start:
            os.close(descriptor)
            return None
        return PidfdWatch(who, descriptor)

    def tcp_bytes(
        self, pids: Iterable[int], others: Iterable[int] = (), stores: Iterable[int] = ()
    ) -> int | None:
        """One running count for one tree, which may lose and gain members."""
        return self._tcp.total(pids, others, stores)

    def cpu_waits(self, pids: Iterable[int]) -> Mapping[int, Mapping[int, ThreadWait]] | None:
        """By schedstat, where the kernel was built with it."""
        found = {}
        left = MOST_THREADS
        for pid in pids:
            threads = proc.read_waits(pid, left)
            if threads:
                found[pid] = threads
                left -= len(threads)
        return found

    def connections(self) -> Connections | None:
        with suppress(OSError):
            return sock_diag.connections()
        return None

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """Through a pidfd, which never refers to another process."""
        return self._send(who, signal_number, to_group=False)

    def send_signal_to_group(self, leader: ProcessId, signal_number: int) -> SignalResult:
        """To the group that it leads, also if the leader is a zombie by now."""
        try:
            if os.getpgid(leader.pid) != leader.pid or os.getpgrp() == leader.pid:
                return "not-ours"
        except ProcessLookupError:
            return "gone"
        return self._send(leader, signal_number, to_group=True)

    def _send(self, who: ProcessId, signal_number: int, *, to_group: bool) -> SignalResult:
        if who.pid <= 1 or who.pid == os.getpid():
            return "not-ours"
        handle = -1
        try:
            try:
                handle = os.pidfd_open(who.pid)
            except OSError as error:
                if error.errno not in NO_PIDFD:
                    raise
            # Only now: an identity that was checked before the open could have changed since.
            found = proc.read_stat(who.pid)
            if found is None:
                return "gone"
            if found.start != who.start:
                return "not-ours"
            if found.is_dead and not to_group:
                return "gone"
            _deliver(handle, who.pid, signal_number, to_group=to_group)
        except (ProcessLookupError, FileNotFoundError):
            # The latter on new kernels: the number is a thread's by now, or is just given back.
            return "gone"
        except PermissionError:
            return "denied"
        finally:
            if handle >= 0:
                os.close(handle)
        return "sent"

    def take_descriptor(self, who: ProcessId, number: int) -> int | None:
        """Through a pidfd; where that is refused (Yama), a pipe's read end by its name."""
        try:
            handle = os.pidfd_open(who.pid)
        except OSError:
            return None
        try:
            found = proc.read_stat(who.pid)
            if found is None or found.start != who.start:
                return None
            taken = _pidfd_getfd(handle, number)
            if taken is not None:
                return taken
            name = f"/proc/{who.pid}/fd/{number}"
            with suppress(OSError):
                if os.readlink(name).startswith("pipe:"):
                    return os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            return None
        finally:
            os.close(handle)

    def become_subreaper(self) -> bool | None:
        """From now on orphans among our descendants become our children."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)

    def slot_directory(self, run_id: str) -> Path | None:
        return private_directory(run_id, SHARED_MEMORY)

    def on_network_file_system(self, path: Path) -> bool | None:
        """By the type of the mount that holds it, or would hold it."""
        text = proc.read("/proc/self/mountinfo")
        kind = proc.mount_type(text, os.path.realpath(path)) if text else None
        return None if kind is None else kind in NETWORK_FILE_SYSTEMS

    def suspended_s(self) -> float | None:
        """CLOCK_BOOTTIME runs in suspend, CLOCK_MONOTONIC does not."""
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic(), 0.0)

    def shared_memory_names(self) -> Mapping[str, int] | None:
        with suppress(OSError), os.scandir(SHARED_MEMORY) as listed:
            return {
                one.name: one.inode()
                for one in listed
                if not one.name.startswith(OUR_SHARED_MEMORY)
            }
        return None

    def remove_shared_memory(self, name: str) -> bool:
        """Only a plain file of this user alone; whether we removed it."""
        if "/" in name or name.startswith(OUR_SHARED_MEMORY):
            return False
        path = SHARED_MEMORY / name
        with suppress(OSError):
            about = path.lstat()
            # What others may open they may have mapped, and their mappings are not for us to see.
            private = not about.st_mode & 0o077
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and private:
                path.unlink()
                return True
        return False


def _in_mask(pid: int, mask: str, signal_number: int) -> bool | None:
    field = proc.status_field(pid, mask)
    return bool(int(field, 16) >> (signal_number - 1) & 1) if field else None


def _deliver(handle: int, pid: int, signal_number: int, *, to_group: bool) -> None:
    if to_group:
        if handle >= 0:
            with suppress(OSError):
                flags = PIDFD_SIGNAL_PROCESS_GROUP
                signal.pidfd_send_signal(handle, signal_number, None, flags)
                return
        os.killpg(pid, signal_number)
    elif handle >= 0:
        signal.pidfd_send_signal(handle, signal_number)
    else:
        os.kill(pid, signal_number)


def _pidfd_getfd(handle: int, number: int) -> int | None:
    """The copy, not inherited by programs we start; None where it is refused."""
    if platform.machine() not in PIDFD_GETFD_MACHINES:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    taken = call(ctypes.c_long(PIDFD_GETFD), handle, number, 0)
    return int(taken) if taken >= 0 else None


PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info of 64 bytes)
PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit code


class PidfdWatch:
    """The exit of a process that is not our child, as the kernel shows it to its user.

    A zombie shows its status in /proc/PID/stat. Once its parent has reaped it, only a pidfd that
    was opened before shows it (PIDFD_GET_INFO, since Linux 6.15). On older kernels a reaped status
    is unknown to every other process.
    """

    def __init__(self, who: ProcessId, descriptor: int) -> None:
        self._who = who
        self._descriptor = descriptor

    def status(self) -> int | None:
        """Its exit code, -N for signal N; None while it lives, and if unknown."""
        raw = _of_reaped(self._descriptor)
        if raw is None:
            raw = _of_zombie(self._who)
        return None if raw is None else os.waitstatus_to_exitcode(raw)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _of_reaped(descriptor: int) -> int | None:
    request = bytearray(_INFO.size)
    struct.pack_into("=Q", request, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, PIDFD_GET_INFO, request)
    except OSError:  # an older kernel; or one that is about to be reaped
        return None
    mask, *_, status = _INFO.unpack(request)
    return int(status) if mask & PIDFD_INFO_EXIT else None


def _of_zombie(who: ProcessId) -> int | None:
    text = proc.read(f"/proc/{who.pid}/stat", proc.SMALL_BYTES)
    found = proc.parse_stat(text) if text else None
    if text is None or found is None or found.start != who.start or not found.is_dead:
        return None
    # Where the kernel hides it, it shows a 0; the same check guards the I/O counters.
    if proc.read_io_bytes(who.pid) is None:
        return None
    with suppress(ValueError, IndexError):
        return int(text.rpartition(b")")[2].split()[49])
    return None
