"""Linux: what each thread waits for, by the system call it is in and the objects of that call.

Only reads: /proc and, where it may, memory of the waiting process. It must never open an object
that a process waits for: opening a FIFO releases an open of its other end. To be read before any
tracer attaches: a signal turns a sleep into `restart_syscall`, which shows nothing.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from watchdog_train.core.model import waits as w
from watchdog_train.system import proc, sock_diag
from watchdog_train.system.file_systems import NETWORK_FILE_SYSTEMS
from watchdog_train.system.linux import held
from watchdog_train.system.protocol import OpenFile, UnixSocket
from watchdog_train.system.sock_diag import TcpRow, tcp_rows

if sys.platform != "linux":
    raise ImportError("only for Linux")

_NUMBERS = {
    "x86_64": (
        "read 0 17 19 295, write 1 18 20 40 296, open 2, openat 257 437, poll 7, ppoll 271, "
        "select 23 270, epoll 232 281 441, ioctl 16, nanosleep 35, clock_nanosleep 230, "
        "connect 42, accept 43 288, send 44 46, recv 45 47 299, spawn 56 57 58 435, wait4 61, "
        "waitid 247, fcntl 72, flock 73, sync 74 75 277, futex 202, stat 4 6 262 332, list 78 "
        "217, signal 34 128 130, restart_syscall 219"
    ),
    "aarch64": (
        "read 63 65 67, write 64 66 68 71, openat 56 437, ppoll 73, select 72, epoll 22 441, "
        "ioctl 29, nanosleep 101, clock_nanosleep 115, connect 203, accept 202 242, send 206 "
        "211, recv 207 212, spawn 220 435, wait4 260, waitid 95, fcntl 25, flock 32, sync 82 "
        "83, futex 98, stat 79 291, list 61, signal 133 137, restart_syscall 128"
    ),
}.get(platform.machine(), "")
"""Numbers of asm/unistd.h, with their meaning in this module."""
_OPENAT2 = 437
_Kind = Literal["regular", "directory", "fifo", "device", "unknown"]
_End = Literal["read", "write", "both"]
_CALLS = {
    int(number): name
    for name, *numbers in map(str.split, filter(None, _NUMBERS.split(",")))
    for number in numbers
}
_ON_A_FILE: Mapping[str, Literal["read", "write", "sync", "other"]] = {
    "read": "read", "recv": "read", "write": "write", "send": "write", "sync": "sync",
    "ioctl": "other", "list": "other",
}  # fmt: skip
_FUTEX_PRIVATE, _FUTEX_COMMAND = 128, 127
_FUTEX_WAIT, _FUTEX_LOCK_PI = (0, 9), (6, 11, 13)
_LOCKED_WITH_WAITERS = 2
_WAITERS, _OWNER_BITS = 0x80000000, 0x3FFFFFFF  # of a word that holds its owner's number
_ROBUST, _INHERITS, _NO_KIND = 16, 32, 0x380  # kinds; shared and elision do not matter here
_MUTEX = struct.Struct("=iIiIi")  # __lock, __count, __owner, __nusers, __kind of glibc's mutex
_MOST_USERS = 1 << 16
_TIMER_ABSTIME = 1
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_ACCESS = 3  # of open's flags: read, write, both
_ABOUT = re.compile(
    rb"Name:\t(.*)(?s:.*?)\nState:\t(.)(?s:.*)"
    rb"\nvoluntary_ctxt_switches:\t(\d+)\nnonvoluntary_ctxt_switches:\t(\d+)"
)
_AT_FDCWD = -100
_MOST_POLLED = 64
_PATH_BYTES = 4096
_MOST_THREADS = 512


class WaitReader:
    """The waits at one moment; data of all processes is listed once, when needed."""

    def __init__(self) -> None:
        self._open_by: dict[str, list[tuple[int, OpenFile]]] | None = None
        self._complete = proc.read_stat(1) is not None  # else mounted with hidepid
        self._alone = proc.link("self", "ns/pid") == _FIRST_PID_NAMESPACE
        """Not in a container, where /proc lacks the processes of other pid namespaces."""
        self._clock_ms = _last_ran_ms("self")
        self._moved: dict[int, int] | None = None
        self._tcp: dict[str, dict[int, TcpRow]] = {}
        self._unix: Mapping[int, UnixSocket] | None = None
        self._held: dict[tuple[int, str], w.Stopped | None] = {}
        self._mapped: dict[tuple[str, str], list[int]] = {}
        self._by_parent: dict[int, list[w.ProcessRef]] | None = None
        self._by_call: dict[str, Callable[[int, tuple[int, ...]], w.Wait]] = {
            "flock": self._lock,
            "fcntl": self._lock,
            "poll": self._poll,
            "ppoll": self._poll,
            "select": self._select,
            "epoll": self._epoll,
            "wait4": self._child,
            "waitid": self._child,
            "futex": self._futex,
            "nanosleep": self._sleep,
            "clock_nanosleep": self._sleep,
            "connect": lambda pid, call: self._descriptor(pid, call[1], "write"),
            "accept": lambda pid, call: self._descriptor(pid, call[1], "accept"),
        }

    def threads(self, pid: int, only: Iterable[int] | None = None) -> tuple[w.ThreadFact, ...]:
        """The threads of a process, or some of them, without exited ones."""
        tids = proc.numbers(pid, "task") or [] if only is None else list(only)
        tids.sort(key=lambda tid: tid != pid)  # the main one is never left out
        found = (self._thread(pid, tid) for tid in tids[:_MOST_THREADS])
        return tuple(fact for fact in found if fact is not None)

    def _thread(self, pid: int, tid: int) -> w.ThreadFact | None:
        place = f"/proc/{pid}/task/{tid}/status"
        about = _ABOUT.search(proc.read(place, proc.SMALL_BYTES) or b"")
        about = about or _ABOUT.search(proc.read(place) or b"")
        if about is None:
            return None
        name, state = about[1].decode("utf-8", "replace"), about[2].decode()
        ran_ms = _last_ran_ms(f"{pid}/task/{tid}")
        call = _call(pid, tid)
        wait = self._wait(pid, tid, state, call)
        if call and _call(pid, tid) != call:
            # Its arguments may have been another call's when memory was read.
            wait = w.UnknownWait(why="changed")
        return w.ThreadFact(
            tid=tid,
            name=name,
            state=state,
            switches=int(about[3]) + int(about[4]),
            call=call or (),
            wait=wait,
            idle_s=self._idle_s(ran_ms),
        )

    def _idle_s(self, ran_ms: float | None) -> float | None:
        """By the scheduler's own clock, which differs from every other counter."""
        if ran_ms is None or self._clock_ms is None:
            return None
        return max(0.0, round((self._clock_ms - ran_ms) / 1000, 3))

    def _wait(self, pid: int, tid: int, state: str, call: tuple[int, ...] | None) -> w.Wait:
        if (pid, state) not in self._held:
            self._held[pid, state] = held(pid, state)
        if (stopped := self._held[pid, state]) is not None:
            return stopped
        if state in "ZX":
            return w.Ended()
        if call == ():
            return w.Running()
        name = _CALLS.get(call[0]) if call else None
        if name == "spawn":
            return w.ChildWait(children=self._just_made(pid, tid))
        if state == "D":
            return self._disk(pid, tid, name, call)
        if call is None:
            return w.UnknownWait(why="refused")
        if name is None:
            return w.UnknownWait(why="call", call=str(call[0]))
        if name in ("open", "openat"):
            return self._open(pid, tid, call)
        by_call = self._by_call.get(name)
        if by_call is not None:
            return by_call(pid, call)
        on_file = _ON_A_FILE.get(name)
        if on_file is None:
            return w.UnknownWait(why="call", call=name)
        return self._descriptor(pid, call[1], on_file)

    # -- files ----------------------------------------------------------------------------------
    def _descriptor(
        self, pid: int, number: int, call: Literal["read", "write", "sync", "other", "accept"]
    ) -> w.Wait:
        found = self._object(pid, number, call)
        return msgspec.structs.replace(found, stream=number) if number <= 2 else found

    def _object(
        self, pid: int, number: int, call: Literal["read", "write", "sync", "other", "accept"]
    ) -> w.Wait:
        target = proc.link(pid, f"fd/{number}")
        if target is None:
            return w.UnknownWait(why="refused")
        if target.startswith("pipe:["):
            others = self._holders(target, writing=call == "read")
            return w.PipeWait(
                call="read" if call == "read" else "write", others=others, complete=self._complete
            )
        if target.startswith("socket:["):
            return self._socket(pid, int(target[8:-1]), call)
        if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            return w.TerminalWait(path=target)
        if target.startswith("anon_inode:"):
            return self._without_name(pid, number, target[11:].strip("[]"))
        if target.startswith("/dev/") and not target.startswith(("/dev/shm/", "/dev/null")):  # noqa: S108
            return w.DeviceWait(path=target)
        on_file = "other" if call == "accept" else call
        return self._file(pid, target, on_file, fd=number)

    def _without_name(self, pid: int, number: int, kind: str) -> w.Wait:
        about = proc.fields(f"/proc/{pid}/fdinfo/{number}")
        with suppress(KeyError, ValueError):
            if kind == "timerfd":
                (left_s, rest), (every_s, every) = (
                    map(int, about[name].strip("()").split(","))
                    for name in ("it_value", "it_interval")
                )
                repeats = every_s > 0 or every > 0
                return w.SleepWait(left_s=left_s + rest / 1e9, repeats=repeats, exact=True)
            if kind == "pidfd" and int(about["Pid"]) > 0:
                return w.ChildWait(children=(_ref(int(about["Pid"])),))
        return w.UnknownWait(why="call", call=kind)

    def _file(
        self, pid: int, path: str, call: Literal["read", "write", "sync", "other"], fd: int
    ) -> w.FileWait:
        network = _network_type(pid, path)
        if network is not None:  # a dead server would block us
            return w.FileWait(call=call, path=path, network=network)
        kind = _kind(f"/proc/{pid}/fd/{fd}")
        is_fifo = kind == "fifo"
        return w.FileWait(
            call=call,
            path=path,
            kind=kind,
            others=self._holders(path, writing=call == "read") if is_fifo else (),
            complete=self._listed_all() if is_fifo else True,
            unlinked=path.endswith(" (deleted)"),
        )

    def _open(self, pid: int, tid: int, call: tuple[int, ...]) -> w.Wait:
        path, end = _opened(pid, call)
        if path is None:
            return w.UnknownWait(why="refused", call="open")
        network = _network_type(pid, path)
        if network is not None:
            return w.FileWait(call="open", path=path, network=network, end=end)
        kind = _kind(f"/proc/{pid}/root{path}")
        # Where the kernel says that it waits for the other end of a FIFO, what has the path now
        # is another file.
        unlinked = kind != "fifo" and _function(pid, tid) == "wait_for_partner"
        return w.FileWait(
            call="open",
            path=path,
            kind="fifo" if unlinked else kind,
            complete=self._listed_all() if kind == "fifo" else True,
            unlinked=unlinked,
            end=end,
        )

    def _lock(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        path = proc.link(pid, f"fd/{call[1]}")
        if path is None:
            return w.UnknownWait(why="refused", call="lock")
        taken = _taken(pid, call[1])
        holders = [
            _ref(other)
            for other, file in self._listing().get(path, ())
            if (other, file.number) != (pid, call[1])
            and any(taken in (None, lock) for lock in _locks(other, file.number))
        ]
        is_told = taken is not None and bool(holders)
        if taken is not None and not holders:
            # Who took it is public, what it has open is not: another user's, mostly.
            taker = int(taken[3])
            if taker > 0 and proc.exists(taker) and proc.numbers(taker, "fd") is None:
                holders = [_ref(taker)]
        return w.FileLockWait(
            path=path,
            holders=tuple(dict.fromkeys(holders)),
            complete=self._complete and is_told,
        )

    def _disk(self, pid: int, tid: int, name: str | None, call: tuple[int, ...] | None) -> w.Wait:
        path = None
        if call and name in ("open", "openat"):
            path, _ = _opened(pid, call)
        elif call and name is not None and (name in _ON_A_FILE or name in ("flock", "fcntl")):
            path = proc.link(pid, f"fd/{call[1]}")
        return w.DiskWait(
            function=_function(pid, tid),
            path=path,
            network=_network_type(pid, path) if path else None,
        )

    # -- sockets --------------------------------------------------------------------------------
    def _socket(
        self, pid: int, inode: int, call: Literal["read", "write", "sync", "other", "accept"]
    ) -> w.Wait:
        namespace = proc.link(pid, "ns/net") or ""
        if namespace not in self._tcp:
            self._tcp[namespace] = tcp_rows(pid)
        rows = self._tcp[namespace]
        row = rows.get(inode)
        word: Literal["connect", "read", "write", "accept"]
        if row is not None:
            if row.state == "LISTEN":
                return w.TcpWait(call="accept", address=row.here)
            word = "connect" if row.state == "SYN_SENT" else "read" if call == "read" else "write"
            host, _, port = row.there.rpartition(":")
            on_this_host = host == "[::1]" or host.startswith("127.")
            on_this_host |= host in {r.here.rpartition(":")[0] for r in rows.values()}
            ends = [o for o, r in rows.items() if (r.here, r.there) == (row.there, row.here)]
            if not ends and on_this_host:  # before it has been accepted
                listeners = {o: r for o, r in rows.items() if r.state == "LISTEN"}
                ends = [o for o, r in listeners.items() if r.here.endswith(f":{port}")]
            others = [ref for end in ends for ref in self._holders(f"socket:[{end}]")]
            return w.TcpWait(
                call=word,
                address=row.there,
                others=tuple(dict.fromkeys(others)),
                complete=self._complete,
                on_this_host=on_this_host,
                total_bytes=self._bytes(namespace, inode),
            )
        if self._unix is None:
            self._unix = _unix_sockets()
        if (found := self._unix.get(inode)) is None:
            return w.UnknownWait(why="call", call="socket")
        if call == "write" and not found.peer:  # connect: it has no other end yet
            return w.PipeWait(call="write", complete=False)
        named = self._unix.get(found.peer, found).name or found.name
        return w.PipeWait(
            call="read" if call in ("read", "accept") else "write",
            path=os.fsdecode(named.rstrip(b"\0")).replace("\0", "@") or None,
            listens=found.listens,
            others=self._holders(f"socket:[{found.peer}]") if found.peer else (),
            complete=self._complete,
        )

    def _bytes(self, namespace: str, inode: int) -> int | None:
        """Of a connection in our own network namespace; the kernel shows no others."""
        if self._moved is None:
            self._moved = {}
            with suppress(OSError):
                sockets = sock_diag.tcp_sockets().values()
                self._moved = {each.inode: each.moved_bytes for each in sockets}
        return self._moved.get(inode) if namespace == proc.link("self", "ns/net") else None

    # -- several at once ------------------------------------------------------------------------
    def _poll(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        count = min(call[2], _MOST_POLLED)
        said = proc.memory(pid, call[1], 8 * count) if count else b""
        if said is None:
            return w.UnknownWait(why="refused", call="poll")
        asked = [struct.unpack_from("=ihh", said, 8 * at) for at in range(len(said) // 8)]
        left_s = _milliseconds(call[3]) if _CALLS[call[0]] == "poll" else _left(pid, call[3], 1e9)
        return self._several(
            pid, [(fd, bool(events & 4)) for fd, events, _ in asked if fd >= 0], left_s
        )

    def _select(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        parts = 1e6 if call[0] == 23 and platform.machine() == "x86_64" else 1e9
        left_s = _left(pid, call[5], parts)
        asked = []
        for pointer, writes in ((call[2], False), (call[3], True)):
            said = proc.memory(pid, pointer, (min(call[1], 1024) + 7) // 8) if pointer else b""
            if said is None:
                return w.UnknownWait(why="refused", call="select")
            bits = [
                (at * 8 + bit)
                for at, byte in enumerate(said)
                for bit in range(8)
                if byte >> bit & 1
            ]
            asked += [(fd, writes) for fd in bits if fd < call[1]]
        return self._several(pid, asked, left_s)

    def _epoll(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        about = (proc.text(f"/proc/{pid}/fdinfo/{call[1]}") or "").splitlines()
        lines = [line.split() for line in about if line.startswith("tfd:")]
        asked = [(int(words[1]), bool(int(words[3], 16) & 4)) for words in lines if len(words) > 3]
        new = call[0] == 441
        return self._several(
            pid, asked, _left(pid, call[4], 1e9) if new else _milliseconds(call[4])
        )

    def _several(self, pid: int, asked: list[tuple[int, bool]], left_s: float | None) -> w.Wait:
        if not asked:
            return w.SleepWait(left_s=left_s, timed=True) if left_s else w.PollWait()
        found = [
            self._descriptor(pid, fd, "write" if writes else "read")
            for fd, writes in asked[:_MOST_POLLED]
        ]
        if len(asked) > _MOST_POLLED:
            found.append(w.UnknownWait(why="call", call="more"))
        if len(found) == 1 and not isinstance(found[0], w.UnknownWait):
            return msgspec.structs.replace(found[0], timed=left_s is not None)
        return w.PollWait(waits=tuple(found), left_s=left_s, timed=left_s is not None)

    # -- processes, locks, time -------------------------------------------------------------------
    def _child(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        kind, number = 1, _signed(call[1])
        if _CALLS[call[0]] == "waitid":
            kind, number = call[1], _signed(call[2])
        children = self._children(pid)
        if kind == 3:  # P_PIDFD
            about = proc.fields(f"/proc/{pid}/fdinfo/{number}")
            children = tuple(each for each in children if str(each.pid) == about.get("Pid"))
        elif kind == 1 and number > 0:
            depth = len(proc.own_numbers(pid))
            children = tuple(
                c for c in children if proc.own_numbers(c.pid)[:depth][-1:] == [number]
            )
        return w.ChildWait(children=children)

    def _children(self, pid: int) -> w.Refs:
        if self._by_parent is None:
            self._by_parent = {}
            for found in filter(None, map(proc.read_stat, proc.list_pids())):
                child = w.ProcessRef(found.pid, found.start, found.name)
                self._by_parent.setdefault(found.ppid, []).append(child)
        return tuple(self._by_parent.get(pid, ()))

    def _just_made(self, pid: int, tid: int) -> w.Refs:
        """The child that has not begun its program yet: the newest one of this very thread."""
        made = (proc.text(f"/proc/{pid}/task/{tid}/children") or "").split()
        return (_ref(int(made[-1])),) if made else self._children(pid)

    def _futex(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        address, operation, value, timeout = call[1:5]
        command = operation & _FUTEX_COMMAND
        if command not in (*_FUTEX_WAIT, *_FUTEX_LOCK_PI):
            return w.UnknownWait(why="call", call="futex")
        timed = timeout != 0
        owner = None
        if command in _FUTEX_LOCK_PI or (command == 0 and value != 0):
            owner = _mutex_owner(pid, address, value if command == 0 else None)
        if operation & _FUTEX_PRIVATE:
            return _mutex(pid, address, owner, timed=timed)
        mapping = _mapping(pid, address)
        if mapping is None:
            return w.UnknownWait(why="refused", call="futex")
        device, inode, path = mapping
        if inode == "0":  # private memory, called shared: no other process can have it
            return _mutex(pid, address, owner, timed=timed)
        key = (device, inode)
        if key not in self._mapped:
            wanted = f" {device} {inode} "
            self._listing()
            self._mapped[key] = [
                each
                for each in proc.list_pids()
                if wanted in (proc.text(f"/proc/{each}/maps") or "")
            ]
        others = tuple(_ref(each) for each in self._mapped[key] if each != pid)
        return w.SharedSemaphoreWait(
            path=path or None,
            others=others,
            complete=self._complete,
            owner=_process_of(owner) if owner is not None else None,
            timed=timed,
        )

    def _sleep(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        if _CALLS[call[0]] == "nanosleep":
            return w.SleepWait(left_s=_left(pid, call[1], 1e9), timed=True)
        left_s, exact = _left(pid, call[3], 1e9), bool(call[2] & _TIMER_ABSTIME)
        if left_s is not None and exact:
            with suppress(OSError):
                left_s = max(0.0, left_s - time.clock_gettime(_signed(call[1])))
        return w.SleepWait(left_s=left_s, timed=True, exact=exact)

    # -- who has what open ------------------------------------------------------------------------
    def _listing(self) -> dict[str, list[tuple[int, OpenFile]]]:
        if self._open_by is not None:
            return self._open_by
        self._open_by = {}
        for pid in proc.list_pids():
            files = proc.open_files(pid)
            if files is None:
                # A zombie has none; a process that ended meanwhile has none either.
                found = proc.read_stat(pid)
                self._complete = self._complete and (found is None or found.is_dead)
                continue
            for file in files:
                self._open_by.setdefault(file.name, []).append((pid, file))
        return self._open_by

    def _listed_all(self) -> bool:
        """Whether all processes with a file open are known: other containers may share it."""
        self._listing()
        return self._complete and self._alone

    def _holders(self, target: str, *, writing: bool | None = None) -> w.Refs:
        found = [
            _ref(pid)
            for pid, file in self._listing().get(target, ())
            if writing is None or (file.writes if writing else file.reads)
        ]
        return tuple(dict.fromkeys(found))


def _unix_sockets() -> Mapping[int, UnixSocket]:
    with suppress(OSError):
        return sock_diag.connections().unix
    return {}


def _call(pid: int, tid: int) -> tuple[int, ...] | None:
    """Number and arguments; empty: it runs; None: refused, or in the kernel without a call."""
    words = (proc.read(f"/proc/{pid}/task/{tid}/syscall", proc.SMALL_BYTES) or b"").split()
    if words == [b"running"]:
        return ()
    if len(words) < 7:
        return None
    return (int(words[0]), *(int(word, 16) for word in words[1:7]))


def _ref(pid: int) -> w.ProcessRef:
    found = proc.read_stat(pid)
    return w.ProcessRef(pid, found.start, found.name) if found else w.ProcessRef(pid, 0)


def _signed(word: int) -> int:
    """The lower half of a register as the C int that it holds."""
    return int.from_bytes((word & 0xFFFFFFFF).to_bytes(4, "little"), "little", signed=True)


def _milliseconds(word: int) -> float | None:
    return _signed(word) / 1000.0 if _signed(word) >= 0 else None


def _left(pid: int, pointer: int, parts: float) -> float | None:
    said = proc.memory(pid, pointer, 16) if pointer else None
    if said is None or len(said) < 16:
        return None
    seconds, rest = struct.unpack("=qq", said)
    return float(seconds + rest / parts)


def _opened(pid: int, call: tuple[int, ...]) -> tuple[str | None, _End | None]:
    """Path and direction of a call that opens; a path of None could not be read."""
    at = call[1] if _CALLS[call[0]] == "openat" else _AT_FDCWD
    pointer, flags = call[2:4] if _CALLS[call[0]] == "openat" else call[1:3]
    said = proc.memory(pid, pointer, _PATH_BYTES)
    if call[0] == _OPENAT2:
        how = proc.memory(pid, flags, 8)
        flags = int.from_bytes(how, sys.byteorder) if how else _ACCESS
    if said is None:
        return None, None
    path = os.fsdecode(said.partition(b"\0")[0])
    if not path.startswith("/"):
        here = "cwd" if _signed(at) == _AT_FDCWD else f"fd/{_signed(at)}"
        path = os.path.join(proc.link(pid, here) or "", path)
    ends: tuple[_End, ...] = ("read", "write", "both")
    access = flags & _ACCESS
    return os.path.normpath(path), ends[access] if access < len(ends) else None


def _kind(place: str) -> _Kind:
    """Of a file; never call it for one on a network, where stat() might not return."""
    try:
        found = os.stat(place)
    except OSError:
        return "unknown"
    kinds: tuple[tuple[Callable[[int], bool], _Kind], ...] = (
        (stat.S_ISREG, "regular"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    )
    return next((kind for test, kind in kinds if test(found.st_mode)), "unknown")


def _function(pid: int, tid: int) -> str | None:
    function = (proc.text(f"/proc/{pid}/task/{tid}/wchan") or "").strip()
    return function if function not in ("", "0") else None


def _last_ran_ms(place: str) -> float | None:
    """By the clock of the scheduler, where the kernel shows it."""
    _, _, rest = (proc.read(f"/proc/{place}/sched", 512) or b"").partition(b"se.exec_start")
    with suppress(ValueError, IndexError):
        return float(rest.split(None, 2)[1])
    return None


def _network_type(pid: int, path: str) -> str | None:
    kind = proc.mount_type(proc.read(f"/proc/{pid}/mountinfo") or b"", path)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _locks(pid: int, number: int) -> list[tuple[str, ...]]:
    """Locks on this descriptor: kind, mode, type, pid, file, begin and end."""
    about = proc.text(f"/proc/{pid}/fdinfo/{number}") or ""
    lines = [line.split()[2:] for line in about.splitlines() if line.startswith("lock:")]
    return [tuple(words) for words in lines if "->" not in words]


def _taken(pid: int, number: int) -> tuple[str, ...] | None:
    """The lock that this process waits for, as the kernel lists it; its pid may be 0 or -1."""
    inode = proc.fields(f"/proc/{pid}/fdinfo/{number}").get("ino")
    lines = [line.split() for line in (proc.text("/proc/locks") or "").splitlines()]
    for words in lines:
        waits = len(words) == 9 and words[1] == "->" and words[5] == str(pid)
        if waits and words[6].rpartition(":")[2] == inode:
            same = (each for each in lines if each[0] == words[0] and each[1] != "->")
            return next((tuple(each[1:]) for each in same), None)
    return None


def _mutex_owner(pid: int, address: int, waits_for: int | None) -> int | None:
    """By the layout of glibc's pthread_mutex_t; None for some other kind of lock.

    `waits_for`: the lock's word when the wait began; None for a lock that only the kernel gives,
    whose word is then its owner.
    """
    said = proc.memory(pid, address, _MUTEX.size)
    if said is None or len(said) < _MUTEX.size or said != proc.memory(pid, address, _MUTEX.size):
        return None
    lock, _, owner, users, kind = _MUTEX.unpack(said)
    lock &= 0xFFFFFFFF
    if waits_for is None:
        return lock & _OWNER_BITS or None
    plain = kind & ~_NO_KIND
    if lock != waits_for & 0xFFFFFFFF or owner <= 0 or not 0 < users < _MOST_USERS:
        return None
    if lock == _LOCKED_WITH_WAITERS:
        return owner if 0 <= plain <= 3 else None
    names_it = lock == _WAITERS | owner
    return owner if names_it and 0 <= plain & ~(_ROBUST | _INHERITS) <= 3 < plain else None


def _mutex(pid: int, address: int, owner: int | None, *, timed: bool) -> w.MutexWait:
    if owner is None or proc.numbers(pid, "task") is None:
        return w.MutexWait(address=address, owner_tid=owner, timed=timed)
    ours = proc.our_thread(pid, owner)
    return w.MutexWait(
        address=address, owner_tid=ours or owner, owner_lives=ours is not None, timed=timed
    )


def _process_of(tid: int) -> w.ProcessRef:
    process = proc.fields(f"/proc/{tid}/status").get("Tgid", "")
    return _ref(int(process)) if process.isdigit() else w.ProcessRef(tid, 0)


def _mapping(pid: int, address: int) -> tuple[str, str, str] | None:
    """Device, inode and path of what is mapped there; inode 0 for a private mapping."""
    for line in (proc.text(f"/proc/{pid}/maps") or "").splitlines():
        words = line.split(None, 5)
        begin, _, end = words[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            inode = "0" if words[1].endswith("p") else words[4]
            return words[3], inode, words[5] if len(words) > 5 else ""
    return None
