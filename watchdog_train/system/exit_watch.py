"""How a process ends that is not our child, on Linux: what the kernel shows to others of its user.

A zombie shows its status in /proc/PID/stat. Once its parent has asked for it, only a pidfd that
was opened before still tells (PIDFD_GET_INFO, since Linux 6.15). On older kernels a status that
the parent has taken is gone for everybody else: unknown.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

from watchdog_train.core.model import ProcessId
from watchdog_train.system import proc

if sys.platform != "linux":
    raise ImportError("only for Linux; see system.current()")

import fcntl

PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info of 64 bytes)
PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit code


class PidfdWatch:
    """One process, held by a descriptor."""

    def __init__(self, who: ProcessId, descriptor: int) -> None:
        self._who = who
        self._descriptor = descriptor

    def status(self) -> int | None:
        """Its exit code, -N for signal N; None while it lives, and where the kernel is silent."""
        raw = _of_reaped(self._descriptor)
        if raw is None:
            raw = _of_zombie(self._who)
        return None if raw is None else os.waitstatus_to_exitcode(raw)

    def close(self) -> None:
        """Let go of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def watch(who: ProcessId) -> PidfdWatch | None:
    """Hold on to this very process; None for another one of that pid, and without descriptors."""
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
    # To whom the kernel hides it, it shows a 0; the same check guards the I/O counters.
    if proc.read_io_bytes(who.pid) is None:
        return None
    with suppress(ValueError, IndexError):
        return int(text.rpartition(b")")[2].split()[49])
    return None
