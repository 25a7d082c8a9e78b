"""How long a tree waits for a CPU: a training that others starve seems quiet. Pure.

It uses less CPU time than quiet allows, moves nothing and makes no step, and yet it wants to run.
Measured on 2 cores beside 10 busy loops of a better priority: of each second a starved training
stood in line for 0.6 to 0.8 and got 0.03 of CPU time; a hung one stood there for 0.00, one that
polls a hundred times a second for 0.15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from watchdog_train.core.model import MemberSample, ThreadWait, Value

SHARE_OF_CPU = 0.5
"""A process in state R at two samples with a larger share of CPU time between them has run:
its CPU time shows that already."""

Waits = Mapping[int, Mapping[int, ThreadWait]]
"""By pid, then by thread; the main thread has the number of its process."""


class CpuLine(Value):
    at: float | None = None
    """Of the sample before; None when it did not ask."""
    threads: dict[int, dict[int, ThreadWait]] = msgspec.field(default_factory=dict)
    running: dict[int, float | None] = msgspec.field(default_factory=dict)
    """CPU time of the processes in state R."""
    waited_s: float = 0.0
    """Sum over the samples, each with the thread that waited longest. Not of all threads: many
    that wait for a moment each are not work that waits."""


def unasked(line: CpuLine) -> CpuLine:
    """After a sample that did not ask: the time until the next one is unknown."""
    return line if line.at is None else CpuLine(waited_s=line.waited_s)


def advance(line: CpuLine, members: Sequence[MemberSample], waits: Waits, at: float) -> CpuLine:
    """The memory after a sample.

    Args:
        line: the memory before.
        members: all processes of the tree, with state and CPU time.
        waits: from the kernel; a process missing there is judged by its states alone.
        at: seconds, the time of this sample.
    """
    running = {m.member.pid: m.cpu_s for m in members if m.state == "R"}
    longest_s = 0.0
    if line.at is not None:
        passed_s = max(0.0, at - line.at)
        twice = {pid for pid in running if pid in line.running}
        for pid, threads in waits.items():
            before = line.threads.get(pid, {})
            for tid, now in threads.items():
                then = before.get(tid)
                if then is None:
                    continue
                if tid == pid and pid in twice and now.turns == then.turns:
                    longest_s = passed_s  # it has not had its turn, and the kernel counts after it
                longest_s = max(longest_s, now.waited_s - then.waited_s)
        for pid in twice - waits.keys():
            used_s = _used_s(line.running[pid], running[pid])
            if used_s is not None and used_s < SHARE_OF_CPU * passed_s:
                longest_s = max(longest_s, passed_s - used_s)
        longest_s = min(longest_s, passed_s)
    return CpuLine(
        at=at,
        threads={pid: dict(threads) for pid, threads in waits.items()},
        running=running,
        waited_s=line.waited_s + longest_s,
    )


def _used_s(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)
