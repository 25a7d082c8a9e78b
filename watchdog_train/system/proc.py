"""The only reader of /proc: bytes in, values out, None for anything missing or refused.

It must never raise for a process that ends while it is read. Elsewhere than on Linux everything is
None or empty.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from watchdog_train.core.model import ProcessRow, ThreadWait
from watchdog_train.errors import WtrainError
from watchdog_train.system.protocol import MASTER, SHORTAGES, BlindError, OpenFile

TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
READ_CAP_BYTES = 4 * 1024 * 1024
SMALL_BYTES = 4096
"""Room for a file of a few lines; allocating 64 KiB costs as much as the kernel's answer."""
MOST_FILES = 65536
PTS_MAJOR = 136


class Stat(NamedTuple):
    pid: int
    name: str
    state: str
    ppid: int
    cpu_ticks: int
    reaped_cpu_ticks: int
    threads: int
    start: int
    session: int
    terminal: int
    """Device number; 0 for none."""

    @property
    def is_dead(self) -> bool:
        """A zombie; not one whose other threads still run while its main thread has exited."""
        return self.state in "ZXx" and self.threads <= 1

    def row(self, io_bytes: int | None = None) -> ProcessRow:
        return ProcessRow(
            pid=self.pid,
            start=self.start,
            ppid=self.ppid,
            state=self.state,
            cpu_s=self.cpu_ticks / TICKS_S,
            reaped_cpu_s=self.reaped_cpu_ticks / TICKS_S,
            io_bytes=io_bytes,
            name=self.name,
            session=self.session,
            terminal=terminal_name(self.terminal) if self.terminal else "",
        )


def read(path: str, cap_bytes: int = READ_CAP_BYTES, *, strict: bool = False) -> bytes | None:
    """The present content, None if it is missing or not readable.

    BlindError: `strict`, and this process can open nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        if strict and error.errno in SHORTAGES:
            raise BlindError(error.errno, error.strerror, path) from error
        return None
    try:
        if cap_bytes <= SMALL_BYTES:
            return os.read(fd, cap_bytes)
        # The kernel gives a long list piece by piece: a short answer is not the end.
        parts, size = [os.read(fd, 65536)], 0
        while parts[-1] and size < cap_bytes:
            size += len(parts[-1])
            parts.append(os.read(fd, 65536))
        return b"".join(parts)[:cap_bytes]
    except OSError:  # ESRCH: it ended between open and read
        return None
    finally:
        os.close(fd)


def text(path: str, cap_bytes: int = READ_CAP_BYTES) -> str | None:
    found = read(path, cap_bytes)
    return None if found is None else found.decode("utf-8", "replace")


def exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def refuse_foreign() -> None:
    """Raise WtrainError if /proc is of another pid namespace: its numbers are of strangers."""
    try:
        told = os.readlink("/proc/self")
    except OSError:  # there is no /proc
        return
    if told != str(os.getpid()):
        raise WtrainError(
            f"/proc is of another pid namespace: there this process is {told}, not {os.getpid()}",
            context="/proc",
            hint="give the namespace its own: unshare --pid --fork --mount-proc wtrain ...",
            reference="proc-foreign",
        )


def link(pid: int | str, name: str) -> str | None:
    """The target of a link of a process: `cwd`, `exe`, `fd/3`, `ns/net`."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None


def numbers(pid: int | str, folder: str) -> list[int] | None:
    """The numbers of its threads (`task`) or descriptors (`fd`), smallest first."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/{folder}"))
    except (OSError, ValueError):
        return None


def own_numbers(place: int | str) -> list[int]:
    """Of a process or thread: in our pid namespace, then in each deeper one that it is in."""
    return [int(word) for word in fields(f"/proc/{place}/status").get("NSpid", "").split()]


def our_thread(pid: int, tid: int) -> int | None:
    """Our number of the thread that has this number in the process's own pid namespace, or None."""
    tids = numbers(pid, "task") or []
    if link(pid, "ns/pid") == link("self", "ns/pid"):
        return tid if tid in tids else None
    return next((each for each in tids if own_numbers(f"{pid}/task/{each}")[-1:] == [tid]), None)


def thread_at(pid: int, handle: int) -> int | None:
    """The thread with this pthread_t: the C library keeps its number in the first KiB there."""
    said = memory(pid, handle, 1024) or b""
    found = {number for (number,) in struct.iter_unpack("=i", said[: len(said) & ~3])}
    found &= set(numbers(pid, "task") or ())
    return found.pop() if len(found) == 1 else None


_OBJECT, _WORD, _TEXT_CAP = 256, 8, 1024


def path_text(pid: int, address: int) -> str | None:
    """The text of a pathlib path in a process of CPython, as system calls get it.

    Object kinds are checked by the names of their types, and memory is only read. None for another
    layout, and for a path that is not ASCII.
    """
    kind, size = _object_type(pid, address)
    if kind not in (b"PosixPath", b"Path") or not 0 < size <= _OBJECT:
        return None
    said = memory(pid, address, size) or b""
    found = {_object_text(pid, at) for (at,) in struct.iter_unpack("=Q", said[2 * _WORD :])}
    return max(found - {"/"}, key=len, default="") or None


def _object_type(pid: int, address: int) -> tuple[bytes, int]:
    """The name of an object's type, and the size of such an object."""
    try:
        (kind,) = struct.unpack("=8xQ", memory(pid, address, 2 * _WORD) or b"")
        name, size = struct.unpack("=24xQQ", memory(pid, kind, 5 * _WORD) or b"")
    except struct.error:
        return b"", 0
    return (memory(pid, name, 32) or b"").partition(b"\0")[0], size


def _object_text(pid: int, address: int) -> str:
    if address < 1 << 12 or _object_type(pid, address)[0] != b"str":
        return ""
    said = memory(pid, address, 6 * _WORD + _TEXT_CAP) or b""
    count = int.from_bytes(said[2 * _WORD : 3 * _WORD], "little")
    texts = (said[at : at + count + 1] for at in (5 * _WORD, 6 * _WORD))  # since 3.12, before it
    whole = (each[:-1] for each in texts if each.find(0) == count and each.isascii())
    return next(whole, b"").decode()


def memory(pid: int, address: int, count: int) -> bytes | None:
    """Bytes of its memory; needs the right to trace it. Short where less is mapped."""
    if sys.platform == "win32":
        return None
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.pread(fd, count, address)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(fd)


def list_pids() -> list[int]:
    """All visible pids; BlindError: /proc cannot be listed now."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        raise BlindError(error.errno, error.strerror, "/proc") from error


def parse_stat(text: bytes) -> Stat | None:
    """A stat line; the name may contain spaces, newlines and parentheses."""
    head, _, tail = text.rpartition(b")")
    pid, _, name = head.partition(b" (")
    fields = tail.split(None, 22)
    try:
        return Stat(
            pid=int(pid),
            name=name.decode("utf-8", "replace"),
            state=fields[0].decode(),
            ppid=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            reaped_cpu_ticks=int(fields[13]) + int(fields[14]),
            threads=int(fields[17]),
            start=int(fields[19]),
            session=int(fields[3]),
            terminal=int(fields[4]),
        )
    except (ValueError, IndexError):
        return None


def read_stat(pid: int, *, strict: bool = False) -> Stat | None:
    """The process that has this pid now; BlindError: `strict`, and /proc is unreadable now."""
    text = read(f"/proc/{pid}/stat", SMALL_BYTES, strict=strict)
    return parse_stat(text) if text else None


def terminal_name(number: int) -> str:
    """`/dev/pts/3` for the device number of a controlling terminal."""
    major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00
    if PTS_MAJOR <= major < PTS_MAJOR + 8:
        return f"/dev/pts/{(major - PTS_MAJOR) * 256 + minor}"
    return f"terminal {major}:{minor}"


def parse_io_bytes(text: bytes) -> int | None:
    """Bytes read and written through system calls, caches included."""
    words = text.split(None, 4)
    if words[0:3:2] != [b"rchar:", b"wchar:"] or len(words) < 4:
        return None
    return int(words[1]) + int(words[3])


def read_io_bytes(pid: int) -> int | None:
    text = read(f"/proc/{pid}/io", SMALL_BYTES)
    return parse_io_bytes(text) if text else None


def parse_wait(text: bytes) -> ThreadWait | None:
    """The second and third number of a schedstat file; the first is not kept by all kernels."""
    words = text.split(None, 3)
    try:
        return ThreadWait(waited_s=int(words[1]) / 1e9, turns=int(words[2]))
    except (ValueError, IndexError):
        return None


def read_waits(pid: int, most_threads: int) -> dict[int, ThreadWait]:
    """The threads of a process; only its main thread if it has more than `most_threads`."""
    threads = [pid]
    if most_threads > 1:
        listed = numbers(pid, "task")
        if listed is None:
            return {}
        threads = listed if len(listed) <= most_threads else threads
    found = {}
    for thread in threads:
        text = read(f"/proc/{pid}/task/{thread}/schedstat", SMALL_BYTES)
        wait = parse_wait(text) if text else None
        if wait is not None:
            found[thread] = wait
    return found


def command_line(pid: int | str) -> tuple[str, ...] | None:
    """Its arguments, as it shows them; secrets included."""
    found = read(f"/proc/{pid}/cmdline", 128 * 1024)
    if found is None:
        return None
    return tuple(os.fsdecode(found).rstrip("\0").split("\0")) if found else ()


def parse_environment(text: bytes, names: Iterable[str] | None = None) -> dict[str, str]:
    """The named variables of an environ file; None: all."""
    if names is not None:
        found, whole = {}, b"\0" + text + b"\0"
        for name in names:  # of hundreds of processes hardly one has any of them
            _, is_there, rest = whole.rpartition(b"\0" + os.fsencode(name) + b"=")
            if is_there:
                found[name] = os.fsdecode(rest[: rest.index(b"\0")])
        return found
    entries = (entry.partition("=") for entry in os.fsdecode(text).split("\0"))
    return {name: value for name, is_one, value in entries if is_one}


def fields(path: str) -> dict[str, str]:
    """A file of lines `name: value`, like status and meminfo."""
    lines = (line.partition(":") for line in (text(path) or "").splitlines())
    return {name: value.strip() for name, _, value in lines}


def status_field(pid: int, field: str) -> str | None:
    """One line of /proc/PID/status, without its name."""
    return fields(f"/proc/{pid}/status").get(field)


def mounts(text: bytes) -> Iterator[tuple[str, str]]:
    """Place and type of each file system, by the text of a mountinfo file."""
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        words = line.split(" ")
        with suppress(ValueError, IndexError):
            yield _unescape(words[4]), words[words.index("-", 6) + 1]


def mount_type(text: bytes, path: str) -> str | None:
    """Type of the file system that holds a resolved path, by the text of a mountinfo file."""
    best = ""
    best_type = None
    for point, kind in mounts(text):
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # the last of equals is mounted over the others
            best, best_type = point, kind
    return best_type


def _unescape(field: str) -> str:
    for code, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, plain)
    return field


def open_files(pid: int) -> tuple[OpenFile, ...] | None:
    """By the links in /proc, which ask no file system; None if not readable."""
    found = []
    try:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY)
    except OSError:
        return None
    try:
        for number in os.listdir(folder)[:MOST_FILES]:
            with suppress(OSError):
                name = os.readlink(number, dir_fd=folder)
                mode = os.lstat(number, dir_fd=folder).st_mode  # shows for what it is open
                if name in ("/dev/ptmx", "/dev/pts/ptmx"):
                    about = read(f"/proc/{pid}/fdinfo/{number}", SMALL_BYTES) or b""
                    index = about.partition(b"tty-index:")[2].split()
                    name = f"{MASTER}/dev/pts/{index[0].decode()}" if index else name
                may = bool(mode & stat.S_IRUSR), bool(mode & stat.S_IWUSR)
                found.append(OpenFile(int(number), name, *may))
    except OSError:
        return None
    finally:
        os.close(folder)
    return tuple(found)


def shared_mappings(pid: int) -> frozenset[str] | None:
    """`INODE PATH` of all memory that it may share with others; None if not readable."""
    found = set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # a read gives some lines of it
            for line in file:
                fields = line.split(None, 5)
                if len(fields) == 6 and fields[1][3:4] == b"s":
                    found.add(os.fsdecode(fields[4] + b" " + fields[5].rstrip(b"\n")))
    except OSError:
        return None
    return frozenset(found)
