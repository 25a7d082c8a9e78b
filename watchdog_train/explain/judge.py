"""The cause of what was observed: a family may refine an explanation, and never contradict it.

"I do not know" is a right answer; a confident wrong one is the worst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from watchdog_train.core.diagnosis.collectives import spans_text
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.log_search import Hit
from watchdog_train.core.diagnosis.stacks import deciding_frame
from watchdog_train.core.model import DiagnosisKind, Value, signal_name
from watchdog_train.core.model import explanation as x
from watchdog_train.explain.cause import ANY, OBJECTS, REGISTERED, SIGNALS, Cause, Family
from watchdog_train.explain.chains import Chains, has_failed_end
from watchdog_train.explain.explanation import explain, told_end
from watchdog_train.explain.families import known_families
from watchdog_train.explain.messages import MESSAGES
from watchdog_train.explain.remedies import Grounds
from watchdog_train.explain.scene import Captured, Scene

_CERTAINTIES: tuple[x.Certainty, ...] = ("proven", "likely", "possible")
_LINE_SHOWN, _TOLD = 300, 60


class _Candidate(Value):
    family: Family
    cause: Cause
    process: Captured | None = None
    hit: Hit | None = None

    @property
    def kind(self) -> DiagnosisKind:
        return self.cause.kind or self.family.kind

    @property
    def certainty(self) -> x.Certainty:
        return self.cause.certainty


def judge(
    evidence: Evidence,
    since_s: float | None = None,
    chains: Chains | None = None,
    families: Iterable[Family] | None = None,
) -> x.Explanation:
    """What happened, and what is known about it; `chains` are of this evidence, if known."""
    graph = chains or Chains(evidence)
    observed = explain(graph, since_s)
    scene = Scene(graph, observed)
    grounds = Grounds(evidence, observed)
    found: list[_Candidate] = []
    if observed.died is None:
        found = _ranked(scene, known_families() if families is None else families)
    if not found:
        by_fact = () if observed.died is not None else grounds.offered(())
        return msgspec.structs.replace(observed, remedies=by_fact, pointless=grounds.pointless)
    best = found[0]
    if observed.root is None and best.hit is not None and not best.family.symptom:
        root = told_end(evidence, best.hit.rank, best.hit.line.text)
        observed = msgspec.structs.replace(observed, root=root)
    remedies = best.family.remedies if best.cause.remedies is None else best.cause.remedies
    return msgspec.structs.replace(
        observed,
        kind=best.kind if observed.kind == "unknown" else observed.kind,
        because=_because(best, scene),
        remedies=grounds.offered(remedies),
        pointless=grounds.pointless,
    )


def _ranked(scene: Scene, families: Iterable[Family]) -> list[_Candidate]:
    """The best candidate of each matching family; by certainty, then by the families' order."""
    found = []
    for one in families:
        fitting = [c for c in _candidates(scene, one) if not _contradicted(c, scene)]
        if fitting:
            found.append(min(fitting, key=_order))
    return sorted(found, key=_order)


def _order(one: _Candidate) -> int:
    return _CERTAINTIES.index(one.certainty)


def _candidates(scene: Scene, one: Family) -> Iterator[_Candidate]:
    """Results of its functions and error messages, as far as the observation allows them."""
    if one.of_process is not None:
        for process in scene.captured:
            if process.is_victim and not one.victims:
                continue
            cause = one.of_process(scene, process)
            seen = cause and _as_seen(cause, cause.kind or one.kind, process, scene)
            if seen:
                yield _Candidate(family=one, cause=seen, process=process)
    cause = one.of_job(scene) if one.of_job is not None else None
    if cause is not None:
        yield _Candidate(family=one, cause=cause)
    for row in MESSAGES:
        if row.family == one.id and (hit := scene.hit(row)) is not None:
            cause = Cause(
                certainty=row.certainty, says=row.says, kind=row.kind, remedies=row.remedies
            )
            if one.of_message is not None:
                cause = one.of_message(scene, cause)
            yield _Candidate(family=one, cause=cause, hit=hit)


def _as_seen(cause: Cause, kind: str, process: Captured, scene: Scene) -> Cause | None:
    """Lowered by the observation: a working process does not hang, or only spins."""
    if kind != "hang":
        return cause
    if process.busy or process.changed:
        return None
    if scene.steps_go_on or (process.running and process.role == "worker"):
        return msgspec.structs.replace(cause, certainty="possible")
    if process.running and not process.sealed and cause.certainty == "proven":
        return msgspec.structs.replace(cause, certainty="likely")
    return cause


def _contradicted(one: _Candidate, scene: Scene) -> bool:
    """Whether it does not fit what the root does, or blames a process that continues."""
    if not _may_explain(one, scene.observed.root):
        return True
    rank = _culprit(one)
    if one.family.symptom and one.hit is not None and not _says_it(one.hit.line.text, scene):
        return True
    waits = any((who.role, who.rank) == ("rank", rank) for who in scene.victims)
    if one.process is None and rank is not None and waits and ANY not in one.family.of:
        return True
    going = scene.evidence.exchanging
    if not going or one.kind != "hang":
        return False
    ranks = {each.rank for each in scene.evidence.processes if each.role == "rank"}
    return rank in going if rank is not None else ranks <= set(going)


def _may_explain(one: _Candidate, root: x.Standstill | None) -> bool:
    of = one.family.of
    if root is None or ANY in of:
        return True
    doing = root.doing
    if isinstance(doing, x.End) and doing.signal is not None:
        name = signal_name(doing.signal)
        # A kill from outside has no cause inside.
        return doing.sender != "outside" and (name not in SIGNALS or name in of)
    if isinstance(doing, x.End) and has_failed_end(doing):
        return one.kind == "crash"
    tag = doing.__struct_config__.tag
    return tag not in OBJECTS or tag in of


def _says_it(line: str, scene: Scene) -> bool:
    """Whether a line may be of the exception that came first, if one did."""
    root = scene.observed.root
    if root is not None:
        raised = root.doing.raised if isinstance(root.doing, x.End) else None
        return raised is None or raised.message[:_TOLD] in line
    first = next(iter(scene.evidence.exceptions), None) if scene.why == "crash" else None
    if first is None or first.message[:_TOLD] in line:
        return True
    # Libraries of collectives raise in other words than they log: either is a symptom.
    rows = (row for row in MESSAGES if REGISTERED[row.family].symptom)
    return any(re.search(row.pattern, first.text) for row in rows)


def _culprit(one: _Candidate) -> int | None:
    """The rank that it blames: by its process, else by its line or the ranks' records."""
    if one.process is not None:
        return one.process.rank
    if one.hit is not None:
        return one.hit.rank
    return one.cause.rank


def _because(best: _Candidate, scene: Scene) -> x.Because:
    process, hit = best.process, best.hit
    frame = deciding_frame(process.stack.frames) if process is not None else None
    text = best.cause.says or best.family.says
    if hit is not None and "{line}" not in text:
        text += ' The output says: "{line}".'
    if best.family.symptom and scene.not_come:
        text += " By what the others print, {missing} did not come."
    values = {
        "frame": str(frame) if frame is not None else "an unknown frame",
        "line": hit.line.text.strip()[:_LINE_SHOWN] if hit is not None else "",
        "others": ", ".join(scene.evidence.host.gpu_others[:4]) or "others",
        "orders": ", ".join(
            f"rank {fact.rank} {fact.op.lower()}" for fact in scene.records[:4] if fact.op
        ),
        "missing": spans_text(scene.not_come)[:_LINE_SHOWN],
    }
    return x.Because(
        family=best.family.id,
        certainty=best.certainty,
        who=x.Who(pid=None, role="rank", rank=_culprit(best)) if process is None else process.who,
        template=text,
        values={name: value for name, value in values.items() if f"{{{name}}}" in text},
        link=best.family.link,
    )
