"""How long a tree stands in line for a CPU: a training that others starve looks quiet. Pure.

It uses less CPU time than quiet allows, moves nothing and makes no step, and yet it wants to run.
Measured on 2 cores beside 10 busy loops of a better priority: of each second a starved training
stood in line for 0.6 to 0.8 and got 0.03 of CPU time; a hung one stood there for 0.00, one that
asks a hundred times a second for 0.15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from watchdog_train.core.model import MemberSample, ThreadWait, Value

SHARE_OF_CPU = 0.5
"""A process seen running at two looks with more CPU time than this in between has run, not waited:
its CPU time shows that by itself."""

Waits = Mapping[int, Mapping[int, ThreadWait]]
"""By pid, and in it by thread; the main thread has the number of its process."""


class CpuLine(Value):
    """What was seen of one attempt."""

    at: float | None = None
    """The look before; None when it did not ask."""
    threads: dict[int, dict[int, ThreadWait]] = msgspec.field(default_factory=dict)
    running: dict[int, float | None] = msgspec.field(default_factory=dict)
    """CPU time of the processes that were in state R."""
    waited_s: float = 0.0
    """Sum over the looks, of the thread that had stood in line longest since the look before. Not
    of all threads: many that wait for a moment each are no work that waits."""


def unasked(line: CpuLine) -> CpuLine:
    """After a look that did not ask: what happens until the next one is not known."""
    return line if line.at is None else CpuLine(waited_s=line.waited_s)


def advance(line: CpuLine, members: Sequence[MemberSample], waits: Waits, at: float) -> CpuLine:
    """The memory after a look.

    Args:
        line: the memory before.
        members: everybody in the tree, with state and CPU time.
        waits: what the kernel says; who is missing there is judged by the states alone.
        at: seconds, the time of this look.
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
