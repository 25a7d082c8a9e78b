"""A bundle in words: the one-screen summary, grouped stacks, one process's stack. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.diagnosis.diagnose import culprit_process, groups
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import Group, is_idle_helper, is_idle_worker
from watchdog_train.core.diagnosis.stacks import Frame, trimmed
from watchdog_train.core.model import CrashFact, Diagnosis
from watchdog_train.report.facts import frame_words, what_ended
from watchdog_train.report.glance_text import glance
from watchdog_train.report.pace_text import straggler_words
from watchdog_train.report.places_text import process_sentences
from watchdog_train.report.why_text import exit_text

_EVIDENCE_LINES = 8
_GROUP_LINES = 8
_GROUP_FRAMES = 5
_LABELS_SHOWN = 6
TITLES = {"stall": "Stall", "crash": "Crash", "manual": "Dump on request"}


def summary(
    verdict: BundleVerdict,
    diagnosis: Diagnosis | None,
    evidence: Evidence,
    *,
    remedy_words: Mapping[str, str] | None = None,
) -> str:
    """What is stuck, which process and frame, why, what follows, what to change."""
    lines = [f"# {title(verdict)}", "", *_what(verdict, diagnosis, evidence), ""]
    lines += ["## Why", "", *_why(diagnosis, verdict.crash), ""]
    lines += ["## Evidence", ""]
    if diagnosis is not None:
        lines += [f"- {text}" for text in diagnosis.evidence[:_EVIDENCE_LINES]]
    if verdict.straggler is not None:
        lines.append(f"- straggler before it: {straggler_words(verdict.straggler)}")
    lines += [f"- {text}" for text in captured_lines(verdict)]
    on_the_way = process_sentences(evidence)
    if on_the_way:
        lines += ["", "## On the way", "", *[f"- {text}" for text in on_the_way]]
    if verdict.done:
        follows = [f"- {text.removeprefix('then ')}" for text in verdict.done]
        lines += ["", "## What follows", "", *follows]
    if diagnosis is not None and diagnosis.remedies:
        words = remedy_words or {}
        lines += ["", "## What to change, in this order", ""]
        lines += [
            f"{number}. {name}{f': {words[name]}' if name in words else ''}"
            for number, name in enumerate(diagnosis.remedies, 1)
        ]
    found = groups(evidence, diagnosis)
    if found:
        lines += ["", "## Where everything is (odd one first)", "", glance(evidence, diagnosis), ""]
        lines += [f"- {text}" for text in group_lines(found)[:_GROUP_LINES]]
        if len(found) > _GROUP_LINES:
            lines.append(f"- and {len(found) - _GROUP_LINES} more groups")
    lines += ["", "Whole stacks are in `stacks/`, the last output in `log-tail.txt`.", ""]
    return "\n".join(lines)


def title(verdict: BundleVerdict) -> str:
    """`Crash 0001: RuntimeError: size mismatch in train.py:49 step(), at step 20`."""
    told = f": {what_ended(verdict.crash)}" if verdict.crash is not None else ""
    return f"{TITLES[verdict.why]} {verdict.id}{told}"


def _what(verdict: BundleVerdict, diagnosis: Diagnosis | None, evidence: Evidence) -> list[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(verdict.at))
    lines = [f"- when: {at}" + (f", attempt {verdict.attempt}" if verdict.attempt else "")]
    if verdict.command:
        lines.append(f"- command: `{' '.join(verdict.command)[:300]}`")
    if verdict.exit is not None:
        lines.append(f"- ended: {ended(verdict)}")
    silence = [f"no progress for {verdict.beat_age_s:.0f} s"] if verdict.beat_age_s else []
    silence += [f"in phase {verdict.phase}"] if verdict.phase else []
    if silence:
        lines.append(f"- since: {', '.join(silence)}")
    if verdict.words:
        lines.append(f"- verdict: {verdict.words}")
    if diagnosis is not None and diagnosis.culprit is not None:
        process = culprit_process(evidence, diagnosis)
        label = process.who if process else diagnosis.culprit.role
        verb = "stuck" if diagnosis.kind == "hang" else "where"
        lines.append(f"- {verb}: {label}{frame_words(diagnosis.culprit)}")
    return lines


def ended(verdict: BundleVerdict) -> str:
    """By an exit code or a signal, as far as it is known."""
    end = verdict.exit
    if end is None or (end.code is None and end.signal is None):
        return "nobody knows how"
    return exit_text(end.code, end.signal)


def _why(diagnosis: Diagnosis | None, crash: CrashFact | None) -> list[str]:
    raised = crash.exception if crash is not None else None
    if raised is not None and (diagnosis is None or diagnosis.family is None):
        return ["```", *traceback_lines(raised), "```"]
    if diagnosis is None:
        return ["No diagnosis was made."]
    others = [
        f"{other.family} ({other.confidence:.0%})"
        for other in diagnosis.ranked
        if other.family != diagnosis.family
    ]
    name = diagnosis.family or "cause unknown"
    sure = f", {diagnosis.confidence:.0%} sure" if diagnosis.family else ""
    lines = [f"**{name}**{sure}. {diagnosis.explanation}"]
    if others:
        lines.append(f"Instead it may be: {', '.join(others)}.")
    return lines


def captured_lines(verdict: BundleVerdict) -> list[str]:
    """How many stacks there are, and why the others are missing."""
    total = len(verdict.processes)
    if not total:
        return []
    captured = sum(process.captured for process in verdict.processes)
    lines = [f"stacks of {captured} of {total} processes in {verdict.seconds:.1f} s"]
    missing: dict[str, list[int]] = {}
    for process in verdict.processes:
        if not process.captured:
            missing.setdefault(process.why_not or "unknown", []).append(process.pid)
    for why, pids in list(missing.items())[:4]:
        shown = ", ".join(map(str, pids[:_LABELS_SHOWN]))
        more = f" and {len(pids) - _LABELS_SHOWN} more" if len(pids) > _LABELS_SHOWN else ""
        lines.append(f"no stack of pid {shown}{more}: {why}")
    if verdict.problem:
        lines.append(verdict.problem)
    return lines


def group_lines(found: Sequence[Group]) -> list[str]:
    """One line a group: `rank 0 worker 1: __getitem__ (train.py:31) < fetch (...)`."""
    return [f"{labels(group)}: {chain(group.frames)}" for group in found]


def labels(group: Group) -> str:
    """Who is in the group, shortened."""
    shown = ", ".join(group.labels[:_LABELS_SHOWN])
    more = (
        f" and {len(group.labels) - _LABELS_SHOWN} more"
        if len(group.labels) > _LABELS_SHOWN
        else ""
    )
    return f"{shown}{more}{' (idle)' if group.idle else ''}"


def chain(frames: Sequence[Frame], count: int = _GROUP_FRAMES) -> str:
    """The innermost frames in one line, without the waits at the top."""
    return " < ".join(str(frame) for frame in trimmed(frames)[:count])


def group_text(found: Sequence[Group], *, frames: int = 12) -> str:
    """Grouped stacks, several lines each."""
    lines: list[str] = []
    for group in found:
        lines.append(f"{labels(group)}:")
        lines += [f"    {_frame_line(frame)}" for frame in group.frames[:frames]]
        if len(group.frames) > frames:
            lines.append(f"    ... {len(group.frames) - frames} more")
        lines.append("")
    return "\n".join(lines)


def stacks_text(process: ProcessEvidence) -> str:
    """All threads of one process, helpers named as such."""
    lines = [process.line()]
    if process.command:
        lines.append(f"command: {' '.join(process.command)[:500]}")
    if is_idle_worker(process.threads):
        lines.append("an idle worker: it waits for its parent's next order")
    if not process.threads:
        lines.append(f"no stack: {process.why_not or 'unknown'}")
    else:
        lines.append(f"stacks by {process.how}")
    for thread in process.threads:
        notes = ["main"] if thread.main else []
        notes += ["holds the interpreter lock"] if thread.owns_gil else []
        notes += ["helper, idle in every healthy run"] if is_idle_helper(thread) else []
        lines += [
            "",
            f"thread {thread.name or '?'} {thread.os_id or ''} {', '.join(notes)}".rstrip(),
        ]
        lines += [f"    {_frame_line(frame)}" for frame in thread.frames]
    return "\n".join(lines) + "\n"


def _frame_line(frame: Frame) -> str:
    source = f"    | {frame.source.strip()}" if frame.source else ""
    return f"{frame.function} ({frame.file}:{frame.line}){source}"
