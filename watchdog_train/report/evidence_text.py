"""A bundle in words: the one-screen summary, grouped stacks, one process's stack. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from watchdog_train.core.diagnosis.crash import traceback_lines
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import (
    busiest_thread,
    is_idle_helper,
    is_idle_process,
    is_idle_worker,
)
from watchdog_train.core.diagnosis.places import Group, groups, root_process
from watchdog_train.core.diagnosis.stacks import (
    Frame,
    deciding_frame,
    is_library,
    own_frames,
    trimmed,
)
from watchdog_train.core.model import Explanation
from watchdog_train.core.model import waits as w
from watchdog_train.report.explanation_text import (
    because,
    crash_words,
    doing_words,
    names_words,
    remedy_line,
    sentences,
    who_words,
)
from watchdog_train.report.notices import straggler_words
from watchdog_train.report.places_text import process_sentences
from watchdog_train.report.why_text import exit_text
from watchdog_train.report.words import listed

MOST_GROUPS = 6


def glance(evidence: Evidence, found: Explanation | None = None) -> str:
    """Ranks at one place together, the largest group first, then workers; without idle ones."""
    places: dict[tuple[str, str], list[ProcessEvidence]] = {}
    for process in evidence.processes:
        if process.role in ("launcher", "keeper") or is_idle_process(process.threads):
            continue
        places.setdefault((process.role, where(process)), []).append(process)
    root = root_process(evidence, found)
    order = {"rank": 0, "worker": 1, "other": 2}
    ordered = sorted(places.items(), key=lambda item: (order.get(item[0][0], 3), -len(item[1])))
    shown = [f"{names(group)}: {text}" for (_, text), group in ordered]
    if len(shown) > MOST_GROUPS:  # the one that matters must not be among those left out
        at = next((n for n, (_, group) in enumerate(ordered) if root in group), 0)
        kept = [*shown[: MOST_GROUPS - 1], shown[max(at, MOST_GROUPS - 1)]]
        shown = [*kept, f"and {len(shown) - MOST_GROUPS} more"]
    return " | ".join(shown)


def where(process: ProcessEvidence) -> str:
    """The function that decides and the training's own line: `torch.all_reduce (train.py:88)`."""
    if process.state in ("Z", "X"):
        return "dead"
    thread = busiest_thread(process.threads)
    frames = own_frames(thread.frames) if thread else ()
    frame = deciding_frame(frames)
    own = next((one for one in frames if not is_library(one)), None)
    text = "" if frame is None else str(frame)
    if frame is not None and own is not None and frame is not own:
        package = "" if frame.file.startswith("<") else frame.short.partition("/")[0]
        name = f"{package.removesuffix('.py')}.{frame.name}".removeprefix(".")
        text = f"{name} ({f'{own.short}:{own.line}'.removesuffix(':0')})"
    stopped = "stopped" if process.state in ("T", "t") else ""
    if process.state == "D":
        stopped = f"in the kernel{f' ({process.wchan})' if process.wchan else ''}"
    return ", ".join(filter(None, (text, stopped))) or "no stack"


def names(processes: Sequence[ProcessEvidence]) -> str:
    """`ranks 0-6`, `rank 0's worker 1 and rank 0's worker 2`."""
    members = [msgspec.structs.replace(one.who, pid=None) for one in processes]
    return names_words(members, pid=False, most=_LABELS_SHOWN)


_GROUP_LINES = 8
_GROUP_FRAMES = 5
_LABELS_SHOWN = 6
_SAID_BY_STATE = (w.Running, w.Stopped, w.Ended, w.UnknownWait)
TITLES = {"stall": "Stall", "crash": "Crash", "manual": "Dump on request"}


def summary(
    verdict: BundleVerdict,
    found: Explanation | None,
    evidence: Evidence,
    *,
    remedy_words: Mapping[str, str] | None = None,
) -> str:
    """What happened, who waits, why, what follows, what to change."""
    lines = [f"# {title(verdict)}", ""]
    raised = verdict.crash.exception if verdict.crash is not None else None
    if raised is not None:
        lines += ["```", *traceback_lines(raised), "```"]
        lines += [because(found)] if found is not None and found.because is not None else []
    else:
        lines += sentences(found) if found is not None else ["Nothing was explained."]
    if verdict.straggler is not None:
        lines.append(f"Straggler before it: {straggler_words(verdict.straggler)}")
    lines += ["", *_what(verdict), *[f"- {text}" for text in captured_lines(verdict)]]
    on_the_way = process_sentences(evidence)
    if on_the_way:
        lines += ["", "## On the way", "", *[f"- {text}" for text in on_the_way]]
    if verdict.done:
        follows = [f"- {text.removeprefix('then ')}" for text in verdict.done]
        lines += ["", "## What follows", "", *follows]
    if found is not None and found.remedies:
        lines += ["", "## What to change, in this order", "", *changes(found, remedy_words or {})]
    together = groups(evidence, found)
    if together:
        lines += ["", "## Where everything is (odd one first)", ""]
        lines += [f"- {labels(one)}: {chain(one.frames)}" for one in together[:_GROUP_LINES]]
        if len(together) > _GROUP_LINES:
            lines.append(f"- and {len(together) - _GROUP_LINES} more groups")
    lines += ["", "Whole stacks are in `stacks/`, the last output in `log-tail.txt`.", ""]
    return "\n".join(lines)


def title(verdict: BundleVerdict) -> str:
    """`Crash 0001: rank 0 raised RuntimeError at train.py:49, step 20: size mismatch`."""
    told = f": {crash_words(verdict.crash)}" if verdict.crash is not None else ""
    asked_for = verdict.why != "manual" or verdict.kind in (None, "manual")
    what = TITLES[verdict.why] if asked_for else "Automatic dump"
    return f"{what} {verdict.id}{told}"


def changes(found: Explanation, words: Mapping[str, str]) -> list[str]:
    return [f"{n}. {remedy_line(one, words)}" for n, one in enumerate(found.remedies, 1)]


def _what(verdict: BundleVerdict) -> list[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(verdict.at))
    lines = [f"- when: {at}" + (f", attempt {verdict.attempt}" if verdict.attempt else "")]
    if verdict.command:
        lines.append(f"- command: `{' '.join(verdict.command)[:300]}`")
    if verdict.exit is not None:
        lines.append(f"- ended: {exit_text(verdict.exit.code, verdict.exit.signal)}")
    if since := silence(verdict):
        lines.append(f"- since: {', '.join(since)}")
    if verdict.words and verdict.why != "crash":  # a crash is none of a watchdog's verdicts
        lines.append(f"- verdict: {verdict.words}")
    return lines


def silence(verdict: BundleVerdict) -> list[str]:
    """`no progress for 61 s`, `in phase train`."""
    found = [f"no progress for {verdict.beat_age_s:.0f} s"] if verdict.beat_age_s else []
    return found + ([f"in phase {verdict.phase}"] if verdict.phase not in (None, "unknown") else [])


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
        lines.append(f"no stack of pid {listed([*map(str, pids)], _LABELS_SHOWN)}: {why}")
    if verdict.problem:
        lines.append(verdict.problem)
    return lines


def labels(group: Group) -> str:
    return f"{names(group.processes)}{' (idle)' if group.idle else ''}"


def chain(frames: Sequence[Frame], count: int = _GROUP_FRAMES) -> str:
    """The innermost frames in one line, without the waits at the top."""
    return " < ".join(str(frame) for frame in trimmed(frames)[:count])


def group_text(found: Sequence[Group], *, frames: int = 12) -> str:
    lines: list[str] = []
    for group in found:
        lines.append(f"{labels(group)}:")
        lines += [f"    {_frame_line(frame)}" for frame in group.frames[:frames]]
        if len(group.frames) > frames:
            lines.append(f"    ... {len(group.frames) - frames} more")
        lines.append("")
    return "\n".join(lines)


def _line(process: ProcessEvidence) -> str:
    """Its place, and what is known of it without its stacks."""
    parts = []
    thread = process.main or (process.threads[0] if process.threads else None)
    frame = deciding_frame(thread.frames) if thread else None
    if frame is not None:
        parts.append(f"in {frame}")
    if process.state == "X" and process.why_not:
        parts.append(process.why_not)
    elif process.state:
        parts.append(f"state {process.state}")
    if process.cpu_share is not None:
        parts.append(f"CPU {process.cpu_share:.0%}")
    if process.wait is not None and not isinstance(process.wait, _SAID_BY_STATE):
        parts.append(" ".join(filter(None, doing_words(process.wait))).rstrip("."))
    return f"{who_words(process.who)}: {', '.join(parts) or 'no stack'}"


def stacks_text(process: ProcessEvidence) -> str:
    lines = [_line(process)]
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
