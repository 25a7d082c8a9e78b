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
"""What keeps this process from opening anything; it says nothing about what was to be opened."""
PASSING = SHORTAGES | {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}
"""Why a process may not be started now and may be later: it is nothing that is to be started."""


class BlindError(OSError):
    """The processes cannot be read now: nobody may be taken for gone."""


MASTER = "master of "
"""How the other end of a terminal is called, with the name of its terminal."""


class OpenFile(NamedTuple):
    """One descriptor of a process."""

    number: int
    name: str
    """A path, `pipe:[INODE]`, `socket:[INODE]`, or MASTER and a path."""
    reads: bool
    writes: bool


class UnixSocket(NamedTuple):
    """One unix socket; name is empty for one that was never bound."""

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
    """The end of a process that is not our child, looked forward to while it lives."""

    def status(self) -> int | None:
        """Its exit code, -N for signal N; None while it lives, and where nothing tells."""

    def close(self) -> None:
        """Let go of it."""


class ProcessSystem(Protocol):
    """One implementation per platform; see system.current() for the choice.

    What has a body here need not be told by a platform: None says that it does not tell.
    """

    name: str

    def boot_id(self) -> str | None:
        """Changes at every boot; None where there is none."""
        return None

    def identity(self, pid: int) -> ProcessId | None:
        """The process that has this pid now, None when there is none."""

    def is_alive(self, who: ProcessId) -> bool | None:
        """Whether this very process lives (a zombie does not); None when it cannot be told."""

    def snapshot(
        self, known: Iterable[ProcessId] = (), *, full: bool = False
    ) -> Mapping[int, ProcessRow]:
        """A look at processes, by pid.

        Contains every process named in `known` that still exists, and every process that is new
        since the last call, or all of them. Cheap enough for once a second with 320 processes.
        io_bytes is filled for `known` only.
        """

    def all_processes(self) -> Mapping[int, ProcessRow]:
        """A full look, without I/O counters."""

    def command_line(self, pid: int) -> tuple[str, ...] | None: ...
    def user_id(self, pid: int) -> int | None: ...
    def environment(self, pid: int, names: Iterable[str]) -> dict[str, str] | None:
        """Only the named variables, as they were when the process started."""

    def waits_for_input(self, pid: int) -> bool | None:
        """Blocked reading a terminal or its standard input."""
        return None

    def held(self, pid: int, state: str | None) -> Stopped | None:
        """What keeps a process in this state from running; None: nothing, or a tool of ours."""
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
        """Hold on to this very process, to learn how it ends; None where that cannot be."""
        return None

    def tcp_bytes(
        self, pids: Iterable[int], others: Iterable[int] = (), stores: Iterable[int] = ()
    ) -> int | None:
        """Bytes acknowledged and received by the TCP sockets of these processes so far.

        What they tell `others`, launchers and ranks of the same tree, does not count, nor what
        they tell a process that listens at one of the ports `stores`, wherever it is.
        """
        return None

    def cpu_waits(self, pids: Iterable[int]) -> Mapping[int, Mapping[int, ThreadWait]] | None:
        """How long threads of these processes have stood in line for a CPU, by pid and thread.

        All threads of the first ones, the main thread of the others. Who is missing is not told
        of; None where states say nothing of that either: some systems call everybody running.
        """
        return None

    def open_files(self, pid: int) -> tuple[OpenFile, ...] | None:
        """What it has open; None where that cannot be told."""
        return None

    def shared_mappings(self, pid: int) -> frozenset[str] | None:
        """`INODE PATH` of the memory that it may share; None where that cannot be told."""
        return None

    def connections(self) -> Connections | None:
        """Every socket here; None where that cannot be told."""
        return None

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        """To this very process, verified at this moment, through a pidfd where there is one."""

    def send_signal_to_group(self, leader: ProcessId, signal_number: int) -> SignalResult:
        """To the process group that `leader` leads: the one group signal there is (Ctrl-C)."""

    def take_descriptor(self, who: ProcessId, number: int) -> int | None:
        """A copy of what a process has open, ours to close; None where that cannot be had."""
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
        """Total time spent suspended since boot."""
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
    """As the system calls it, else the number."""
    if sys.platform == "win32":
        return str(uid)
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name[:LONGEST_NAME]
    except (KeyError, OSError):
        return str(uid)
