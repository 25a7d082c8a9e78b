"""Does a signature fit the evidence, and which process is the culprit? Pure; judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from watchdog_train.core.facts import (
    BUSY_CPU_SHARE,
    FLAT_CPU_SHARE,
    Evidence,
    HostFacts,
    ProcessEvidence,
)
from watchdog_train.core.model import Value
from watchdog_train.core.rules import HostClause, ProcessClause, Signature
from watchdog_train.core.stacks import (
    ThreadStack,
    deciding_frame,
    find_chain,
    frame_matches,
    is_idle_helper,
    is_idle_worker,
    own_frames,
)

LINE_CAP = 2000
"""Characters of a log line that regular expressions see: bounded work on untrusted text."""
_PROGRESS = re.compile(
    r"\d+/\d+ \[|\bstep[ =:]+\d+|\biter(?:ation)?[ =:]+\d+|'(?:loss|epoch)':", re.IGNORECASE
)


class Bound(Value, frozen=True, kw_only=True):
    """A process that fits a clause, with the thread that did."""

    process: ProcessEvidence
    thread: ThreadStack | None


class Match(Value, frozen=True, kw_only=True):
    """A signature that fits."""

    signature: Signature
    bound: tuple[Bound, ...]
    """One per clause that is not `absent`; the first is the culprit."""
    line: str | None
    """The log line that it was recognised by."""


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def match_signature(signature: Signature, evidence: Evidence) -> Match | None:
    """The first way in which the signature fits."""
    if signature.why and evidence.why not in signature.why:
        return None
    if not _exit_fits(signature, evidence) or not _host_fits(signature.host, evidence.host):
        return None
    if signature.dead_lock_owner and not any(lock.owner_alive is False for lock in evidence.locks):
        return None
    line = None
    if signature.log:
        line = _find_line(signature.log, evidence)
        if line is None:
            return None
    if signature.log_also and not _in_logs(signature.log_also, evidence):
        return None
    if signature.log_without and _in_logs(signature.log_without, evidence):
        return None
    if not signature.processes:
        return Match(signature=signature, bound=(), line=line)
    for subject in _fitting(signature.processes[0], evidence.processes):
        rest = _bind_rest(signature.processes[1:], subject.process, evidence)
        if rest is not None:
            return Match(signature=signature, bound=(subject, *rest), line=line)
    return None


def _bind_rest(
    clauses: Sequence[ProcessClause], subject: ProcessEvidence, evidence: Evidence
) -> tuple[Bound, ...] | None:
    bound = []
    for clause in clauses:
        related = [other for other in evidence.processes if _related(clause.who, other, subject)]
        found = next(_fitting(clause, related), None)
        if clause.absent:
            if found is not None:
                return None
        elif found is None:
            return None
        else:
            bound.append(found)
    return tuple(bound)


def _related(who: str, other: ProcessEvidence, subject: ProcessEvidence) -> bool:
    match who:
        case "same":
            return other.pid == subject.pid
        case "parent":
            return other.pid == subject.ppid
        case "child":
            return other.ppid == subject.pid
        case "other":
            return other.pid != subject.pid
        case _:
            return True


def _fitting(clause: ProcessClause, processes: Sequence[ProcessEvidence]) -> Iterator[Bound]:
    for process in processes:
        if not _process_fits(clause, process):
            continue
        if not _asks_for_stack(clause):
            yield Bound(process=process, thread=process.main)
            continue
        for thread in process.threads:
            if _thread_fits(clause, thread):
                yield Bound(process=process, thread=thread)
                break


def _asks_for_stack(clause: ProcessClause) -> bool:
    return bool(
        clause.chain
        or clause.top
        or clause.without
        or clause.source
        or clause.native is not None
        or clause.gil_holder is not None
    )


def _is_or_unasked(wanted: bool | None, actual: bool | None) -> bool:
    return wanted is None or wanted is actual


def _process_fits(clause: ProcessClause, process: ProcessEvidence) -> bool:
    return (
        (not clause.roles or process.role in clause.roles)
        and (not clause.state or process.state in clause.state)
        and _cpu_fits(clause.cpu, process.cpu_share)
        and _is_or_unasked(clause.sealed, process.sealed)
        and _is_or_unasked(clause.changed, process.changed)
        and _is_or_unasked(clause.captured, process.how is not None)
        and _is_or_unasked(clause.waits_for_input, process.waits_for_input)
        and (clause.forked is None or clause.forked is process.forked)
        and (clause.idle_worker is None or clause.idle_worker is is_idle_worker(process.threads))
        and (not clause.wchan or _wchan_fits(clause.wchan, process.wchan))
        and (clause.command is None or _command_fits(clause.command, process.command))
        and all(
            name in process.environment and _regex(pattern).search(process.environment[name])
            for name, pattern in clause.environment.items()
        )
    )


def _command_fits(pattern: str, command: Sequence[str]) -> bool:
    return _regex(pattern).search(" ".join(command)[:LINE_CAP]) is not None


def _wchan_fits(patterns: Sequence[str], wchan: str | None) -> bool:
    return wchan is not None and any(_regex(pattern).search(wchan) for pattern in patterns)


def _cpu_fits(wanted: str | None, share: float | None) -> bool:
    match wanted:
        case "flat":
            return share is not None and share < FLAT_CPU_SHARE
        case "busy":
            return share is not None and share >= BUSY_CPU_SHARE
        case "not-busy":
            return share is None or share < BUSY_CPU_SHARE
        case _:
            return True


def _thread_fits(clause: ProcessClause, thread: ThreadStack) -> bool:
    if clause.thread != "any" and thread.main != (clause.thread == "main"):
        return False
    if not thread.frames or is_idle_helper(thread):
        return False
    if not _is_or_unasked(clause.gil_holder, thread.owns_gil):
        return False
    frames = own_frames(thread.frames)
    if clause.native is not None and clause.native != any(frame.native for frame in frames):
        return False
    if clause.chain and not find_chain(clause.chain, frames):
        return False
    top = frames[: clause.depth]
    if clause.top and not any(frame_matches(want, frame) for want in clause.top for frame in top):
        return False
    if any(frame_matches(pattern, frame) for pattern in clause.without for frame in frames):
        return False
    if clause.source is not None:
        deciding = deciding_frame(frames)
        source = deciding.source if deciding else None
        return source is not None and _regex(clause.source).search(source[:LINE_CAP]) is not None
    return True


def _exit_fits(signature: Signature, evidence: Evidence) -> bool:
    if not signature.exit_signal and not signature.exit_code:
        return True
    end = evidence.exit
    if end is None:
        return False
    # A shell or launcher in between turns a signal into 128+N, Python's own launchers into -N.
    signals = {end.signal}
    if end.code is not None:
        signals |= {end.code - 128 if end.code > 128 else None, -end.code if end.code < 0 else None}
    return bool(signals & set(signature.exit_signal)) or end.code in signature.exit_code


def _host_fits(clause: HostClause | None, host: HostFacts) -> bool:
    if clause is None:
        return True
    killed = bool(host.oom_kills) and host.oom_since_start
    return (
        (clause.oom_killed is None or clause.oom_killed == killed)
        and _over(host.shm_used_share, clause.shm_used_over)
        and _over(host.swap_used_share, clause.swap_used_over)
        and (
            clause.memory_available_under is None
            or (
                host.memory_available_share is not None
                and host.memory_available_share < clause.memory_available_under
            )
        )
    )


def _over(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value > limit)


def _find_line(patterns: Sequence[str], evidence: Evidence) -> str | None:
    """The first line that fits with no progress after it: a warning, then steps, is no cause."""
    for log in evidence.logs:
        last_progress = max(
            (at for at, line in enumerate(log.lines) if _PROGRESS.search(line[:LINE_CAP])),
            default=-1,
        )
        for at, line in enumerate(log.lines):
            fits = any(_regex(pattern).search(line[:LINE_CAP]) for pattern in patterns)
            if fits and (at > last_progress or evidence.why == "crash"):
                return line[:LINE_CAP]
    return None


def _in_logs(patterns: Sequence[str], evidence: Evidence) -> bool:
    return any(
        _regex(pattern).search(line[:LINE_CAP])
        for log in evidence.logs
        for line in log.lines
        for pattern in patterns
    )
