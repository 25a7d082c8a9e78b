"""What a thread waits for: a value for each kind of object. Unknown is a value, too.

The kernel's view, without Python frames: a collective, a batch or a Python lock is one of these
with a name that only frames can give.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.model.words import Value


class ProcessRef(msgspec.Struct, frozen=True, order=True):
    """A process that another one waits for, or that holds something."""

    pid: int
    start: int
    name: str = ""


Refs = tuple[ProcessRef, ...]


class _Wait(Value, tag_field="wait"):
    """`complete` is False if some process could not be read: there may be more than is named."""

    timed: bool = False
    """A timeout ends the call."""
    stream: int | None = None
    """Descriptor of the standard stream that the call is on: 0, 1 or 2."""


class Running(_Wait, tag="running"):
    """It waits for nothing: it computes, or waits for a processor."""


class FileWait(_Wait, tag="file"):
    call: Literal["open", "read", "write", "sync", "other"]
    path: str | None = None
    kind: Literal["regular", "directory", "fifo", "device", "unknown"] = "unknown"
    network: str | None = None
    """Type of the network file system that holds it."""
    others: Refs = ()
    """Of a FIFO: the processes that have its other end open."""
    complete: bool = True
    unlinked: bool = False
    """No process can open this path any more."""
    end: Literal["read", "write", "both"] | None = None
    """The access for which it is opened. A FIFO opened to write has no reader."""


class FileLockWait(_Wait, tag="file_lock"):
    """flock() or a lock of fcntl()."""

    path: str | None = None
    holders: Refs = ()
    """All with the locked description open: a fork inherits it."""
    complete: bool = True
    """False as well without a holder: it is in another container or machine."""


class PipeWait(_Wait, tag="pipe"):
    """A pipe, a socket pair, or a unix socket: what is at the other end."""

    call: Literal["read", "write"]
    path: str | None = None
    """Of a unix socket with a name."""
    listens: bool = False
    """A server that waits for a connection, not for a reply."""
    others: Refs = ()
    complete: bool = True


class TcpWait(_Wait, tag="tcp"):
    """A connection, or a socket that waits for connections."""

    call: Literal["connect", "read", "write", "accept"]
    address: str = ""
    """Of the other end, `host:port`; of a listener its own."""
    others: Refs = ()
    """The other end, if it is on this machine."""
    complete: bool = True
    on_this_host: bool | None = None
    total_bytes: int | None = None
    """Received, or sent and acknowledged, since it was connected."""
    moved_bytes: int | None = None
    """The same between two samples."""


class ChildWait(_Wait, tag="child"):
    """wait4() and its like, or vfork() until the child has begun its program."""

    children: Refs = ()


class MutexWait(_Wait, tag="mutex"):
    """A futex of this process alone: a mutex, a condition, a semaphore, Python's locks."""

    address: int
    owner_tid: int | None = None
    """Thread that holds it, if its memory is that of a mutex of the C library."""
    owner_lives: bool | None = None
    """False: no thread of this process has that number, so it was held when the process forked."""


class SharedSemaphoreWait(_Wait, tag="shared_semaphore"):
    """A futex in memory that other processes can map."""

    path: str | None = None
    others: Refs = ()
    """Processes that map it, without the waiter."""
    complete: bool = True
    owner: ProcessRef | None = None
    """Of a mutex of the C library: its holder. Start 0 and no name: that thread is gone."""


class SleepWait(_Wait, tag="sleep"):
    """Until a moment; only a signal ends it earlier."""

    left_s: float | None = None
    """From the sample on; for a relative sleep an upper bound, because its beginning is unknown."""
    exact: bool = False
    """The kernel has its end as a moment."""
    repeats: bool | None = None
    """It has slept before: by two samples, or a timer that restarts automatically."""
    polls: tuple[str, str] | None = None
    """Name and value of a path variable in the function that sleeps."""


class PollWait(_Wait, tag="poll"):
    waits: tuple[Wait, ...] = ()
    left_s: float | None = None


class TerminalWait(_Wait, tag="terminal"):
    """A person has to type, or a process to write into its standard input."""

    path: str | None = None
    others: Refs = ()
    """Holders of the other end, if the input is a pipe or socket."""


class DeviceWait(_Wait, tag="device"):
    """A driver: a GPU's, mostly."""

    path: str
    gpu: GpuUse | None = None
    call: str = ""
    """The native function that waits; empty: not known."""
    by: str = ""
    """The Python call that led there, as in its line."""


class DiskWait(_Wait, tag="disk"):
    """State D: inside the kernel, where no signal reaches it."""

    function: str | None = None
    path: str | None = None
    network: str | None = None


class Stopped(_Wait, tag="stopped"):
    """It may not run: stopped by a signal, frozen with its cgroup, or held by a debugger."""

    traced: bool = False
    debugger: ProcessRef | None = None
    """None also if the debugger is in a pid namespace above ours."""
    freezer: str = ""
    """The file that froze its cgroup, and thaws it."""

    @property
    def outlives_kill(self) -> bool:
        """In a frozen cgroup of version 1 a SIGKILL takes effect only after it is thawed."""
        return self.freezer.endswith("/freezer.state")


class Ended(_Wait, tag="ended"):
    """A zombie, or gone."""


class UnknownWait(_Wait, tag="unknown"):
    """The kernel gave no answer, or the call has no row."""

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


def is_server(wait: object) -> bool:
    accepts = isinstance(wait, TcpWait) and wait.call == "accept"
    return accepts or (isinstance(wait, PipeWait) and wait.listens)


class ThreadFact(Value):
    tid: int
    name: str
    state: str
    switches: int
    """Times it was switched out: unchanged between two samples means that it did not run."""
    call: tuple[int, ...] = ()
    """Number and arguments of the system call: equal in two samples means the same wait."""
    wait: Wait
    idle_s: float | None = None
    """Since it last ran, even for a signal: it has waited, or been stopped, at least as long."""
    unchanged: bool | None = None
    """In two samples the same system call with the same arguments, without running in between.
    None: there was one sample."""

    @property
    def is_ticker(self) -> bool:
        """A library thread that wakes periodically, or serves other processes, and never releases
        others' locks. Not `pt_gloo_runloop`, for which a collective waits; not those of CUDA,
        which may call back.
        """
        return self.name.startswith(_TICKERS)

    def after(self, before: ThreadFact, passed_s: float) -> ThreadFact:
        """This fact with what an earlier sample of the same thread adds."""
        unchanged = (self.call, self.switches, self.state) == (
            before.call,
            before.switches,
            before.state,
        )
        wait = _since(before.wait, self.wait, passed_s, unchanged=unchanged)
        return msgspec.structs.replace(self, wait=wait, unchanged=unchanged)


_TICKERS = ("gloo_tcp_loop", "pt_tcpstore", "pt_workerserver")


def _since(before: Wait, now: Wait, passed_s: float, *, unchanged: bool) -> Wait:
    match before, now:
        case SleepWait(left_s=left_s), SleepWait(repeats=None):
            if not unchanged:
                return msgspec.structs.replace(now, repeats=True)
            if left_s is not None and not now.exact:
                return msgspec.structs.replace(now, left_s=max(0.0, left_s - passed_s))
        case TcpWait(total_bytes=int(old)), TcpWait(total_bytes=int(new)):
            if before.address == now.address:
                return msgspec.structs.replace(now, moved_bytes=new - old)
        case PollWait(), PollWait() if len(before.waits) == len(now.waits):
            both = zip(before.waits, now.waits, strict=True)
            waits = tuple(_since(b, n, passed_s, unchanged=unchanged) for b, n in both)
            return msgspec.structs.replace(now, waits=waits)
    return now
