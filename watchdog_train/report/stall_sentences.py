"""Suspicions, stalls, their evidence and cause as plain sentences for the terminal. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.report import words
from watchdog_train.report.explanation_text import because, crash_words, sentences
from watchdog_train.report.notices import warning_over
from watchdog_train.report.pace_text import slow_words, straggler_words
from watchdog_train.report.patience_text import pause_sentence
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, duration

MAX_NAMED = 4
"""Processes and tasks that are named one by one."""

CAPITALS = {"stall": "STALL", "crash": "CRASH", "manual": "DUMP"}


def silence(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What is said about a training that is quiet, slow or in want of something."""
    match event:
        case e.Suspected() | e.Looked():
            return ()  # the status line and `wtrain status` show what is waited for
        case e.SuspicionEnded():
            pause = pause_sentence(event)
            return (pause,) if pause is not None else ()
        case e.StallDeclared():
            return (f"STALL {clean(event.stall_id, 40)}: {why_text(event.why, brief=True)}",)
        case e.StallRecovered():
            return (f"stall {clean(event.stall_id, 40)} is over: {why_text(event.why)}",)
        case e.WouldHaveKilled():
            known = any(stall.verdict == event.why for stall in state.stalls)
            why = "" if known else f": {why_text(event.why)}"
            return (f"stall {clean(event.stall_id, 40)} is reported only, nothing is killed{why}",)
        case e.Noticed():
            return (f"notice: {why_text(event.why)}",)
        case e.Slowdown():
            return (f"slow: {slow_words(event)}",)
        case e.SlowdownEnded():
            return (f"no longer slow, after {duration(event.seconds)}: {why_text(event.why)}",)
        case e.Straggling():
            return (f"straggler: {straggler_words(event.straggler)}",)
        case e.Warned():
            return (f"warning: {why_text(event.why)}",)
        case e.WarningOver():
            return (warning_over(event),)
        case _:
            return ()


def evidence(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What is said about evidence and what it tells."""
    match event:
        case e.EvidenceCollecting():
            what = {
                "stall": "taking stacks of every process, before anything is killed",
                "crash": "taking what the crash left behind",
                "manual": "taking stacks of every process; nothing is killed",
            }[event.why]
            return (f"evidence {clean(event.stall_id, 40)}: {what}",)
        case e.EvidenceMoved():
            where = words.short_path(event.dir, state.cwd)
            return (f"there is room again: evidence {clean(event.stall_id, 40)} is in {where}",)
        case e.EvidenceCollected():
            where = words.short_path(event.dir, state.cwd)
            number = ""
            if event.why != "crash":
                number = f"{event.captured} of {words.count(len(event.processes), 'process')}, "
            lines = []
            if event.crash is not None:
                head = f"{CAPITALS[event.why]} {clean(event.stall_id, 40)}"
                lines.append(f"{head}: {crash_words(event.crash)}")
            lines += [f"evidence on disk: {number}{duration(event.seconds)}, {where}"]
            if event.why != "crash":
                lines += [
                    f"  no stack of pid {missing.pid}: {clean(missing.why)}"
                    for missing in event.missing[:MAX_NAMED]
                ]
                more = len(event.missing) - MAX_NAMED
                lines += [f"  and {more} more without a stack"] if more > 0 else []
            if event.problem:
                lines.append(f"  evidence is incomplete: {clean(event.problem)}")
            return tuple(lines)
        case e.StallExplained():
            return _explained(event, state)
        case _:
            return ()


def _explained(event: e.StallExplained, state: State) -> tuple[str, ...]:
    of = next((stall for stall in state.stalls if stall.id == event.stall_id), None)
    lines = sentences(event.explanation)
    if of is not None and of.crash is not None:  # that was the first line
        cause = because(event.explanation)
        lines = (cause,) if cause else ()
    if not event.tasks or not lines:
        return lines
    kind = state.task.kind if state.task is not None else "task"
    numbers = ", ".join(map(str, event.tasks[:MAX_NAMED]))
    return (f"from the evidence of {kind}s {numbers}: {lines[0]}", *lines[1:])
