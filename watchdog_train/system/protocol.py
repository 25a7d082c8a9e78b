"""What an operating system can do for us. Every answer may be None: "unknown" is a right answer."""

# ruff: noqa: ARG002 - an answer that is always None needs no arguments

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from watchdog_train.core.model import ProcessId, ProcessRow, ThreadWait
from watchdog_train.core.model.waits import Stopped

SignalResult = Literal["sent", "gone", "denied", "not-ours"]


OUR_TOOL = "WTRAIN_TOOL"
"""In the environment of a tool that we start: it stops processes, but is no debugger."""
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that keep this process from opening any file, whatever file it is."""
PASSING = SHORTAGES | {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}
"""Why no process may be started now but may be later; no fault of its program."""


class BlindError(OSError):
    """The processes cannot be read now: none may be taken for gone."""


MASTER = "master of "
"""Prefix of the name of a pseudo-terminal's other end; the terminal's path follows."""


class OpenFile(NamedTuple):
    number: int
    name: str
    """A path, `pipe:[INODE]`, `socket:[INODE]`, or MASTER and a path."""
    reads: bool
    writes: bool


class UnixSocket(NamedTuple):
    """`name` is empty for a socket that was never bound."""

    name: bytes
    peer: int
    """The inode of the other end; 0 for none."""
    listens: bool
    """For connections: a server."""


class Connections(NamedTuple):
    """The sockets of this network namespace by inode, as the kernel lists them."""

    ports: Mapping[int, int]
    """Of listening TCP sockets."""
    tcp: Mapping[int, tuple[tuple[bytes, int], tuple[bytes, int]]]
    """Connections: this end and the other one, each an address and a port."""
    unix: Mapping[int, UnixSocket]


class ExitWatch(Protocol):
    """The exit of a process that is not our child, opened while it lives."""

    def status(self) -> int | None:
        """Its exit code, -N for signal N; None while it lives, and if unknown."""

    def close(self) -> None:
        """Close its descriptor."""


class ProcessSystem(Protocol):
    """One implementation per platform; see system.current() for the choice.

    A method with a body is optional for a platform: None means that it does not know.
    """

    name: str

    def boot_id(self) -> str | None:
        """Changes at every boot; None if the platform has none."""
        return None

    def identity(self, pid: int) -> ProcessId | None:
        """The process that has this pid now, or None."""

    def is_alive(self, who: ProcessId) -> bool | None:
        """Whether this very process lives (a zombie does not); None if unknown."""

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        """Processes by pid: those of `known` that exist, and all new since the last call.

        `full`: all processes. Cheap enough for once a second with 320 processes. io_bytes is filled
        for `known` only.
        """

    def all_processes(self) -> Mapping[int, ProcessRow]:
        """A full snapshot, without I/O counters."""

    def command_line(self, pid: int) -> tuple[str, ...] | None: ...
    def user_id(self, pid: int) -> int | None: ...
    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        """Only the named variables, as they were when the process started."""

    def waits_for_input(self, pid: int) -> bool | None:
        """Blocked reading a terminal or its standard input."""
        return None

    def held(self, pid: int, state: str | None) -> Stopped | None:
        """Why a process in this state does not run; None: nothing, or a tool of wtrain."""
        return Stopped(traced=state == "t") if state in ("T", "t") else None

    def handles_signal(self, pid: int, signal_number: int) -> bool | None:
        """Whether the process has installed a handler (SigCgt)."""
        return None

    def ignores_signal(self, pid: int, signal_number: int) -> bool | None:
        """Whether the process has it ignored (SigIgn)."""
        return None

    def process_group(self, pid: int) -> int | None:
        """The pid of its group's leader; None where there are no groups, or no such process."""
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                return os.getpgid(pid)
        return None

    def watch_exit(self, who: ProcessId) -> ExitWatch | None:
        """Watch this very process, to learn its exit status; None if not possible."""
        return None

    def tcp_bytes(
        self, pids: Iterable[int], others: Iterable[int] = (), stores: Iterable[int] = ()
    ) -> int | None:
        """Bytes acknowledged and received by the TCP sockets of these processes so far.

        Traffic to `others`, launchers and ranks of the same tree, does not count, nor traffic to a
        process that listens at one of the ports `stores`, on any machine.
        """
        return None

    def cpu_waits(self, pids: Iterable[int]) -> Mapping[int, Mapping[int, ThreadWait]] | None:
        """How long threads of these processes have waited for a CPU, by pid and thread.

        All threads of the first ones, the main thread of the others; unknown processes are missing.
        None where states do not show a wait either: some systems call all of them running.
        """
        return None

    def open_files(self, pid: int) -> tuple[OpenFile, ...] | None:
        return None

    def shared_mappings(self, pid: int) -> frozenset[str] | None:
        """`INODE PATH` of the memory that it may share; None if unknown."""
        return None

    def connections(self) -> Connections | None:
        """Every socket here; None if unknown."""
        return None

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """To this very process, verified at this moment, through a pidfd where there is one."""

    def send_signal_to_group(self, leader: ProcessId, signal_number: int) -> SignalResult:
        """To the process group that `leader` leads: the only group signal (Ctrl-C)."""

    def take_descriptor(self, who: ProcessId, number: int) -> int | None:
        """A copy of an open descriptor of a process, ours to close; None if not possible."""
        return None

    def become_subreaper(self) -> bool | None:
        """Adopt orphaned descendants; None where the platform has no such thing."""
        return None

    def slot_directory(self, run_id: str) -> Path | None:
        """A private directory for slots, on tmpfs where there is one with room; not made."""

    def on_network_file_system(self, path: Path) -> bool | None:
        return None

    def monotonic(self) -> float:
        """Seconds since boot, comparable between processes of this boot: the kernel's clock."""
        return time.monotonic()

    def suspended_s(self) -> float | None:
        """Total time spent suspended since boot; None if unknown."""
        return None

    def shared_memory_names(self) -> Mapping[str, int] | None:
        """POSIX shared memory and semaphores now (what /dev/shm lists) with inodes, not ours."""
        return None

    def remove_shared_memory(self, name: str) -> bool: ...


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
    """The user's name, else the number."""
    if sys.platform == "win32":
        return str(uid)
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name[:LONGEST_NAME]
    except (KeyError, OSError):
        return str(uid)
