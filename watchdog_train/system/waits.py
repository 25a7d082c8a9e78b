"""Linux: what each thread waits for, by the system call it is in and the objects of that call.

Only reads: /proc and, where it may, memory of the waiting process. It must never open an object
that somebody waits for: opening a FIFO releases whoever opens its other end. To be read before any
tracer comes: a signal turns a sleep into `restart_syscall`, which tells nothing.
"""

from __future__ import annotations

import os
import platform
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
from watchdog_train.system.places import NETWORK_FILE_SYSTEMS
from watchdog_train.system.protocol import OpenFile
from watchdog_train.system.sockets import TcpRow, tcp_rows

if sys.platform != "linux":
    raise ImportError("only for Linux")

_NUMBERS = {
    "x86_64": {
        "read": (0, 17, 19, 295), "write": (1, 18, 20, 40, 296), "open": (2,), "openat": (257, 437),
        "poll": (7,), "ppoll": (271,), "select": (23, 270), "epoll": (232, 281, 441),
        "ioctl": (16,), "nanosleep": (35,), "clock_nanosleep": (230,), "connect": (42,),
        "accept": (43, 288), "send": (44, 46), "recv": (45, 47, 299), "spawn": (56, 57, 58, 435),
        "wait4": (61,), "waitid": (247,), "fcntl": (72,), "flock": (73,), "sync": (74, 75, 277),
        "futex": (202,), "stat": (4, 6, 262, 332), "list": (78, 217),
    },
    "aarch64": {
        "read": (63, 65, 67), "write": (64, 66, 68, 71), "openat": (56, 437), "ppoll": (73,),
        "select": (72,), "epoll": (22, 441), "ioctl": (29,), "nanosleep": (101,),
        "clock_nanosleep": (115,), "connect": (203,), "accept": (202, 242), "send": (206, 211),
        "recv": (207, 212), "spawn": (220, 435), "wait4": (260,), "waitid": (95,), "fcntl": (25,),
        "flock": (32,), "sync": (82, 83), "futex": (98,), "stat": (79, 291), "list": (61,),
    },
}.get(platform.machine(), {})  # fmt: skip
"""Numbers of asm/unistd.h, by what this module makes of them."""
_CALLS = {number: name for name, numbers in _NUMBERS.items() for number in numbers}
_ON_A_FILE: Mapping[str, Literal["read", "write", "sync", "other"]] = {
    "read": "read", "recv": "read", "write": "write", "send": "write", "sync": "sync",
    "ioctl": "other", "list": "other",
}  # fmt: skip
_FUTEX_PRIVATE, _FUTEX_COMMAND = 128, 127
_FUTEX_WAIT, _FUTEX_LOCK_PI = (0, 9), (6, 11, 13)
_LOCKED_WITH_WAITERS = 2
_MUTEX = struct.Struct("=iIiIi")  # __lock, __count, __owner, __nusers, __kind of glibc's mutex
_MOST_USERS = 1 << 16
_TIMER_ABSTIME = 1
_AT_FDCWD = -100
_MOST_POLLED = 64
_PATH_BYTES = 4096
_MOST_THREADS = 512


class WaitReader:
    """One look at who waits for what; what all processes have is listed once, when needed."""

    def __init__(self) -> None:
        self._open_by: dict[str, list[tuple[int, OpenFile]]] | None = None
        self._complete = proc.read_stat(1) is not None  # else mounted with hidepid
        self._tcp: dict[str, dict[int, TcpRow]] = {}
        self._unix: dict[int, int] | None = None
        self._mapped: dict[tuple[str, str], list[int]] = {}
        self._by_parent: dict[int, list[w.ProcessRef]] | None = None
        self._by_call: dict[str, Callable[[int, tuple[int, ...]], w.Wait]] = {
            "open": self._open,
            "openat": self._open,
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
        """The threads of a process, or some of them; of those that have ended meanwhile none."""
        tids = proc.numbers(pid, "task") or [] if only is None else list(only)
        found = (self._thread(pid, tid) for tid in tids[:_MOST_THREADS])
        return tuple(fact for fact in found if fact is not None)

    def _thread(self, pid: int, tid: int) -> w.ThreadFact | None:
        about = proc.fields(f"/proc/{pid}/task/{tid}/status")
        if "State" not in about:
            return None
        call = _call(pid, tid)
        wait = self._wait(pid, tid, about["State"][:1], call)
        if call and _call(pid, tid) != call:
            # Its arguments may have been another call's when memory was read.
            wait = w.UnknownWait(why="changed")
        voluntary, other = (f"{name}voluntary_ctxt_switches" for name in ("", "non"))
        return w.ThreadFact(
            tid=tid,
            name=about.get("Name", ""),
            state=about["State"][:1],
            switches=int(about.get(voluntary, 0)) + int(about.get(other, 0)),
            call=call or (),
            wait=wait,
        )

    def _wait(self, pid: int, tid: int, state: str, call: tuple[int, ...] | None) -> w.Wait:
        if state in "Tt":
            return w.Stopped(traced=state == "t")
        if state in "ZX":
            return w.Ended()
        if call == ():
            return w.Running()
        name = _CALLS.get(call[0]) if call else None
        if name == "spawn":
            return w.ChildWait(children=self._children(pid))
        if state == "D":
            return self._disk(pid, tid, name, call)
        if call is None:
            return w.UnknownWait(why="refused")
        if name is None:
            return w.UnknownWait(why="call", call=str(call[0]))
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
            return w.UnknownWait(why="call", call=target)
        if target.startswith("/dev/") and not target.startswith(("/dev/shm/", "/dev/null")):  # noqa: S108
            return w.DeviceWait(path=target)
        on_file = "other" if call == "accept" else call
        return self._file(pid, target, on_file, fd=number)

    def _file(
        self,
        pid: int,
        path: str,
        call: Literal["open", "read", "write", "sync", "other"],
        fd: int | None = None,
    ) -> w.FileWait:
        network = _network_type(pid, path)
        if network is not None:  # a dead server would hold whoever asks
            return w.FileWait(call=call, path=path, network=network)
        place = f"/proc/{pid}/fd/{fd}" if fd is not None else f"/proc/{pid}/root{path}"
        kind: Literal["regular", "directory", "fifo", "device", "unknown"] = "unknown"
        unlinked = path.endswith(" (deleted)")
        with suppress(OSError):
            kind = _kind(os.stat(place).st_mode)
        if kind != "fifo":
            return w.FileWait(call=call, path=path, kind=kind, unlinked=unlinked)
        others = self._holders(path, writing=call == "read") if fd is not None else ()
        return w.FileWait(
            call=call,
            path=path,
            kind=kind,
            others=others,
            complete=self._listed_all(),
            unlinked=unlinked,
        )

    def _open(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        at, pointer = (call[1], call[2]) if _CALLS[call[0]] == "openat" else (_AT_FDCWD, call[1])
        said = proc.memory(pid, pointer, _PATH_BYTES)
        if said is None:
            return w.UnknownWait(why="refused", call="open")
        path = os.fsdecode(said.partition(b"\0")[0])
        if not path.startswith("/"):
            here = "cwd" if _signed(at) == _AT_FDCWD else f"fd/{_signed(at)}"
            path = os.path.join(proc.link(pid, here) or "", path)
        return self._file(pid, os.path.normpath(path), "open")

    def _lock(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        path = proc.link(pid, f"fd/{call[1]}")
        if path is None:
            return w.UnknownWait(why="refused", call="lock")
        holders = [
            _ref(other)
            for other, file in self._listing().get(path, ())
            if (other, file.number) != (pid, call[1]) and _has_lock(other, file.number)
        ]
        return w.FileLockWait(
            path=path, holders=tuple(dict.fromkeys(holders)), complete=self._complete
        )

    def _disk(self, pid: int, tid: int, name: str | None, call: tuple[int, ...] | None) -> w.Wait:
        path = None
        if call and name in ("open", "openat"):
            opened = self._open(pid, call)
            path = opened.path if isinstance(opened, w.FileWait) else None
        elif call and name is not None and (name in _ON_A_FILE or name in ("flock", "fcntl")):
            path = proc.link(pid, f"fd/{call[1]}")
        function = (proc.text(f"/proc/{pid}/task/{tid}/wchan") or "").strip()
        return w.DiskWait(
            function=function if function not in ("", "0") else None,
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
            there = next(
                (o for o, r in rows.items() if (r.here, r.there) == (row.there, row.here)), 0
            )
            others = (
                self._holders(f"socket:[{there}]") if there else self._listeners(rows, row.there)
            )
            return w.TcpWait(call=word, address=row.there, others=others)
        if self._unix is None:
            self._unix = _unix_peers()
        peer = self._unix.get(inode)
        others = self._holders(f"socket:[{peer}]") if peer else ()
        return w.PipeWait(
            call="read" if call in ("read", "accept") else "write",
            listens=call == "accept",
            others=others,
            complete=self._complete and (peer is not None or call == "accept"),
        )

    def _listeners(self, rows: Mapping[int, TcpRow], there: str) -> w.Refs:
        """Who listens at an address of this machine, before it has accepted."""
        port = there.rpartition(":")[2]
        local = {row.here for row in rows.values()}
        if not any(here.rpartition(":")[0] == there.rpartition(":")[0] for here in local):
            return ()
        at = [o for o, r in rows.items() if r.state == "LISTEN" and r.here.endswith(f":{port}")]
        return tuple(ref for inode in at for ref in self._holders(f"socket:[{inode}]"))

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
            depth = len(_numbers(pid))
            children = tuple(c for c in children if _numbers(c.pid)[:depth][-1:] == [number])
        return w.ChildWait(children=children)

    def _children(self, pid: int) -> w.Refs:
        if self._by_parent is None:
            self._by_parent = {}
            for found in filter(None, map(proc.read_stat, proc.list_pids())):
                child = w.ProcessRef(found.pid, found.start, found.name)
                self._by_parent.setdefault(found.ppid, []).append(child)
        return tuple(self._by_parent.get(pid, ()))

    def _futex(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        address, operation, value, timeout = call[1:5]
        command = operation & _FUTEX_COMMAND
        if command not in (*_FUTEX_WAIT, *_FUTEX_LOCK_PI):
            return w.UnknownWait(why="call", call="futex")
        timed = timeout != 0
        if not operation & _FUTEX_PRIVATE:
            return self._shared(pid, address, timed=timed)
        owner = None
        if command in _FUTEX_LOCK_PI:
            word = proc.memory(pid, address, 4)
            owner = int.from_bytes(word, sys.byteorder) & 0x3FFFFFFF if word else None
        elif command == 0 and value == _LOCKED_WITH_WAITERS:
            owner = _mutex_owner(pid, address)
        return w.MutexWait(
            address=address,
            timed=timed,
            owner_tid=owner,
            owner_lives=_lives(pid, owner) if owner else None,
        )

    def _shared(self, pid: int, address: int, *, timed: bool) -> w.Wait:
        mapping = _mapping(pid, address)
        if mapping is None:
            return w.UnknownWait(why="refused", call="futex")
        device, inode, path = mapping
        if inode == "0":  # private memory, called shared: nobody else can have it
            return w.MutexWait(address=address, timed=timed)
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
            path=path or None, others=others, complete=self._complete, timed=timed
        )

    def _sleep(self, pid: int, call: tuple[int, ...]) -> w.Wait:
        if _CALLS[call[0]] == "nanosleep":
            return w.SleepWait(left_s=_left(pid, call[1], 1e9), timed=True)
        left_s = _left(pid, call[3], 1e9)
        if left_s is not None and call[2] & _TIMER_ABSTIME:
            with suppress(OSError):
                left_s = max(0.0, left_s - time.clock_gettime(_signed(call[1])))
        return w.SleepWait(left_s=left_s, timed=True)

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
        self._listing()
        return self._complete

    def _holders(self, target: str, *, writing: bool | None = None) -> w.Refs:
        found = [
            _ref(pid)
            for pid, file in self._listing().get(target, ())
            if writing is None or (file.writes if writing else file.reads)
        ]
        return tuple(dict.fromkeys(found))


def _unix_peers() -> dict[int, int]:
    with suppress(OSError):
        return {inode: one.peer for inode, one in sock_diag.connections().unix.items()}
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


def _numbers(place: int | str) -> list[int]:
    """Of a process or thread: in our pid namespace, then in each deeper one that it is in."""
    words = proc.fields(f"/proc/{place}/status").get("NSpid", "").split()
    return [int(word) for word in words]


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


def _kind(mode: int) -> Literal["regular", "directory", "fifo", "device", "unknown"]:
    if stat.S_ISREG(mode):
        return "regular"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISFIFO(mode):
        return "fifo"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "unknown"


def _network_type(pid: int, path: str) -> str | None:
    kind = proc.mount_type(proc.read(f"/proc/{pid}/mountinfo") or b"", path)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _has_lock(pid: int, number: int) -> bool:
    about = proc.text(f"/proc/{pid}/fdinfo/{number}") or ""
    return any(line.startswith("lock:") and "->" not in line for line in about.splitlines())


def _mutex_owner(pid: int, address: int) -> int | None:
    """By the layout of glibc's pthread_mutex_t; None where it is some other kind of lock."""
    said = proc.memory(pid, address, _MUTEX.size)
    if said is None or len(said) < _MUTEX.size or said != proc.memory(pid, address, _MUTEX.size):
        return None
    lock, _, owner, users, kind = _MUTEX.unpack(said)
    is_mutex = lock == _LOCKED_WITH_WAITERS and 0 <= kind & ~0x300 <= 3 and 0 < users < _MOST_USERS
    return owner if is_mutex and owner > 0 else None


def _lives(pid: int, tid: int) -> bool | None:
    """Whether the process has this thread, by the number that it has in its own pid namespace."""
    tids = proc.numbers(pid, "task")
    if tids is None:
        return None
    if tid in tids and proc.link(pid, "ns/pid") == proc.link("self", "ns/pid"):
        return True
    return any(tid in _numbers(f"{pid}/task/{each}")[-1:] for each in tids)


def _mapping(pid: int, address: int) -> tuple[str, str, str] | None:
    """Device, inode and path of what is mapped there."""
    for line in (proc.text(f"/proc/{pid}/maps") or "").splitlines():
        words = line.split(None, 5)
        begin, _, end = words[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return words[3], words[4], words[5] if len(words) > 5 else ""
    return None
