"""The cause of what was observed: a family may refine an explanation, and never contradict it.

"I do not know" is a right answer; a confident wrong one is the worst.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.diagnosis.collectives import spans
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.log_search import MOVED_ON, before
from watchdog_train.core.diagnosis.stacks import deciding_frame
from watchdog_train.core.model import DiagnosisKind, Value, signal_name
from watchdog_train.core.model import explanation as x
from watchdog_train.explain.chains import Chains, has_failed_end
from watchdog_train.explain.explanation import Situation, explain, told_end
from watchdog_train.explain.families import OBJECTS, SIGNALS, FamilyRule, Rules
from watchdog_train.explain.remedies import Grounds
from watchdog_train.explain.signs import Match, Scene

ENOUGH = 0.45
"""A family less likely than this is an alternative, not an answer."""
CLOSE = 0.05
"""Families nearer than this to each other are not told apart by the evidence."""
_PROVEN, _LIKELY = 0.9, 0.7
_LINE_SHOWN, _TOLD = 300, 60
_NOT_TOLD_APART = 0.15
"""Taken from a family that has another one close to it."""
_BEATEN = 0.5
_OUTWEIGHED = 0.65
"""A family that is so much less likely explains no other one away."""
_LATER = 0.75
"""What is left of a failure when another one came before it."""
_WORKED_ON = 0.75
"""What is left of an error line when work went on after it."""
_SEALED = 0.93
"""At least so sure is a sign of a fork, of a process in which nobody is left to wake anybody."""
_FORK = ("forked", "spawned", "held_at_fork")
_SEEN: tuple[tuple[frozenset[str], float], ...] = (
    (frozenset({"worker", "running_now"}), 0.65),
    (frozenset({"uninterruptible"}), 1.0),
    (frozenset({"running_now"}), 0.9),
    (frozenset({"flat"}), 1.0),
    (frozenset({"idle_now"}), 1.0),
    (frozenset(), 0.95),
)
"""What is left of a hang by what its root was seen to do; the first row that holds. A rank that
runs may spin in a wait."""
_STEPS_GO_ON = 0.65
"""What is left of a hang, in a dump on request, when the output shows steps to its end."""


class _Candidate(Value):
    rule: FamilyRule
    match: Match
    confidence: float

    @property
    def kind(self) -> DiagnosisKind:
        return self.match.sign.kind or self.rule.kind


def judge(
    evidence: Evidence,
    rules: Rules,
    situation: Situation | None = None,
    chains: Chains | None = None,
) -> x.Explanation:
    """What happened, and what is known about it; `chains` are of this evidence, where known."""
    graph = chains or Chains(evidence, rules.frames)
    observed = explain(graph, situation)
    scene = Scene(graph, observed)
    died = observed.died is not None
    found = [] if died else _candidates(scene, rules)
    grounds = Grounds(evidence, observed)
    best = found[0] if found and found[0].confidence >= ENOUGH else None
    remedies: tuple[str, ...] = ()
    kind: x.ExplanationKind = observed.kind
    confidence = 0.0
    if best is not None:
        confidence = best.confidence
        if len(found) > 1 and abs(confidence - found[1].confidence) < CLOSE:
            confidence = max(ENOUGH, confidence - _NOT_TOLD_APART)
        sign = best.match.sign
        remedies = best.rule.remedies if sign.remedies is None else sign.remedies
        kind = best.kind if kind == "unknown" else kind
        hit = best.match.hit
        if observed.root is None and hit is not None and not best.rule.symptom:
            root = told_end(evidence, hit.rank, hit.line.text)
            observed = msgspec.structs.replace(observed, root=root)
    others = found[1:3] if best is not None else found[:2]
    return msgspec.structs.replace(
        observed,
        kind=kind,
        because=_because(best, confidence, scene) if best is not None else None,
        alternatives=tuple(
            _named(one, min(one.confidence, confidence) if best is not None else one.confidence)
            for one in others
        ),
        remedies=() if died else grounds.offered(remedies),
        pointless=grounds.pointless,
    )


def _candidates(scene: Scene, rules: Rules) -> list[_Candidate]:
    """The likeliest sign of each family that fits, the most likely family first."""
    found: list[_Candidate] = []
    for rule in rules.families:
        fitting: list[_Candidate] = []
        for sign in rule.signs:
            kind = sign.kind or rule.kind
            if not _may_speak(rule, kind, scene):
                continue
            match = scene.match(sign, hangs=kind == "hang")
            if match is None or _contradicted(rule, match, kind, scene):
                continue
            sure = _own_confidence(match, kind, scene)
            fitting.append(_Candidate(rule=rule, match=match, confidence=sure))
        if fitting:
            found.append(max(fitting, key=lambda one: one.confidence))
    likely = {one.rule.family: one.confidence for one in found}
    beaten = {
        name
        for one in found
        if one.confidence >= ENOUGH
        for name in one.rule.beats
        if one.confidence > _OUTWEIGHED * likely.get(name, 0.0)
    }
    scored = [
        msgspec.structs.replace(
            one,
            confidence=one.confidence
            * (_BEATEN if one.rule.family in beaten else 1.0)
            * _share_of_later(one, [other for other in found if other is not one]),
        )
        for one in found
    ]
    # Of equally likely ones, what works comes before what hangs.
    return sorted(scored, key=lambda c: (-c.confidence, c.kind != "slow", c.rule.family))


def _may_speak(rule: FamilyRule, kind: DiagnosisKind, scene: Scene) -> bool:
    """Whether the family knows anything of what the root was seen to do."""
    root = scene.observed.root
    if root is None or "any" in rule.of:
        return True
    doing = root.doing
    if isinstance(doing, x.End) and doing.signal is not None:
        name = signal_name(doing.signal)
        # A kill from outside has no cause inside.
        return doing.sender != "outside" and (name not in SIGNALS or name in rule.of)
    if isinstance(doing, x.End) and has_failed_end(doing):
        return kind == "crash"
    tag = doing.__struct_config__.tag
    return tag not in OBJECTS or tag in rule.of


def _contradicted(rule: FamilyRule, match: Match, kind: DiagnosisKind, scene: Scene) -> bool:
    """Whether whom it means goes on, or only waits for the root."""
    rank = _culprit(match, scene)
    if rule.symptom and match.hit is not None and not _says_it(match.hit.line.text, scene):
        return True
    waits = any((one.role, one.rank) == ("rank", rank) for one in scene.victims)
    if match.bound is None and rank is not None and waits and "any" not in rule.of:
        return True
    going = scene.evidence.exchanging
    if not going or kind != "hang":
        return False
    ranks = {one.rank for one in scene.evidence.processes if one.role == "rank"}
    return rank in going if rank is not None else ranks <= set(going)


def _says_it(line: str, scene: Scene) -> bool:
    """Whether a line may be of the exception that ended the root, where one did."""
    root = scene.observed.root
    raised = root.doing.raised if root is not None and isinstance(root.doing, x.End) else None
    return raised is None or raised.message[:_TOLD] in line


def _culprit(match: Match, scene: Scene) -> int | None:
    """The rank that a match means: by its process, else by its line or its records."""
    if match.bound is not None:
        return match.bound.process.rank
    rank = match.hit.rank if match.hit is not None else None
    if rank is None and scene.recorded is not None and _asks(match, "recorded-"):
        rank = scene.recorded.culprit
    return rank


def _asks(match: Match, prefix: str) -> bool:
    return any(word.startswith(prefix) for one in match.sign.when for word in one.split("|"))


def _own_confidence(match: Match, kind: DiagnosisKind, scene: Scene) -> float:
    sure, hit = match.sign.sure, match.hit
    if hit is not None:
        counts = kind != "slow" and match.sign.at != "early"
        if counts and hit.progress_after >= MOVED_ON:
            sure *= _WORKED_ON
    if kind != "hang" or match.bound is None:
        return sure
    facts = scene.facts(match.bound.process, match.bound.thread)
    first = match.sign.root or match.sign.waiter
    asked = " ".join(first.facts) if first is not None else ""
    if facts & {"sealed", "held_at_fork"} and any(word in asked for word in _FORK):
        return max(sure, _SEALED)
    if scene.evidence.why == "manual" and "moving" in scene.words:
        sure *= _STEPS_GO_ON
    return sure * next(share for words, share in _SEEN if words <= facts)


def _share_of_later(one: _Candidate, others: list[_Candidate]) -> float:
    """The first failure in time is the cause; time-outs of others are its consequences."""
    hit = one.match.hit
    if hit is None or one.match.bound is not None:
        return 1.0
    share = 1.0
    for other in others:
        first = other.match.hit
        if other.confidence < ENOUGH or other.rule.family in one.rule.beats:
            continue
        if other.rule.symptom:
            if one.rule.symptom and first is not None and before(first, hit) is True:
                share = min(share, _LATER)
            continue
        if first is None:
            if one.rule.symptom and other.match.bound is not None:
                share = min(share, _BEATEN)  # stacks show what the line only suffers from
        elif one.rule.symptom and before(hit, first) is not True:
            share = min(share, _BEATEN)
        elif not one.rule.symptom and before(first, hit) is True:
            share = min(share, _LATER)
    return share


def _because(best: _Candidate, confidence: float, scene: Scene) -> x.Because:
    bound, hit = best.match.bound, best.match.hit
    frame = deciding_frame(bound.thread.frames) if bound and bound.thread else None
    rank = _culprit(best.match, scene)
    who = f"rank {rank}" if rank is not None else "a rank"
    values = {
        "who": bound.process.who if bound is not None else who,
        "frame": str(frame) if frame is not None else "an unknown frame",
        "line": hit.line.text.strip()[:_LINE_SHOWN] if hit is not None else "",
        "others": ", ".join(scene.evidence.host.gpu_others[:4]) or "others",
        "orders": ", ".join(
            f"rank {fact.rank} {fact.op.lower()}" for fact in scene.records[:4] if fact.op
        ),
        "missing": spans(scene.not_come)[:_LINE_SHOWN],
    }
    text = best.match.sign.says or best.rule.says
    if hit is not None and "{line}" not in text:
        text += ' The output says: "{line}".'
    if best.rule.symptom and scene.not_come:
        text += " By what the others print, {missing} did not come."
    return msgspec.structs.replace(
        _named(best, confidence),
        template=text,
        values={name: value for name, value in values.items() if f"{{{name}}}" in text},
        link=best.rule.link,
    )


def _named(one: _Candidate, confidence: float) -> x.Because:
    confidence = round(confidence, 2)
    certainty: x.Certainty = "proven" if confidence >= _PROVEN else "likely"
    return x.Because(
        family=one.rule.family,
        certainty=certainty if confidence >= _LIKELY else "possible",
        confidence=confidence,
    )
