"""Looks at processes through /proc: state, what each thread waits for, CPU, I/O, open files.

Only reads; two looks some time apart are compared. Where there is no /proc, psutil tells a little.
"""

from __future__ import annotations

import mmap
import os
import platform

import msgspec

from watchdog_train.system import proc

_TASKS_CAP = 64
"""Threads looked at one by one; a process with more is not worth the time."""

_SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 23: "select", 35: "nanosleep", 45: "recvfrom",
        47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6",
        271: "ppoll", 281: "epoll_pwait", 449: "futex_waitv",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 32: "flock", 56: "openat", 63: "read", 64: "write",
        72: "pselect6", 73: "ppoll", 82: "fsync", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 207: "recvfrom", 212: "recvmsg", 260: "wait4",
    },
}.get(platform.machine(), {})  # fmt: skip
_FUTEX_PRIVATE = 128
_FUTEX_COMMAND = 127
_FUTEX_WAITS = (0, 6, 9, 13)  # WAIT, LOCK_PI, WAIT_BITSET, LOCK_PI2


class TaskLook(msgspec.Struct, frozen=True):
    """One thread at one moment."""

    state: str
    syscall: str
    """The kernel's line, empty where it is not allowed to know."""
    switches: int
    """Times it was switched out: unchanged means that it did not run."""


class ProcLook(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment. None means that the system would not say."""

    pid: int
    start: int
    ppid: int
    name: str
    state: str
    cpu_s: float
    os_threads: int
    at: float
    wchan: str | None = None
    io_bytes: int | None = None
    rss_bytes: int | None = None
    traced: bool = False
    """Another debugger holds it."""
    tasks: dict[int, TaskLook] = msgspec.field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or by a tracer."""
        return self.state in ("T", "t")


def look(pid: int, now: float, *, threads: bool = False) -> ProcLook | None:
    """One look; None when there is no such process."""
    if not proc.exists(os.getpid()):
        return _psutil_look(pid, now)
    found = proc.read_stat(pid)
    if found is None:
        return None
    wchan = (proc.text(f"/proc/{pid}/wchan") or "").strip()
    return ProcLook(
        pid=pid,
        start=found.start,
        ppid=found.ppid,
        name=found.name,
        state=found.state,
        cpu_s=found.cpu_ticks / proc.TICKS_S,
        os_threads=found.threads,
        at=now,
        wchan=wchan if wchan not in ("", "0") else None,
        io_bytes=proc.read_io_bytes(pid),
        rss_bytes=found.rss_pages * mmap.PAGESIZE,
        traced=proc.status_field(pid, "TracerPid") not in ("0", None),
        tasks=_tasks(pid) if threads else {},
    )


def _psutil_look(pid: int, now: float) -> ProcLook | None:
    import psutil

    letters = {"running": "R", "sleeping": "S", "disk-sleep": "D", "stopped": "T", "zombie": "Z"}
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcLook(
                pid=pid,
                start=int(process.create_time() * 100),
                ppid=process.ppid(),
                name=process.name(),
                state=letters.get(process.status(), "S"),
                cpu_s=times.user + times.system,
                os_threads=process.num_threads(),
                at=now,
                rss_bytes=process.memory_info().rss,
            )
    except psutil.Error:
        return None


def _tasks(pid: int) -> dict[int, TaskLook]:
    found = {}
    for tid in (proc.numbers(pid, "task") or [])[: _TASKS_CAP + 1]:
        values = proc.fields(f"/proc/{pid}/task/{tid}/status")
        try:
            switches = int(values["voluntary_ctxt_switches"]) + int(
                values["nonvoluntary_ctxt_switches"]
            )
        except (KeyError, ValueError):
            continue
        found[tid] = TaskLook(
            state=values.get("State", "?")[:1],
            syscall=(proc.text(f"/proc/{pid}/task/{tid}/syscall", 512) or "").strip(),
            switches=switches,
        )
    return found


def is_sealed_wait(syscall: str) -> bool:
    """A futex wait without a time limit that only a thread of the same process can end."""
    parts = syscall.split()
    try:
        if len(parts) < 5 or _SYSCALLS.get(int(parts[0])) != "futex":
            return False
        operation, timeout = int(parts[2], 16), int(parts[4], 16)
    except ValueError:
        return False
    private = bool(operation & _FUTEX_PRIVATE)
    return private and operation & _FUTEX_COMMAND in _FUTEX_WAITS and timeout == 0


def sealed(first: ProcLook, second: ProcLook, helpers: frozenset[int]) -> bool | None:
    """Whether nobody is left to wake any thread: proof of a deadlock, not a suspicion.

    `helpers` are threads that wait like this in every healthy process: they release no lock of
    others. None where the kernel does not tell, or without two looks.
    """
    known = first.tasks and second.tasks and first is not second
    if not known or max(len(first.tasks), len(second.tasks)) > _TASKS_CAP:
        return None
    if first.start != second.start or len(second.tasks) != second.os_threads:
        return None
    deciding = {tid: task for tid, task in second.tasks.items() if tid not in helpers}
    if not deciding or any(not task.syscall for task in deciding.values()):
        return None
    return all(
        task.state == "S"
        and is_sealed_wait(task.syscall)
        and tid in first.tasks
        and first.tasks[tid] == task
        for tid, task in deciding.items()
    )


def waits_in_words(process: ProcLook) -> str | None:
    """What the main thread waits for in the kernel."""
    task = process.tasks.get(process.pid)
    if task is None or not task.syscall or task.syscall.startswith(("running", "-1")):
        return None
    number = task.syscall.split(maxsplit=1)[0]
    name = _SYSCALLS.get(int(number)) if number.isdigit() else None
    if name is None:
        return None
    if name == "futex":
        endless = is_sealed_wait(task.syscall)
        return "waits for a lock without a time limit" if endless else "waits for a lock"
    return f"waits in {name}"


def cpu_share(first: ProcLook, second: ProcLook) -> float | None:
    """CPU time between two looks, of one core."""
    passed = second.at - first.at
    if passed <= 0.05 or first.start != second.start:
        return None
    return max(0.0, second.cpu_s - first.cpu_s) / passed


def io_rate(first: ProcLook, second: ProcLook) -> float | None:
    """Bytes through system calls between two looks, a second."""
    passed = second.at - first.at
    if passed <= 0.05 or first.io_bytes is None or second.io_bytes is None:
        return None
    return max(0, second.io_bytes - first.io_bytes) / passed


def is_python(pid: int) -> bool | None:
    """Whether an interpreter runs in this process; None when that cannot be read."""
    executable = os.path.basename(proc.link(pid, "exe") or "").lower()
    if not executable:
        return None
    if "python" in executable or "pypy" in executable:
        return True
    maps = proc.read(f"/proc/{pid}/maps")
    return None if maps is None else b"libpython" in maps
