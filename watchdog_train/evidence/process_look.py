"""Samples processes through /proc: state, what each thread waits for, CPU, I/O, open files.

Only reads; two samples some time apart are compared. Without /proc, psutil gives a part of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from watchdog_train.core.model import Value
from watchdog_train.core.model import waits as w
from watchdog_train.core.model.waits import ThreadFact
from watchdog_train.system import current, proc

ThreadReader = Callable[[int, Iterable[int] | None], tuple[ThreadFact, ...]]
_RELEASES_NOTHING = frozenset([2, 15, 17, 23, 4, 6, 7, 8, 11, 32, 33])
"""SIGINT and SIGTERM, which ask to exit; SIGCHLD; wtrain's SIGURG; faults of the process itself;
the C library's own two. Numbers of Linux."""


class ProcLook(Value):
    """One process at one moment. None: the system gives no value."""

    pid: int
    start: int
    ppid: int
    name: str
    state: str
    cpu_s: float
    os_threads: int
    at: float
    wchan: str | None = None
    traced: bool = False
    """A tracer, such as a debugger, holds it."""
    threads: tuple[ThreadFact, ...] = ()
    handles_signals: tuple[int, ...] | None = None
    """See ProcessEvidence."""

    @property
    def stopped(self) -> bool:
        """Stopped by a signal, frozen with its cgroup, or held by a tracer."""
        return self.state in ("T", "t")


def thread_reader() -> ThreadReader | None:
    """Reads the wait of every thread of a process; None: this system does not show it."""
    if sys.platform != "linux":
        return None
    from watchdog_train.system.waits import WaitReader

    return WaitReader().threads


def look(pid: int, now: float, reader: ThreadReader | None = None) -> ProcLook | None:
    """One sample, of each thread if there is a reader; None without such a process."""
    if not proc.exists(os.getpid()):
        return _portable_look(pid, now)
    found = proc.read_stat(pid)
    if found is None:
        return None
    held = current().held(pid, found.state)
    wchan = (proc.text(f"/proc/{pid}/wchan") or "").strip()
    about = proc.fields(f"/proc/{pid}/status")
    return ProcLook(
        pid=pid,
        start=found.start,
        ppid=found.ppid,
        name=found.name,
        state="T" if held is not None and held.freezer else found.state,
        cpu_s=found.cpu_ticks / proc.TICKS_S,
        os_threads=found.threads,
        at=now,
        wchan=wchan if wchan not in ("", "0") else None,
        traced=about.get("TracerPid", "0") != "0",
        threads=reader(pid, None) if reader is not None else (),
        handles_signals=_handled(about.get("SigCgt")),
    )


def _handled(mask: str | None) -> tuple[int, ...] | None:
    if mask is None:
        return None
    bits = int(mask, 16)
    return tuple(n for n in range(1, 65) if bits >> n - 1 & 1 and n not in _RELEASES_NOTHING)


def settled(first: ProcLook, second: ProcLook) -> tuple[ThreadFact, ...]:
    """The threads of the second sample, with the facts that only a comparison shows."""
    before = {fact.tid: fact for fact in first.threads}
    passed_s = second.at - first.at
    return tuple(
        fact.after(before[fact.tid], passed_s) if fact.tid in before else fact
        for fact in second.threads
    )


def _portable_look(pid: int, now: float) -> ProcLook | None:
    from watchdog_train.system import portable

    found = portable.look(pid)
    if found is None:
        return None
    row, threads = found
    return ProcLook(
        pid=pid,
        start=row.start,
        ppid=row.ppid,
        name=row.name,
        state=row.state or "S",
        cpu_s=row.cpu_s or 0.0,
        os_threads=threads,
        at=now,
    )


def sealed(first: ProcLook, second: ProcLook, helpers: frozenset[int]) -> bool | None:
    """Whether nothing can wake any thread: proof of a deadlock, not a suspicion.

    `helpers` are threads that wait like this in every healthy process: they release no lock of
    others. A signal's handler may. None without kernel data or without two samples.
    """
    if not first.threads or first is second or first.start != second.start:
        return None
    if len(second.threads) != second.os_threads or second.handles_signals is None:
        return None
    facts = settled(first, second)
    deciding = [
        fact
        for fact in facts
        if not fact.is_ticker and not (fact.tid in helpers and _hears_nobody(fact.wait))
    ]
    if not deciding or any(_is_hidden(fact.wait) for fact in deciding):
        return None
    return not second.handles_signals and all(
        isinstance(fact.wait, w.MutexWait) and not fact.wait.timed and fact.unchanged is True
        for fact in deciding
    )


def _hears_nobody(wait: w.Wait) -> bool:
    """A helper on a pipe, such as a pool's, may get an order to wake the others."""
    listens = isinstance(wait, w.PipeWait) and wait.listens
    return listens or isinstance(wait, (w.MutexWait, w.SleepWait))


def _is_hidden(wait: w.Wait) -> bool:
    return isinstance(wait, w.UnknownWait) and wait.why != "call"


def cpu_share(first: ProcLook, second: ProcLook) -> float | None:
    """CPU time between two samples, of one core."""
    passed = second.at - first.at
    if passed <= 0.05 or first.start != second.start:
        return None
    return max(0.0, second.cpu_s - first.cpu_s) / passed


def is_python(pid: int) -> bool | None:
    """Whether an interpreter runs in this process; None if that cannot be read."""
    executable = os.path.basename(proc.link(pid, "exe") or "").lower()
    if not executable:
        return None
    if "python" in executable or "pypy" in executable:
        return True
    maps = proc.read(f"/proc/{pid}/maps")
    return None if maps is None else b"libpython" in maps


def is_fed_by(pid: int, others: Iterable[int]) -> bool:
    """Whether one of these processes holds the writing end of the pipe that is its input.

    `python train.py | tee log`: tee waits for the training, not for a person.
    """
    pipe = proc.link(pid, "fd/0") or ""
    return pipe.startswith("pipe:") and any(
        file.name == pipe and file.writes
        for other in others
        for file in proc.open_files(other) or ()
    )
