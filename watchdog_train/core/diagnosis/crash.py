"""What ended an attempt: the first bad end, its exception, who sent its signal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from watchdog_train.core.diagnosis.facts import Evidence, HostFacts, LogText, ProcessEvidence
from watchdog_train.core.diagnosis.first_failure import FirstFailure, first_failure
from watchdog_train.core.model import CrashFact, ExceptionFact, Sender

_OWN_CRASH = (4, 5, 6, 7, 8, 11)
"""SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: a process raises them by what it does."""
_OOM_KILLED = re.compile(r"Killed process (?P<pid>\d{1,10})\b")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k|a|)sh\Z")
_MARKED = re.compile(r"\[rank(\d{1,6})\]:")
_SHOWN, _FRAMES_SHOWN = 200, 8


def with_senders(
    processes: Sequence[ProcessEvidence], logs: Sequence[LogText], host: HostFacts
) -> tuple[ProcessEvidence, ...]:
    """Every end with who sent its signal; wtrain has sent none before evidence is taken."""
    first = first_failure(processes, logs)
    firsts = {process.identity for process in first.processes} if first is not None else set()
    launched = any(process.role == "launcher" for process in processes)
    oom_killed = {
        int(match["pid"])
        for log in logs
        for line in log.lines
        for match in _OOM_KILLED.finditer(line)
    }

    def sent(process: ProcessEvidence) -> ProcessEvidence:
        if process.ended is None or process.ended.end.signal is None:
            return process
        sender = sender_of(
            process.ended.end.signal,
            host,
            oom_killed=process.pid in oom_killed,
            by_member=launched and bool(firsts) and process.identity not in firsts,
        )
        ended = msgspec.structs.replace(process.ended, sender=sender)
        return msgspec.structs.replace(process, ended=ended)

    return tuple(map(sent, processes))


def sender_of(
    signal: int, host: HostFacts, *, oom_killed: bool = False, by_member: bool = False
) -> Sender | None:
    """Who sent a signal that wtrain did not send.

    Args:
        signal: its number.
        host: what the kernel counted.
        oom_killed: the kernel's log says that it killed this process for want of memory.
        by_member: a launcher of the training ends its ranks, for one has failed before.
    """
    if signal in _OWN_CRASH:
        return None
    if oom_killed:
        return "oom-killer"
    if by_member:
        return "member"
    if signal != 9:
        return "outside"
    counted = host.oom_kills if host.oom_since_start else None
    if counted is None:
        return "unknown"
    return "oom-killer" if counted else "outside"


def crash_of(evidence: Evidence, command: Sequence[str], *, gpu_shared: bool) -> CrashFact | None:
    """What ended the attempt, or the rank that the others wait for; None where nothing failed."""
    first = first_failure(evidence.processes, evidence.logs)
    if first is None and (evidence.why != "crash" or evidence.exit is None):
        return None
    if first is None:
        return _of_the_whole(evidence, command, gpu_shared=gpu_shared)
    at = _telling(first)
    process, end = first.processes[at], first.ends[at]
    exception = process.exception
    killed = end.signal is not None and end.said != "exception"
    if exception is None and not killed:
        exception = _of_others(evidence, end.rank)
    return CrashFact(
        exception=exception,
        code=end.code,
        signal=end.signal,
        sender=process.ended.sender if process.ended is not None else None,
        rank=end.rank,
        pid=end.pid,
        step=end.step,
        said=_last_line(evidence.logs, end.rank) if exception is None else "",
        gpu_shared=gpu_shared,
    )


def _telling(first: FirstFailure) -> int:
    """Of ranks that ended at about the same time, the one whose exception is the oldest."""
    times = [p.exception.at if p.exception is not None else None for p in first.processes]
    known = [(at, number) for number, at in enumerate(times) if at is not None]
    return min(known)[1] if known else 0


def _of_the_whole(evidence: Evidence, command: Sequence[str], *, gpu_shared: bool) -> CrashFact:
    """By how the root ended: no rank's end was seen."""
    code, signal = (evidence.exit.code, evidence.exit.signal) if evidence.exit else (None, None)
    if code is not None and code > 128 and command and _SHELLS.match(command[0]):
        signal, code = code - 128, None  # a shell tells so how its child ended
    own = [p.exception for p in evidence.processes if p.exception is not None]
    exception = min(own, key=lambda one: one.at or 0.0) if own else None
    if exception is None and signal is None:
        exception = _of_others(evidence, None)
    return CrashFact(
        exception=exception,
        code=code,
        signal=signal,
        sender=sender_of(signal, evidence.host) if signal is not None else None,
        rank=exception.rank if exception is not None else None,
        said=_last_line(evidence.logs, None) if exception is None else "",
        gpu_shared=gpu_shared,
    )


def _of_others(evidence: Evidence, rank: int | None) -> ExceptionFact | None:
    """Of a child of the rank, else as the launcher or the output tells."""
    same = (one for one in evidence.exceptions if None in (rank, one.rank) or one.rank == rank)
    order = {"hook": 0, "elastic": 1, "output": 2}
    return min(same, key=lambda one: order[one.source], default=None)


_NAMED_PATH = re.compile(r"\[Errno \d+\] [^:]{1,100}: '(?P<path>/[^'\n]{1,400})'")


def named_path(fact: ExceptionFact) -> str | None:
    """The file that an OSError names."""
    match = _NAMED_PATH.search(fact.message)
    return match["path"] if match else None


def _last_line(logs: Iterable[LogText], rank: int | None) -> str:
    """Empty where it is the ruler that ends a launcher's report, or is marked as another rank's."""
    of_errors = sorted(logs, key=lambda log: log.source != "stderr.log")
    lines = (line.strip() for log in of_errors[:1] for line in reversed(log.lines))
    last = next(filter(None, lines), "")
    marked = _MARKED.match(last)
    other = marked is not None and rank is not None and int(marked[1]) != rank
    return last[:_SHOWN] if any(map(str.isalnum, last)) and not other else ""


def traceback_lines(fact: ExceptionFact) -> tuple[str, ...]:
    """Its last frames as Python prints them."""
    lines: list[str] = []
    for place in fact.frames[-_FRAMES_SHOWN:]:
        lines.append(f'  File "{place.file}", line {place.line}, in {place.function}')
        lines += [f"    {place.source}"] if place.source else []
    return (*lines, f"{fact.type}: {fact.message}" if fact.message else fact.type)
