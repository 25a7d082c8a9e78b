"""The rank that failed first, by the records of each end. Pure.

A launcher reports one status for all of its ranks, and kills the others as soon as one has failed.
So the first end in time counts; of those found in one poll, a kill or a native crash before an
error (a peer that is gone makes the others raise), and SIGTERM last: launchers send it to the
victims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

import msgspec

from watchdog_train.core.detection.rank_gone import NOT_CAUSED_BY_PEERS, has_failed
from watchdog_train.core.diagnosis.facts import LogText, ProcessEvidence
from watchdog_train.core.model import RankEnd
from watchdog_train.core.model.words import SIGNAL_NAMES

SAME_LOOK_S = 0.1
"""Seconds. Ends closer together were seen in one poll; their order is unknown."""
LINES_READ = 4000
_SENT_TO_VICTIMS = (1, 2, 15)
_NUMBERS = {name: number for number, name in SIGNAL_NAMES.items()}
_LAUNCHER_TELLS = re.compile(
    r"exit ?code\s{0,4}: ?(?P<code>-?\d{1,3})\)?[^()]{0,40}\(pid: ?(?P<pid>\d{1,10})\)"
)
"""torchrun 2.13: `failed (exitcode: -9) local_rank: 1 (pid: 42)`, `exitcode  : -9 (pid: 42)`."""
_SPAWN_TELLS = re.compile(
    r"ProcessExitedException: process (?P<rank>\d{1,6}) terminated with "
    r"(?:exit code (?P<code>\d{1,3})|signal (?P<signal>SIG[A-Z]{2,8}))"
)
"""torch.multiprocessing.spawn 2.13, which numbers its processes as one machine numbers ranks."""
_FIRST_OBSERVED = re.compile(
    r"Root Cause \(first observed failure\):(?:\n.*){1,4}?\n\s*rank\s*: (?P<rank>\d{1,6})\b.*"
    r"\n\s*exitcode\s*: (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,10})\)"
)
_NOTICED = re.compile(
    r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d{1,10}) .{0,100}"
    r"exited on signal (?P<signal>\d{1,2})\b"
)
"""Printed by Open MPI's mpirun."""


def first_failures(
    processes: Iterable[ProcessEvidence], logs: Iterable[LogText]
) -> tuple[tuple[ProcessEvidence, RankEnd], ...]:
    """The first failed end in time; several if their order is unknown.

    A launcher's log may have exit codes that the kernel did not give.
    """
    gone = [
        (process, process.ended)
        for process in processes
        if process.ended is not None and process.ended.end.helper is None
    ]
    told: dict[tuple[int, str, int], int] = {}
    if any(has_failed(fact.end) is None for _, fact in gone):
        told = _told_by_launcher(logs)
    failed = [
        (process, fact.at_unix, end)
        for process, fact in gone
        for end in [_completed(fact.end, told, process.part)]
        if has_failed(end)
    ]
    if not failed:
        return ()
    first = min(at for _, at, _ in failed)
    together = [(p, end) for p, at, end in failed if at - first <= SAME_LOOK_S]
    least = min(_order(end) for _, end in together)
    chosen = ((p, end) for p, end in together if _order(end) == least)
    return tuple(sorted(chosen, key=lambda one: one[1].rank))


def _told_by_launcher(logs: Iterable[LogText]) -> dict[tuple[int, str, int], int]:
    """Exit code, negative for a signal, by part and pid or rank."""
    found: dict[tuple[int, str, int], int] = {}
    lines = ((log.part, line) for log in logs for line in log.lines)
    for part, line in islice(lines, LINES_READ):
        for match in _LAUNCHER_TELLS.finditer(line):
            found.setdefault((part, "pid", int(match["pid"])), int(match["code"]))
        for match in _SPAWN_TELLS.finditer(line):
            status = int(match["code"] or -_NUMBERS.get(match["signal"], 0))
            if status:
                found.setdefault((part, "rank", int(match["rank"])), status)
    return found


def first_observed(logs: Iterable[LogText]) -> tuple[int, int, int] | None:
    """Rank, pid and exit code of the first failure, if torchrun or mpirun names it."""
    for log in logs:
        text = "\n".join(log.lines[-LINES_READ:])
        match = _FIRST_OBSERVED.search(text)
        if match:
            return int(match["rank"]), int(match["pid"]), int(match["code"])
        match = _NOTICED.search(text)
        if match:
            return int(match["rank"]), int(match["pid"]), -int(match["signal"])
    return None


def _completed(end: RankEnd, told: dict[tuple[int, str, int], int], part: int) -> RankEnd:
    """With what its launcher printed about it, if nothing else is known."""
    status = told.get((part, "pid", end.pid), told.get((part, "rank", end.rank)))
    if status is None or end.code is not None or end.signal is not None:
        return end
    return msgspec.structs.replace(
        end, code=status if status >= 0 else None, signal=-status if status < 0 else None
    )


def _order(end: RankEnd) -> int:
    if end.signal in NOT_CAUSED_BY_PEERS:
        return 0
    return 2 if end.signal in _SENT_TO_VICTIMS else 1
