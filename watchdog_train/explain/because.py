"""The cause of what was observed: a family may refine an explanation, and never contradict it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from watchdog_train.core.diagnosis.diagnose import diagnose
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.found import Culprit, Diagnosis
from watchdog_train.core.diagnosis.rules import Rules
from watchdog_train.core.model import DiagnosisKind
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.explain.chains import Chains, has_failed_end
from watchdog_train.explain.explanation import Situation, explain
from watchdog_train.explain.remedies import offered, pointless

_PROVEN, _LIKELY = 0.9, 0.7
_SIGKILL, _SIGBUS = 9, 7
_BY_A_LINE = frozenset({"gpu-fault", "nan-loss"})
"""Told by the kernel's log or the losses, whatever the processes do."""
_OF_A_WAITER = frozenset({"datasets-map-num-proc", "fsdp-state-gather", "rank0-only-work"})
"""Told by what somebody waits for; whom it waits for is the root all the same."""
_OF_A_WAIT: tuple[tuple[type, frozenset[str]], ...] = (
    (w.Stopped, frozenset()),
    (w.TerminalWait, frozenset({"waiting-for-input"})),
    (w.FileWait, frozenset({"disk-io"})),
    (w.FileLockWait, frozenset({"file-lock", "disk-io", "healthy-slow"})),
    (w.DiskWait, frozenset({"disk-io", "memory-thrash"})),
    (w.SleepWait, frozenset({"healthy-slow", "dataloader-worker-stuck"})),
    (
        x.BatchWait,
        frozenset({"dataloader-worker-stuck", "dataloader-worker-died", "pin-memory-thread",
                   "shm-exhausted", "memory-thrash", "healthy-slow", "fork-cuda-init",
                   "disk-io"}),
    ),
    (
        w.TcpWait,
        frozenset({"hub-download", "logger-service-init", "exit-join", "rank-left-early",
                   "store-rendezvous", "dataloader-worker-stuck", "healthy-slow"}),
    ),
    (
        w.PipeWait,
        frozenset({"exit-join", "spawn-start", "datasets-map-num-proc", "dataloader-worker-stuck",
                   "pin-memory-thread", "logger-service-init", "compile-worker"}),
    ),
)  # fmt: skip
"""What may be said about a root whose object is known. About any other wait: whatever fits it."""


def judge(
    evidence: Evidence,
    rules: Rules,
    situation: Situation | None = None,
    chains: Chains | None = None,
) -> x.Explanation:
    """What happened, and what is known about it; `chains` are of this evidence, where known."""
    observed = explain(chains or Chains(evidence, rules.frames), situation)

    def admit(family: str, kind: DiagnosisKind, culprit: Culprit | None) -> bool:
        return _fits(family, kind, culprit, observed, evidence)

    diagnosis = diagnose(evidence, rules, admit)
    kind: x.ExplanationKind = observed.kind
    if kind == "unknown" and diagnosis.family is not None:
        kind = diagnosis.kind
    return msgspec.structs.replace(
        observed,
        kind=kind,
        because=_because(diagnosis, rules),
        alternatives=tuple(
            x.Because(
                family=one.family, certainty=_certainty(one.confidence), confidence=one.confidence
            )
            for one in diagnosis.ranked
            if one.family != diagnosis.family
        ),
        remedies=offered(diagnosis.remedies, evidence, observed),
        pointless=pointless(evidence, observed),
    )


def _fits(
    family: str,
    kind: DiagnosisKind,
    culprit: Culprit | None,
    observed: x.Explanation,
    evidence: Evidence,
) -> bool:
    """Whether the family is about the root, and about what the root was seen to do."""
    root = observed.root
    if family in _BY_A_LINE:
        return True
    if family not in _OF_A_WAITER and _is_victim(culprit, observed):
        return False
    if root is None:
        return True
    if isinstance(root.doing, x.End) and root.doing.signal is not None:
        return _fits_signal(family, root.doing, evidence)
    if isinstance(root.doing, x.End) and has_failed_end(root.doing):
        return kind == "crash"
    allowed = next((names for wait, names in _OF_A_WAIT if isinstance(root.doing, wait)), None)
    return allowed is None or family in allowed


def _fits_signal(family: str, end: x.End, evidence: Evidence) -> bool:
    """A kill from outside has no cause inside; only what the kernel counted may refine it."""
    if end.signal == _SIGKILL:
        counted = evidence.host.oom_since_start
        return family == "oom-killer" and (end.sender == "oom-killer" or not counted)
    if end.signal == _SIGBUS:
        return family == "shm-exhausted"
    return end.sender != "outside"


def _is_victim(culprit: Culprit | None, observed: x.Explanation) -> bool:
    """Whether it blames somebody who only waits for the root."""
    if culprit is None or culprit.pid is None:
        return False
    blamed = [observed.root.who] if observed.root is not None else []
    blamed += [*observed.alike, *(one.who for one in observed.knot)]
    if any(one.pid == culprit.pid for one in blamed):
        return False
    return any(victim.who.pid == culprit.pid for victim in observed.victims)


def _because(diagnosis: Diagnosis, rules: Rules) -> x.Because | None:
    if diagnosis.family is None:
        return None
    links: Mapping[str, str | None] = {rule.family: rule.link for rule in rules.families}
    return x.Because(
        family=diagnosis.family,
        certainty=_certainty(diagnosis.confidence),
        confidence=diagnosis.confidence,
        template=diagnosis.explanation,
        link=links.get(diagnosis.family),
    )


def _certainty(confidence: float) -> x.Certainty:
    if confidence >= _PROVEN:
        return "proven"
    return "likely" if confidence >= _LIKELY else "possible"
