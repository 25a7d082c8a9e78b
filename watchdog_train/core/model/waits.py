"""What a thread waits for: a value for each kind of object. Unknown is a value, too.

The kernel's view, without Python frames: a collective, a batch or a Python lock is one of these
with a name that only frames can give.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.model.words import Value


class ProcessRef(msgspec.Struct, frozen=True, order=True):
    """A process that somebody waits for or that holds something."""

    pid: int
    start: int
    name: str = ""
    """As the kernel calls it."""


Refs = tuple[ProcessRef, ...]


class _Wait(Value, frozen=True, kw_only=True, tag_field="wait"):
    """`complete` is False where some process could not be read: there may be more than is named."""

    timed: bool = False
    """The call ends by itself after some time."""


class Running(_Wait, frozen=True, kw_only=True, tag="running"):
    """It waits for nothing: it computes, or waits for a processor."""


class FileWait(_Wait, frozen=True, kw_only=True, tag="file"):
    """A call on a file, or on the path of one."""

    call: Literal["open", "read", "write", "sync", "other"]
    path: str | None = None
    kind: Literal["regular", "directory", "fifo", "device", "unknown"] = "unknown"
    network: str | None = None
    """Type of the network file system that holds it."""
    others: Refs = ()
    """Of a FIFO: who has its other end open."""
    complete: bool = True
    unlinked: bool = False
    """Nobody can open this path any more."""


class FileLockWait(_Wait, frozen=True, kw_only=True, tag="file_lock"):
    """flock() or a lock of fcntl()."""

    path: str | None = None
    holders: Refs = ()
    """All who have the locked description open: a fork inherits it."""
    complete: bool = True


class PipeWait(_Wait, frozen=True, kw_only=True, tag="pipe"):
    """A pipe, a socket pair, or a unix socket: what is at the other end."""

    call: Literal["read", "write"]
    path: str | None = None
    """Of a unix socket with a name."""
    listens: bool = False
    """It waits for somebody to connect: a server, whom nobody has let down."""
    others: Refs = ()
    complete: bool = True


class TcpWait(_Wait, frozen=True, kw_only=True, tag="tcp"):
    """A connection to somebody, or a socket that waits for connections."""

    call: Literal["connect", "read", "write", "accept"]
    address: str = ""
    """Of the other end, `host:port`; of a listener its own."""
    others: Refs = ()
    """The other end, where it is on this machine."""


class ChildWait(_Wait, frozen=True, kw_only=True, tag="child"):
    """wait4() and its like, or vfork() until the child has begun its program."""

    children: Refs = ()


class MutexWait(_Wait, frozen=True, kw_only=True, tag="mutex"):
    """A futex of this process alone: a mutex, a condition, a semaphore, Python's locks."""

    address: int
    owner_tid: int | None = None
    """Thread that holds it, where its memory is that of a mutex of the C library."""
    owner_lives: bool | None = None
    """False: no thread of this process has that number, so it was held when the process forked."""


class SharedSemaphoreWait(_Wait, frozen=True, kw_only=True, tag="shared_semaphore"):
    """A futex in memory that other processes can map."""

    path: str | None = None
    others: Refs = ()
    """Who maps it, the waiter aside."""
    complete: bool = True


class SleepWait(_Wait, frozen=True, kw_only=True, tag="sleep"):
    """Until a moment, and nothing else can end it but a signal."""

    left_s: float | None = None
    """From the look on; of a relative sleep at most, since nobody saw it begin."""


class PollWait(_Wait, frozen=True, kw_only=True, tag="poll"):
    """Whichever of several comes first."""

    waits: tuple[Wait, ...] = ()
    left_s: float | None = None


class TerminalWait(_Wait, frozen=True, kw_only=True, tag="terminal"):
    """Somebody is to type."""

    path: str | None = None


class DeviceWait(_Wait, frozen=True, kw_only=True, tag="device"):
    """A driver: a GPU's, mostly."""

    path: str


class DiskWait(_Wait, frozen=True, kw_only=True, tag="disk"):
    """State D: inside the kernel, where no signal reaches it."""

    function: str | None = None
    path: str | None = None
    network: str | None = None


class Stopped(_Wait, frozen=True, kw_only=True, tag="stopped"):
    """State T: by a signal, or held by a tracer."""

    traced: bool = False


class Ended(_Wait, frozen=True, kw_only=True, tag="ended"):
    """A zombie, or gone."""


class UnknownWait(_Wait, frozen=True, kw_only=True, tag="unknown"):
    """The kernel did not tell, or it is a call that no row knows."""

    why: Literal["refused", "changed", "call", "no_proc"]
    call: str | None = None


Wait = (
    Running
    | FileWait
    | FileLockWait
    | PipeWait
    | TcpWait
    | ChildWait
    | MutexWait
    | SharedSemaphoreWait
    | SleepWait
    | PollWait
    | TerminalWait
    | DeviceWait
    | DiskWait
    | Stopped
    | Ended
    | UnknownWait
)


class ThreadFact(Value, frozen=True, kw_only=True):
    """One thread at one moment."""

    tid: int
    name: str
    state: str
    """R, S, D, T, t, Z."""
    switches: int
    """Times it was switched out: unchanged between two looks means that it did not run."""
    call: tuple[int, ...] = ()
    """Number and arguments of the system call: equal in two looks means the same wait."""
    wait: Wait
