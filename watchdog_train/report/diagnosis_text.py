"""A diagnosis of evidence that somebody brought, on one screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_train.core.diagnosis.diagnose import culprit_process, groups
from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.model import Diagnosis
from watchdog_train.report.evidence_text import group_lines
from watchdog_train.report.facts import frame_words
from watchdog_train.report.glance_text import glance

_LINES = 8
_KINDS = {
    "hang": "a hang",
    "crash": "a crash",
    "slow": "no hang: it works, or would",
    "stopped": "stopped from outside",
    "unknown": "",
}


def diagnosis_text(
    diagnosis: Diagnosis, evidence: Evidence, remedy_words: Mapping[str, str]
) -> str:
    """Cause, culprit, why, alternatives, what to change, and where every process is."""
    name = diagnosis.family or "I do not know"
    kind = _KINDS[diagnosis.kind]
    sure = f"{diagnosis.confidence:.0%} sure" if diagnosis.family else ""
    about = ", ".join(part for part in (kind, sure) if part)
    lines = [f"{name} ({about})" if about else name, "", diagnosis.explanation]
    process = culprit_process(evidence, diagnosis)
    if diagnosis.culprit is not None:
        who = process.who if process else _named(diagnosis)
        lines += ["", f"who: {who}{frame_words(diagnosis.culprit)}"]
    if diagnosis.evidence:
        lines += ["", "evidence:", *(f"  {text}" for text in diagnosis.evidence[:_LINES])]
    others = [one for one in diagnosis.ranked if one.family != diagnosis.family]
    if others:
        shown = ", ".join(f"{one.family} ({one.confidence:.0%})" for one in others)
        lines += ["", f"instead it may be: {shown}"]
    if diagnosis.remedies:
        lines += ["", "what to change, in this order:"]
        lines += [
            f"  {number}. {name}{f': {remedy_words[name]}' if name in remedy_words else ''}"
            for number, name in enumerate(diagnosis.remedies, 1)
        ]
    found = groups(evidence, diagnosis)
    if found:
        lines += ["", glance(evidence, diagnosis), "", "where everything is, odd one first:"]
        lines += [f"  {text}" for text in group_lines(found)[:_LINES]]
        if len(found) > _LINES:
            lines.append(f"  and {len(found) - _LINES} more groups")
    return "\n".join(lines)


def _named(diagnosis: Diagnosis) -> str:
    culprit = diagnosis.culprit
    if culprit is None:
        return "?"
    rank = "" if culprit.rank is None else f"rank {culprit.rank}"
    role = "" if culprit.role == "rank" and rank else f" {culprit.role}"
    return f"{rank}{role}".strip()
