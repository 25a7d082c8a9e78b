"""Evidence and rules -> a diagnosis, and what it says about waiting longer. Pure and total.

"I do not know" (family None) is a right answer; a confident wrong one is the worst.
"""

from __future__ import annotations

import re

from watchdog_train.core.facts import Evidence, ProcessEvidence
from watchdog_train.core.matching import Bound, Match, match_signature
from watchdog_train.core.model import (
    Culprit,
    Diagnosis,
    DiagnosisKind,
    Patience,
    RankedFamily,
    Value,
)
from watchdog_train.core.rules import FamilyRule, Rules
from watchdog_train.core.stacks import (
    Group,
    busiest_thread,
    deciding_frame,
    fingerprint,
    group,
    is_idle_worker,
    place,
)

__all__ = ["Evidence", "Rules", "diagnose", "evidence_fingerprint", "groups"]

ENOUGH = 0.45
"""A family less likely than this is an alternative, not an answer."""
CLOSE = 0.05
"""Families nearer than this to each other are not told apart by the evidence."""
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_LINE_SHOWN = 300
_OUTSIDE = frozenset(
    f"waits in {call}"
    for call in ("recvfrom", "recvmsg", "read", "write", "openat", "fsync", "flock", "fcntl")
)


class _Candidate(Value, frozen=True, kw_only=True):
    rule: FamilyRule
    match: Match
    confidence: float


def diagnose(evidence: Evidence, rules: Rules) -> tuple[Diagnosis, Patience]:
    """The most likely family, with alternatives; family None when the evidence does not decide."""
    candidates = _candidates(evidence, rules)
    if not candidates or candidates[0].confidence < ENOUGH:
        return _unknown(evidence, candidates), _patience_of_unknown(evidence)
    best = candidates[0]
    confidence = best.confidence
    if len(candidates) > 1 and confidence - candidates[1].confidence < CLOSE:
        confidence = max(ENOUGH, confidence - 0.15)
    signature = best.match.signature
    ranked = [RankedFamily(family=best.rule.family, confidence=round(confidence, 2))]
    ranked += _ranked(candidates[1:])
    diagnosis = Diagnosis(
        family=best.rule.family,
        kind=signature.kind or best.rule.kind,
        confidence=round(confidence, 2),
        culprit=_culprit(best.match),
        explanation=_worded(signature.explanation, best.match, evidence),
        evidence=_shown(best.match, evidence),
        ranked=tuple(ranked),
        remedies=best.rule.remedies if signature.remedies is None else signature.remedies,
    )
    patience = signature.patience
    if patience in ("unknown", "may-end") and _sealed(evidence):
        patience = "proven"
    return diagnosis, patience


def _patience_of_unknown(evidence: Evidence) -> Patience:
    if _sealed(evidence) is not None:
        return "proven"
    return "may-end" if _outside(evidence) is not None else "unknown"


def _outside(evidence: Evidence) -> ProcessEvidence | None:
    """A rank that waits in the kernel for a network, a disk or another process's lock on a file."""
    return next((p for p in evidence.processes if p.role == "rank" and p.waits in _OUTSIDE), None)


def _sealed(evidence: Evidence) -> ProcessEvidence | None:
    """A rank whose every thread waits for another thread of it: it cannot end, whatever it is."""
    return next((p for p in evidence.processes if p.role == "rank" and p.sealed), None)


def _candidates(evidence: Evidence, rules: Rules) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    for rule in rules.families:
        for signature in rule.signatures:
            known = found.get(rule.family)
            if known is not None and known.confidence >= signature.confidence:
                continue
            match = match_signature(signature, evidence)
            if match is not None:
                found[rule.family] = _Candidate(
                    rule=rule, match=match, confidence=signature.confidence
                )
    beaten = {
        loser
        for candidate in found.values()
        if candidate.confidence >= ENOUGH
        for loser in candidate.rule.beats
    }
    scored = [
        _Candidate(rule=c.rule, match=c.match, confidence=c.confidence / 2)
        if c.rule.family in beaten
        else c
        for c in found.values()
    ]
    return sorted(scored, key=lambda c: (-c.confidence, -c.rule.precedence, c.rule.family))


def _ranked(candidates: list[_Candidate]) -> list[RankedFamily]:
    return [
        RankedFamily(family=candidate.rule.family, confidence=round(candidate.confidence, 2))
        for candidate in candidates[:2]
    ]


def _unknown(evidence: Evidence, candidates: list[_Candidate]) -> Diagnosis:
    lines = tuple(process.line() for process in _telling(evidence)[:6])
    stopped = next((p for p in evidence.processes if p.state == "T" and p.role == "rank"), None)
    kind: DiagnosisKind = "crash" if evidence.why == "crash" else "unknown"
    if stopped is not None:
        kind = "stopped"
    return Diagnosis(
        family=None,
        kind=kind,
        confidence=round(candidates[0].confidence, 2) if candidates else 0.1,
        culprit=None,
        explanation=_what_is_known(evidence, stopped),
        evidence=(*_ending(evidence), *lines),
        ranked=tuple(_ranked(candidates)),
        remedies=(),
    )


def _what_is_known(evidence: Evidence, stopped: ProcessEvidence | None) -> str:
    """What goes with an unknown cause: what is certain, or what would decide."""
    if stopped is not None:
        return (
            f"{stopped.label} (pid {stopped.pid}) was stopped by a signal from outside; it goes on "
            f"after: kill -CONT {stopped.pid}"
        )
    stuck = _sealed(evidence)
    if stuck is not None:
        return (
            f"Every thread of {stuck.label} waits for a lock of its own without a time limit, so "
            f"it can never go on by itself{_its_place(stuck)}."
        )
    silent = [process for process in evidence.processes if _deciding_but_missing(process)]
    if silent:
        names = ", ".join(f"{process.label} (pid {process.pid})" for process in silent[:4])
        more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
        why = silent[0].why_not
        return f"Stacks of {names}{more} would decide; they could not be taken: {why}."
    outside = _outside(evidence)
    if outside is not None:
        return (
            f"{outside.label} {outside.waits} for something outside the training"
            f"{_its_place(outside)}."
        )
    if evidence.why == "crash":
        return "Neither the last lines of output nor the exit status name a cause that is known."
    return "The stacks fit no known cause; a second dump shows whether anything moves."


def _its_place(process: ProcessEvidence) -> str:
    thread = busiest_thread(process.threads)
    frame = deciding_frame(thread.frames) if thread else None
    return f"; its main code is at {frame}" if frame else ""


def _deciding_but_missing(process: ProcessEvidence) -> bool:
    return process.role in ("rank", "worker") and process.how is None and process.state != "Z"


def _telling(evidence: Evidence) -> list[ProcessEvidence]:
    """Processes that may say something: not launchers, not idle workers."""
    return [
        process
        for process in evidence.processes
        if process.role in ("rank", "worker") and not is_idle_worker(process.threads)
    ]


def _ending(evidence: Evidence) -> tuple[str, ...]:
    end = evidence.exit
    if end is None:
        return ()
    if end.signal is not None:
        return (f"the training was ended by {signal_name(end.signal)}",)
    if end.code is not None:
        return (f"the training exited with code {end.code}",)
    return ("the training is gone and left no exit status",)


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 34` for one without a common name."""
    return _SIGNALS.get(number, f"signal {number}")


def _culprit(match: Match) -> Culprit | None:
    if not match.bound:
        return None
    bound = match.bound[0]
    return Culprit(
        rank=bound.process.rank,
        role=bound.process.role,
        pid=bound.process.pid,
        frame=_frame(bound) or "no stack",
    )


def _frame(bound: Bound) -> str | None:
    frame = deciding_frame(bound.thread.frames) if bound.thread else None
    return str(frame) if frame else None


def _shown(match: Match, evidence: Evidence) -> tuple[str, ...]:
    lines: list[str] = []
    for bound in match.bound:
        text = bound.process.line()
        if text not in lines:
            lines.append(text)
    if match.line is not None:
        lines.append(f"output: {match.line.strip()[:_LINE_SHOWN]}")
    subject = match.bound[0].process if match.bound else None
    if subject is not None and subject.sealed:
        lines.append(
            f"{subject.label}: every thread waits for a lock of its own process without a time "
            "limit; nothing is left that could release it"
        )
    lines += _ending(evidence)
    if match.signature.host is not None and evidence.host.oom_kills:
        lines.append(f"memory killer: {evidence.host.oom_kills} kill(s) in this cgroup")
    return tuple(lines)


def _worded(template: str, match: Match, evidence: Evidence) -> str:
    """The explanation, filled in one pass: what is filled in is never parsed itself."""
    bound = match.bound[0] if match.bound else None
    process = bound.process if bound else None
    end = evidence.exit
    parent = next((b.process for b in match.bound[1:]), None)
    top = bound.thread.frames[0] if bound and bound.thread and bound.thread.frames else None
    values = {
        "who": f"{process.label} (pid {process.pid})" if process else "the training",
        "rank": "?" if process is None or process.rank is None else str(process.rank),
        "pid": str(process.pid) if process else "?",
        "frame": (_frame(bound) if bound else None) or "an unknown frame",
        "top": top.name if top else "an unknown frame",
        "line": (match.line or "").strip()[:_LINE_SHOWN],
        "signal": signal_name(end.signal) if end is not None and end.signal else "a signal",
        "parent": f"{parent.label} (pid {parent.pid})" if parent else "its parent",
    }
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


def groups(evidence: Evidence, diagnosis: Diagnosis | None = None) -> tuple[Group, ...]:
    """Stacks of the whole tree, the same ones together, the culprit's first, then the odd ones."""
    found = group((p.label, p.pid, p.role, p.threads) for p in evidence.processes)
    culprit = diagnosis.culprit.pid if diagnosis and diagnosis.culprit else None
    return tuple(sorted(found, key=lambda one: culprit not in one.pids))


def evidence_fingerprint(evidence: Evidence, diagnosis: Diagnosis) -> str:
    """The same for the same hang or crash in two attempts."""
    places: list[tuple[str, tuple[str, ...]]] = []
    for process in evidence.processes:
        if process.role not in ("rank", "worker") or is_idle_worker(process.threads):
            continue
        thread = busiest_thread(process.threads)
        if thread is not None:
            places.append((process.role, place(thread.frames)))
    if evidence.why == "crash":
        places += [("exit", _ending(evidence)), ("error", _error_lines(evidence))]
    return fingerprint(diagnosis.family, places)


_ERROR = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)): ?(.*)")
_NOISE = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def _error_lines(evidence: Evidence) -> tuple[str, ...]:
    """The first error of each log without its numbers."""
    found = []
    for log in evidence.logs:
        for line in log.lines:
            match = _ERROR.match(line[:_LINE_SHOWN])
            if match:
                found.append(f"{match[1]}: {_NOISE.sub('#', match[2])[:120]}")
                break
    return tuple(found)
