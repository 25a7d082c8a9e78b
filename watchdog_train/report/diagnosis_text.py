"""An explanation of evidence that somebody brought, on one screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_train.core.diagnosis.facts import Evidence
from watchdog_train.core.diagnosis.places import groups
from watchdog_train.core.model import Explanation
from watchdog_train.report.evidence_text import changes, group_lines
from watchdog_train.report.explanation_text import sentences
from watchdog_train.report.glance_text import glance

_LINES = 8


def diagnosis_text(found: Explanation, evidence: Evidence, remedy_words: Mapping[str, str]) -> str:
    """What happened, who waits, why, what to change, and where every process is."""
    lines = [*sentences(found)]
    if found.because is None:
        lines.append("Cause: not known.")
    others = [one.family for one in found.alternatives]
    if others:
        lines.append(f"Less likely: {', '.join(others)}.")
    if found.remedies:
        lines += ["", "what to change, in this order:"]
        lines += [f"  {text}" for text in changes(found, remedy_words)]
    together = groups(evidence, found)
    if together:
        lines += ["", glance(evidence, found), "", "where everything is, odd one first:"]
        lines += [f"  {text}" for text in group_lines(together)[:_LINES]]
        if len(together) > _LINES:
            lines.append(f"  and {len(together) - _LINES} more groups")
    return "\n".join(lines)
