"""Evidence and rules -> a diagnosis, and what it says about waiting longer. Pure and total.

"I do not know" (family None) is a right answer; a confident wrong one is the worst.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.found import Culprit, Diagnosis, RankedFamily
from watchdog_train.core.diagnosis.idle import Group, busiest_thread, group, is_idle_worker
from watchdog_train.core.diagnosis.log_search import MOVED_ON, before
from watchdog_train.core.diagnosis.matching import Match, match_signature
from watchdog_train.core.diagnosis.rules import FamilyRule, Rules
from watchdog_train.core.diagnosis.scene import Scene
from watchdog_train.core.diagnosis.stacks import fingerprint, place
from watchdog_train.core.diagnosis.wording import (
    LINE_SHOWN,
    culprit_of,
    ending,
    worded,
)
from watchdog_train.core.model import (
    DiagnosisKind,
    Explanation,
    Value,
)

__all__ = ["Evidence", "Rules", "diagnose", "evidence_fingerprint", "groups", "root_process"]

ENOUGH = 0.45
"""A family less likely than this is an alternative, not an answer."""
CLOSE = 0.05
"""Families nearer than this to each other are not told apart by the evidence."""
_NOT_TOLD_APART = 0.15
"""Taken from a family that has another one close to it."""
_BEATEN = 0.5
_LATER = 0.75
"""What is left of a failure when another one came before it."""
_WORKED_ON = 0.75
"""What is left of an error line when work went on after it."""


class _Candidate(Value, frozen=True, kw_only=True):
    rule: FamilyRule
    match: Match
    confidence: float


Admit = Callable[[str, DiagnosisKind, Culprit | None], bool]
"""Whether a family, the kind of its signature and whom it blames fit what was observed."""


def _any_family(_family: str, _kind: DiagnosisKind, _culprit: Culprit | None) -> bool:
    return True


def diagnose(evidence: Evidence, rules: Rules, admit: Admit = _any_family) -> Diagnosis:
    """The most likely family, with alternatives; family None when the evidence does not decide."""
    scene = Scene(evidence, rules.frames)
    candidates = _candidates(scene, rules, admit)
    if not candidates or candidates[0].confidence < ENOUGH:
        return _unknown(scene, candidates)
    best = candidates[0]
    confidence = best.confidence
    if len(candidates) > 1 and abs(confidence - candidates[1].confidence) < CLOSE:
        confidence = max(ENOUGH, confidence - _NOT_TOLD_APART)
    signature = best.match.signature
    ranked = [RankedFamily(family=best.rule.family, confidence=round(confidence, 2))]
    ranked += _ranked(candidates[1:], confidence)
    return Diagnosis(
        family=best.rule.family,
        kind=signature.kind or best.rule.kind,
        confidence=round(confidence, 2),
        culprit=None if _told_by_a_victim(best) else culprit_of(best.match, scene),
        explanation=worded(signature.explanation, best.match, scene),
        ranked=tuple(ranked),
        remedies=best.rule.remedies if signature.remedies is None else signature.remedies,
    )


def _told_by_a_victim(best: _Candidate) -> bool:
    """Whoever prints that a peer is gone, or did not come, is not the one who went."""
    return best.rule.symptom and best.match.hit is not None and not best.match.bound


def _candidates(scene: Scene, rules: Rules, admit: Admit) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    for rule in rules.families:
        for signature in rule.signatures:
            known = found.get(rule.family)
            if known is not None and known.confidence >= signature.confidence:
                continue
            match = match_signature(signature, scene)
            if match is None or _goes_on(rule, match, scene):
                continue
            if admit(rule.family, signature.kind or rule.kind, culprit_of(match, scene)):
                found[rule.family] = _Candidate(
                    rule=rule, match=match, confidence=_own_confidence(match)
                )
    beaten = {
        loser
        for candidate in found.values()
        if candidate.confidence >= ENOUGH
        for loser in candidate.rule.beats
    }
    scored = [
        _Candidate(
            rule=one.rule,
            match=one.match,
            confidence=one.confidence
            * (_BEATEN if one.rule.family in beaten else 1.0)
            * _share_of_later(one, [other for other in found.values() if other is not one]),
        )
        for one in found.values()
    ]
    return _ordered(scored)


def _goes_on(rule: FamilyRule, match: Match, scene: Scene) -> bool:
    """Whether who is said to hang exchanged a collective between two looks, or everybody did."""
    going = scene.evidence.exchanging
    if not going or (match.signature.kind or rule.kind) != "hang":
        return False
    culprit = culprit_of(match, scene)
    if culprit is not None and culprit.rank is not None:
        return culprit.rank in going
    ranks = {one.rank for one in scene.evidence.processes if one.role == "rank"}
    return all(rank in going for rank in ranks)


def _ordered(candidates: list[_Candidate]) -> list[_Candidate]:
    """The most likely first; among those that are close, one that works before one that hangs."""
    found = sorted(candidates, key=lambda c: (-c.confidence, -c.rule.precedence, c.rule.family))
    if not found:
        return found
    close = [c for c in found if found[0].confidence - c.confidence < CLOSE]
    works = next((c for c in close if _kind(c) == "slow" and _kind(found[0]) != "slow"), None)
    if works is None:
        return found
    return [works, *(c for c in found if c is not works)]


def _kind(candidate: _Candidate) -> DiagnosisKind:
    return candidate.match.signature.kind or candidate.rule.kind


def _own_confidence(match: Match) -> float:
    worked_on = match.hit is not None and match.hit.progress_after >= MOVED_ON
    return match.signature.confidence * (_WORKED_ON if worked_on else 1.0)


def _share_of_later(one: _Candidate, others: list[_Candidate]) -> float:
    """The first failure in time is the cause; time-outs of others are its consequences."""
    hit = one.match.hit
    if hit is None or one.match.bound:
        return 1.0
    share = 1.0
    for other in others:
        if other.confidence < ENOUGH or other.rule.symptom:
            continue
        first = other.match.hit
        if first is None:
            if (
                one.rule.symptom and other.match.bound
            ):  # stacks show what the line only suffers from
                share = min(share, _BEATEN)
        elif one.rule.symptom and before(hit, first) is not True:
            share = min(share, _BEATEN)
        elif not one.rule.symptom and before(first, hit) is True:
            share = min(share, _LATER)
    return share


def _ranked(candidates: list[_Candidate], most: float = 1.0) -> list[RankedFamily]:
    return [
        RankedFamily(
            family=candidate.rule.family, confidence=round(min(candidate.confidence, most), 2)
        )
        for candidate in candidates[:2]
    ]


def _unknown(scene: Scene, candidates: list[_Candidate]) -> Diagnosis:
    return Diagnosis(
        family=None,
        kind="crash" if scene.evidence.why == "crash" else "unknown",
        confidence=round(candidates[0].confidence, 2) if candidates else 0.1,
        culprit=None,
        explanation="",
        ranked=tuple(_ranked(candidates)),
        remedies=(),
    )


def groups(evidence: Evidence, found: Explanation | None = None) -> tuple[Group, ...]:
    """Stacks of the whole tree, the same ones together, the root's first, then the odd ones."""
    together = group((p.label, p.identity, p.role, p.threads) for p in evidence.processes)
    root = root_process(evidence, found)
    identity = root.identity if root else None
    return tuple(sorted(together, key=lambda one: identity not in one.identities))


def root_process(evidence: Evidence, found: Explanation | None) -> ProcessEvidence | None:
    """The process that the explanation is about, where it is among the evidence.

    Its rank and role count as well as its pid: on another machine that may be anybody's. None
    where two machines have one that fits.
    """
    if found is None or found.root is None:
        return None
    who = found.root.who
    same = [p for p in evidence.processes if (p.rank, p.role) == (who.rank, who.role)]
    if who.pid is None:
        return next((p for p in same if p.pid <= 0), None)
    fitting = [p for p in same if p.pid == who.pid]
    return fitting[0] if len(fitting) == 1 else None


def evidence_fingerprint(evidence: Evidence, family: str | None) -> str:
    """The same for the same hang or crash in two attempts."""
    places: list[tuple[str, tuple[str, ...]]] = []
    for process in evidence.processes:
        if process.role not in ("rank", "worker") or is_idle_worker(process.threads):
            continue
        thread = busiest_thread(process.threads)
        if thread is not None:
            places.append((process.role, place(thread.frames)))
    if evidence.why == "crash":
        places += [("exit", ending(evidence)), ("error", _error_lines(evidence))]
    return fingerprint(family, places)


_ERROR = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)): ?(.*)")
_NOISE = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def _error_lines(evidence: Evidence) -> tuple[str, ...]:
    """The first error of each log without its numbers."""
    found = []
    for log in evidence.logs:
        for line in log.lines:
            match = _ERROR.match(line[:LINE_SHOWN])
            if match:
                found.append(f"{match[1]}: {_NOISE.sub('#', match[2])[:120]}")
                break
    return tuple(found)
