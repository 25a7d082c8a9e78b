"""What ended an attempt: the first bad end, its exception, who sent its signal. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from watchdog_train.core.diagnosis.error_classes import is_error
from watchdog_train.core.diagnosis.facts import Evidence, HostFacts, LogText, ProcessEvidence
from watchdog_train.core.diagnosis.first_failure import first_failures
from watchdog_train.core.diagnosis.stacks import both_ends
from watchdog_train.core.model import CrashFact, ExceptionFact, RankEnd, Sender

_OWN_CRASH = (4, 5, 6, 7, 8, 11)
"""SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: a process raises them itself."""
_OOM_KILLED = re.compile(r"Killed process (?P<pid>\d{1,10})\b")
_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k|a|)sh\Z")
_ENDS_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)\b(?::|$)")
_MARKED = re.compile(r"\[rank(\d{1,6})\]:")
_SHOWN, _FRAMES_SHOWN = 200, 8


def with_senders(
    processes: Sequence[ProcessEvidence], logs: Sequence[LogText], host: HostFacts
) -> tuple[ProcessEvidence, ...]:
    """Each end with the sender of its signal; wtrain sends none before evidence is taken."""
    firsts = {process.identity for process, _ in first_failures(processes, logs)}
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

    `oom_killed`: the kernel's log names this process. `by_member`: a launcher killed its ranks
    because one had failed.
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
    """What ended the attempt, or the rank that the others wait for; None without a failure."""
    first = first_failures(evidence.processes, evidence.logs)
    if not first and evidence.why == "stall":
        stay = [p for p in evidence.processes if p.exception is not None and p.exception.stays]
        who = min(stay, key=_raised_at, default=None)
        if who is not None:
            return CrashFact(exception=who.exception, rank=who.rank, pid=who.pid, stays=True)
    if not first and (evidence.why != "crash" or evidence.exit is None):
        return None
    if not first:
        return _of_the_whole(evidence, command, gpu_shared=gpu_shared)
    # Of ranks that ended at about the same time, choose the one with the oldest exception.
    process, end = min(first, key=lambda one: _raised_at(one[0]))
    exception = process.exception
    killed = end.signal is not None and end.said != "exception"
    if exception is None and not killed:
        exception = _of_others(evidence, end.rank)
    before = _first(evidence, exception)
    return CrashFact(
        exception=exception,
        first=before,
        vanished=_printed_by(evidence, before) or _vanished(evidence, exception, end),
        code=end.code,
        signal=end.signal,
        sender=process.ended.sender if process.ended is not None else None,
        rank=end.rank,
        pid=end.pid,
        step=end.step,
        said=_last_line(evidence, end.rank) if exception is None else "",
        gpu_shared=gpu_shared,
    )


SKEW_S = 0.5
"""Seconds between a step and output written before it, or an end and its poll."""
_CONSEQUENCE_S = 30.0


def _first(evidence: Evidence, fact: ExceptionFact | None) -> ExceptionFact | None:
    """The oldest exception of another process that caused this one."""
    if fact is None or fact.at is None:
        return None
    led = {f"{one.type}: {one.message}" for one in fact.chain}
    names = is_error("of-another-process", fact.text)
    before = [
        one
        for one in evidence.exceptions
        if one.at is not None
        and fact.at - _CONSEQUENCE_S <= one.at <= fact.at + SKEW_S
        and (
            names or _printed_by(evidence, one)
            if one.source == "output"
            else one.pid != fact.pid and one.at < fact.at
        )
        and one.text not in {fact.text, *led}
    ]
    return min(before, key=lambda one: (one.at or 0.0, one.source), default=None)


def _printed_by(evidence: Evidence, fact: ExceptionFact | None) -> RankEnd | None:
    """The helper in whose script this traceback begins, if it may have ended by it."""
    own = fact is not None and fact.source == "output" and not fact.thread
    frames = fact.frames if fact is not None and own else ()
    begins = next((one.file for one in frames if one.function == "<module>"), "")
    name = begins.replace("\\", "/").removesuffix("/__main__.py").rpartition("/")[2]
    for end in (p.ended.end for p in evidence.processes if p.ended is not None):
        script = end.script.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
        if script and script == name.removesuffix(".py") and end.signal is None:
            return end
    return None


def _vanished(evidence: Evidence, fact: ExceptionFact | None, end: RankEnd) -> RankEnd | None:
    """The helper killed before the rank failed; at any time if the exception blames a helper."""
    helpers = (
        p.ended.end for p in evidence.processes if p.ended is not None and p.ended.end.helper
    )
    points = fact is not None and is_error("of-another-process", fact.text)
    found = [one for one in helpers if one.signal is not None and (points or one.at < end.at)]
    return min(found, key=lambda one: one.at, default=None)


def _raised_at(process: ProcessEvidence) -> float:
    at = process.exception.at if process.exception is not None else None
    return math.inf if at is None else at


def _of_the_whole(evidence: Evidence, command: Sequence[str], *, gpu_shared: bool) -> CrashFact:
    """From the root's end, if no rank's end was seen."""
    code, signal = (evidence.exit.code, evidence.exit.signal) if evidence.exit else (None, None)
    if code is not None and code > 128 and command and _SHELLS.match(command[0]):
        signal, code = code - 128, None  # as a shell reports a signal
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
        said=_last_line(evidence, None) if exception is None else "",
        gpu_shared=gpu_shared,
    )


def _of_others(evidence: Evidence, rank: int | None) -> ExceptionFact | None:
    """From a child of the rank, else from the launcher or the output."""
    since = evidence.progressed_at
    same = (
        one
        for one in evidence.exceptions
        if (None in (rank, one.rank) or one.rank == rank)
        and (since is None or one.at is None or one.at >= since - SKEW_S)
    )
    found = tuple(same)
    told = min(
        found, key=lambda one: {"hook": 0, "elastic": 1, "output": 2}[one.source], default=None
    )
    # Of those in the output the last: a program may log exceptions that it handles.
    return found[-1] if told is not None and told.source == "output" else told


_NAMED_PATH = re.compile(r"\[Errno \d+\] [^:]{1,100}: '(?P<path>/[^'\n]{1,400})'")


def named_path(fact: ExceptionFact) -> str | None:
    match = _NAMED_PATH.search(fact.message)
    return match["path"] if match else None


def _last_line(evidence: Evidence, rank: int | None) -> str:
    """Empty if it is the ruler at the end of a launcher's report, is marked as another rank's, or
    ends the traceback of a handled exception.
    """
    of_errors = sorted(evidence.logs, key=lambda log: log.source != "stderr.log")
    lines = (line.strip() for log in of_errors[:1] for line in reversed(log.lines))
    last = next(filter(None, lines), "")
    marked = _MARKED.match(last)
    other = marked is not None and rank is not None and int(marked[1]) != rank
    handled = _ENDS_TRACEBACK.match(last) and evidence.progressed_at is not None
    return both_ends(last, _SHOWN) if any(map(str.isalnum, last)) and not (other or handled) else ""


def traceback_lines(fact: ExceptionFact) -> tuple[str, ...]:
    lines: list[str] = []
    for place in fact.frames[-_FRAMES_SHOWN:]:
        lines.append(f'  File "{place.file}", line {place.line}, in {place.function}')
        lines += [f"    {place.source}"] if place.source else []
    return (*lines, fact.text if fact.message else fact.type)
