"""Events as plain sentences for the terminal, in the moment they happen. Pure.

The `why` of an event is shown verbatim (only stripped of what could move a terminal).
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.detection.rank_gone import how_it_ended, recorded
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Plan, signal_name
from watchdog_train.report import household_text, job_text, stall_sentences, words
from watchdog_train.report.facts import (
    exit_words,
    origin_words,
    role_counts,
    step_words,
)
from watchdog_train.report.summary import PREFIX, closing_lines, opening_lines, prefixed
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, duration

__all__ = ["PREFIX", "closing_lines", "narrate", "opening_lines"]

KILL = 9
MAX_NAMED = 4
"""Processes, orphans and the like that are named one by one."""


def narrate(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """Zero or more lines about an event; `state` is the state after it."""
    parts = (
        job_text.sentences,
        stall_sentences.silence,
        stall_sentences.evidence,
        household_text.sentences,
        _ending,
        _attempts,
    )
    return prefixed(*(line for part in parts for line in part(event, state)))


def _ending(event: e.AnyEvent, state: State) -> tuple[str, ...]:  # noqa: PLR0912 - one arm each
    match event:
        case e.StopRequested():
            how = "killing now" if event.mode == "now" else "ending gently, once more kills"
            return (f"stop requested ({clean(event.by)}): {how}",)
        case e.StopAsked():
            return (why_text(event.why),)
        case e.SaveRequested():
            if event.can_be_asked:
                return (f"save requested ({clean(event.by)}): asked training to save",)
            return (f"save requested ({clean(event.by)}): this script cannot be asked to save",)
        case e.RequestAnswered() | e.RequestRefused():
            return (_answer(event),)
        case e.SaveProven():
            where = words.short_path(event.path, state.cwd)
            return (f"saved: {where} ({step_words(event.step)}), checked whole",)
        case e.Signalling():
            return _signalling(event, state)
        case e.Signalled():
            if event.result == "denied":
                return (f"not allowed to signal pid {event.pid} ({clean(event.role, 40)})",)
            return ()
        case e.SurvivedKill():
            pids = words.listed([str(pid) for pid in event.pids])
            return (f"still there after SIGKILL: pid {pids}: {why_text(event.why)}",)
        case e.TreeGone():
            attempt = state.attempt
            quiet = attempt is not None and attempt.code == 0
            lines = [] if quiet else ["every process of this attempt is gone"]
            if event.left:
                pids = words.listed([str(daemon.process.pid) for daemon in event.left])
                lines.append(f"left running, no part of the training: pid {pids}")
            if event.shared_memory_removed:
                left = words.count(len(event.shared_memory_removed), "shared-memory segment")
                lines.append(f"removed {left} that had no owner left")
            return tuple(lines)
        case _:
            return ()


def _answer(event: e.RequestAnswered | e.RequestRefused) -> str:
    stops = event.request == "stop"
    if isinstance(event, e.RequestRefused):
        what = "save and end" if stops else "save"
        return f"the ranks have found no step at which all could {what}"
    what = "saves and ends" if stops else "saves"
    return f"the training has heard it and {what} ({step_words(event.step)})"


def _signalling(event: e.Signalling, state: State) -> tuple[str, ...]:
    if not event.targets or event.signal == 0:
        return ()
    if event.stage == "keeper" and event.signal != KILL:
        return ()
    who = role_counts(event.targets, state.members)
    if event.stage == "freeze":
        return (f"holding {who} still, so that nothing is started meanwhile",)
    verb = "killing" if event.signal == KILL else "ending"
    named = ""
    if len(event.targets) <= MAX_NAMED:
        named = ", pid " + ", ".join(str(target.pid) for target in event.targets)
    stall = state.last_stall
    because = why_text(event.why)
    if stall is not None and event.why == stall.verdict:
        because = f"stall {clean(stall.id, 40)}"
    return (f"{verb} {who} ({signal_name(event.signal)}{named}): {because}",)


def _attempts(event: e.AnyEvent, state: State) -> tuple[str, ...]:  # noqa: PLR0912 - one arm each
    match event:
        case e.PlanMade():
            return _plan(event.plan, state)
        case e.CheckpointsShared():
            return (f"checkpoints: {why_text(event.why)}",)
        case e.CheckpointNotKept():
            what = words.short_path(event.path, state.cwd)
            return (
                f"no copy of {what} was kept, which is overwritten in place: {why_text(event.why)}",
            )
        case e.CheckpointRestored():
            what, copy = (words.short_path(each, state.cwd) for each in (event.path, event.copy))
            if event.problem is not None:
                return (f"{what} is torn; its kept copy was not put back: {clean(event.problem)}",)
            aside = words.last_part(event.aside or "")
            return (f"{what} was torn: put its kept copy {copy} there; the torn file is {aside}",)
        case e.CheckpointRejected():
            where = words.short_path(event.path, state.cwd)
            return (f"checkpoint passed over: {where}: {why_text(event.why)}",)
        case e.CheckpointChosen():
            where = words.short_path(event.path, state.cwd)
            return (
                f"checkpoint chosen: {where} ({step_words(event.step)}): {why_text(event.why)}",
            )
        case e.BackingOff():
            # The plan follows at once, and says why.
            return (f"waiting {words.span(event.delay_s)} first",)
        case e.GpuMemoryHeld():
            return (f"waiting for GPU memory: {why_text(event.why)}",)
        case e.GpuMemoryFree():
            return (f"the GPU memory is free, after {duration(event.waited_s)}",)
        case e.AttemptLaunching() if event.plan.attempt > 1:
            return (f"attempt {event.plan.attempt} starts {origin_words(event.plan)}",)
        case e.LaunchPostponed():
            return (f"it could not be started ({why_text(event.why)}); it is tried again",)
        case e.AttemptLaunched() if len(state.attempts) > 1:
            return (f"attempt {event.attempt or len(state.attempts)} runs, pid {event.pid}",)
        case e.FirstStep():
            # Polling sees a later step than the first one, also right after a resume.
            seen = f"first look after {duration(event.after_s)}"
            return (f"training is at step {words.number(event.step)} ({seen})",)
        case e.HookNotArmed():
            what = f"the hook of {clean(event.hook, 60)} is not armed"
            return (f"notice: {what}: {why_text(event.why)}; weaker signals are used instead",)
        case e.RankEnded():
            return (f"notice: {how_it_ended(recorded(event))}, and others of its job live on",)
        case e.RemedyTaken():
            word = "in effect" if event.took else "NOT in effect"
            return (f"setting {clean(event.remedy, 60)} is {word}: {why_text(event.why)}",)
        case e.ResumeVerified():
            if event.verdict == "verified":
                return (
                    f"resume verified at {step_words(event.first_step)}: {why_text(event.why)}",
                )
            expected, first = step_words(event.expected_step), step_words(event.first_step)
            where = f"first {first}, the checkpoint is at {expected}"
            result = event.verdict.replace("-", " ")
            return (f"resume {result} ({where}): {why_text(event.why)}",)
        case e.AttemptExited():
            attempt = state.attempt
            if attempt is None or attempt.code == 0:
                return ()
            at = f" at {step_words(event.step)}" if event.step is not None else ""
            return (f"attempt {attempt.attempt} has ended{at}: {exit_words(attempt)}",)
        case _:
            # Opening, closing and progress lines tell the rest.
            return ()


def _plan(plan: Plan, state: State) -> tuple[str, ...]:
    before = state.attempt
    known = {use.id for use in before.plan.remedies} if before is not None else set()
    lines = []
    if before is not None:
        lines.append(f"next: {why_text(plan.why)}")
    lines += [
        f"setting changed: {clean(use.id, 60)} ({use.kind}): {why_text(use.why)}"
        for use in plan.remedies
        if use.id not in known
    ]
    dropped = sorted(known - {use.id for use in plan.remedies})
    if dropped:
        lines.append(f"settings taken back: {words.listed([clean(name, 60) for name in dropped])}")
    return tuple(lines)
