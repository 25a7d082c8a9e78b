"""Events as plain sentences: on the terminal when they happen, and in the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.detection.rank_gone import how_it_ended
from watchdog_train.core.events.run import BEFORE_RESTART
from watchdog_train.core.fold.state import AttemptRecord, State, Tree
from watchdog_train.core.model import Explanation, Plan, Why, signal_name
from watchdog_train.core.model.explanation import End
from watchdog_train.report import words
from watchdog_train.report.explanation_text import (
    because,
    crash_words,
    sentences,
    victim_sentences,
    what_happened,
)
from watchdog_train.report.facts import exit_words, origin_words, role_counts, step_words
from watchdog_train.report.notices import straggler_words
from watchdog_train.report.patience_text import pause_sentence
from watchdog_train.report.summary import prefixed
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, duration

KILL = 9
MAX_NAMED = 4
REPEATED = (e.Signalling, e.AttemptExited, e.TreeGone)
"""In a job of many machines only the first of these is shown; the log has each of them."""
CAPITALS = {"stall": "STALL", "crash": "CRASH", "manual": "DUMP"}


def narrate(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """Zero or more lines about an event; `state` is the state after it."""
    return prefixed(*told(event, state))


def told(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """The lines of narrate() without the prefix."""
    lines = tuple(_lines(event, state))
    if not isinstance(event, e.TreeEvent) or isinstance(event, e.MachineLost):
        return lines
    of_all = ""
    if len(state.trees) > MAX_NAMED and isinstance(event, REPEATED):
        of_all = f" (the first of {len(state.trees):,} machines)"
        if sum(_has_come(event, tree) for tree in state.trees) > 1:
            lines, of_all = lines[1:] if isinstance(event, e.TreeGone) else (), ""
    name = f"{clean(event.host, 40)}: " if event.host else ""
    return tuple(f"{name}{line}{of_all}" for line in lines)


def _has_come(event: e.TreeEvent, tree: Tree) -> bool:
    """Whether the event is true of this machine as well."""
    match event:
        case e.Signalling():
            return tree.kill is not None and tree.kill.stage == event.stage
        case e.AttemptExited():
            return tree.ended and (tree.code, tree.signal) == (event.code, event.signal)
        case _:
            return tree.gone


SENTENCES: dict[type[e.Event], str] = {
    e.StallRecovered: "stall {stall_id} is over: {why}",
    e.Noticed: "notice: {why}",
    e.EvidenceMoved: "there is room again: evidence {stall_id} is in {dir}",
    e.StopAsked: "{why}",
    e.SurvivedKill: "still there after SIGKILL: pid {pids}: {why}",
    e.SaveProven: "saved: {path} ({step}), valid",
    e.CheckpointsShared: "checkpoints: {why}",
    e.CheckpointNotKept: "no copy of {path} was kept, which is overwritten in place: {why}",
    e.CheckpointRejected: "checkpoint passed over: {path}: {why}",
    e.CheckpointChosen: "checkpoint chosen: {path} ({step}): {why}",
    e.BackingOff: "waiting {delay_s} first",  # the plan follows at once, and says why
    e.GpuMemoryHeld: "waiting for GPU memory: {why}",
    e.GpuMemoryFree: "the GPU memory is free, after {waited_s}",
    e.LaunchPostponed: "the start failed ({why}); trying again",
    e.HookNotArmed: "notice: the hook of {hook} is not armed: {why}; weaker signals are used "
    "instead",
    e.RemedyTaken: "setting {remedy} is {took}: {why}",
    e.MachineLost: "{why}: its state is unknown",
    e.Adopted: "adopted: pid {pid} supervises in place of pid {previous_pid}: {why}",
    e.Reopened: "the run continues: {why}",
    e.SupervisorLeft: "the supervisor exits, the training continues: {why}",
}
"""Sentences of events that need nothing but their own fields."""


FIELDS: dict[str, Callable[[Any], str]] = {
    "why": why_text,
    "step": step_words,
    "delay_s": duration,
    "waited_s": duration,
    "took": lambda took: "in effect" if took else "NOT in effect",
    "pids": lambda pids: words.listed([str(pid) for pid in pids]),
}
"""How a field of an event is shown; others are cleaned text."""


def _lines(event: e.AnyEvent, state: State) -> Iterator[str]:
    if (sentence := SENTENCES.get(type(event))) is not None:
        shown = {}
        for name in event.__struct_fields__:
            value = getattr(event, name)
            if name in ("path", "dir"):
                shown[name] = words.short_path(value, state.cwd)
            else:
                shown[name] = FIELDS[name](value) if name in FIELDS else clean(str(value), 60)
        yield sentence.format(**shown)
        return
    yield from _stalls(event, state)
    yield from _ending(event, state)
    yield from _attempts(event, state)


def stall_words(event: e.StallDeclared, state: State) -> str:
    """The root and its victims, by the last stack sample; else the silence."""
    record = state.stall(event.stall_id)
    found = record.suspected if record is not None else None
    if found is None or (found.root is None and not found.knot):
        return why_text(event.why, brief=True)
    return " ".join(_answer_first(found, event.age_s))


def _answer_first(found: Explanation, age_s: float) -> tuple[str, ...]:
    head = found.through or found.root
    if head is not None:
        head = msgspec.structs.replace(head, since_s=age_s)
        found = msgspec.structs.replace(found, root=head, through=None)
    return what_happened(found), *victim_sentences(found)[:1]


def _warned(event: e.Warned) -> str:
    if not event.over:
        return f"warning: {why_text(event.ahead.why)}"
    return {
        "disk": f"the disk of {clean(event.ahead.about, 400)} has room enough again",
        "memory": "memory is enough again",
        "gpu-shared": "no other process is on the GPU any more",
        "unsaved": "a save has ended",
    }[event.ahead.kind]


def _stalls(event: e.AnyEvent, state: State) -> Iterator[str]:
    """A silence, and its evidence; the status line shows what is waited for."""
    match event:
        case e.SuspicionEnded():
            if (pause := pause_sentence(event)) is not None:
                yield pause
        case e.StallDeclared():
            yield f"STALL {clean(event.stall_id, 40)}: {stall_words(event, state)}"
        case e.WouldHaveKilled():
            known = any(stall.verdict == event.why for stall in state.stalls)
            why = "" if known else f": {why_text(event.why)}"
            yield f"stall {clean(event.stall_id, 40)} is reported only, nothing is killed{why}"
        case e.Straggling():
            yield f"straggler: {straggler_words(event.straggler)}"
        case e.Warned():
            yield _warned(event)
        case e.EvidenceCollecting() if not event.host:
            yield f"evidence {clean(event.stall_id, 40)}: {TAKING[event.why]}"
        case e.EvidenceCollected():
            yield from _collected(event, state)
        case e.StallExplained():
            yield from _explained(event, state)


TAKING = {
    "stall": "taking stacks of every process, before anything is killed",
    "crash": "taking what the crash left behind",
    "manual": "taking stacks of every process; nothing is killed",
}


def _collected(event: e.EvidenceCollected, state: State) -> Iterator[str]:
    of_another = (  # its machine ended later: it may only have lost its peer
        event.why == "crash" and state.attempt and state.attempt.end.host != event.host
    )
    if event.crash is not None and not (of_another or _is_said(event, state)):
        head = f"{CAPITALS[event.why]} {clean(event.stall_id, 40)}"
        yield f"{head}: {crash_words(event.crash)}"
    if event.host and len(state.trees) > MAX_NAMED:
        return
    number, missing = "", event.missing if event.why != "crash" else ()
    if event.why != "crash":
        number = f"{event.captured} of {words.count(len(event.processes), 'process')}, "
    where = words.short_path(event.dir, state.cwd)
    yield f"evidence on disk: {number}{duration(event.seconds)}, {where}"
    for one in missing[:MAX_NAMED]:
        yield f"  no stack of pid {one.pid}: {clean(one.why)}"
    if len(missing) > MAX_NAMED:
        yield f"  and {len(missing) - MAX_NAMED} more without a stack"
    if event.problem:
        yield f"  evidence is incomplete: {clean(event.problem)}"


def _is_said(event: e.EvidenceCollected, state: State) -> bool:
    """Whether the line of the stall or of its explanation names the exception."""
    of, crash = state.stall(event.stall_id), event.crash
    root = of.suspected.root if of is not None and of.suspected is not None else None
    named = root is not None and isinstance(root.doing, End) and root.doing.raised is not None
    return event.why == "stall" and crash is not None and (named or crash.in_thread)


def _explained(event: e.StallExplained, state: State) -> Sequence[str]:
    of = state.stall(event.stall_id)
    lines = sentences(event.explanation)
    if of is not None and of.crash is not None and not of.crash.in_thread:  # the first line
        cause = because(event.explanation)
        lines = (cause,) if cause else ()
    elif of is not None and of.suspected is not None and not event.tasks:
        age_s = of.age_s or 0.0
        said, now = _answer_first(of.suspected, age_s), _answer_first(event.explanation, age_s)
        if said[0] == now[0]:  # a repetition of the first line of the stall
            lines = tuple(line for line in lines[1:] if line not in said)
    if not event.tasks or not lines:
        return lines
    kind = state.task.kind if state.task is not None else "task"
    numbers = ", ".join(map(str, event.tasks[:MAX_NAMED]))
    return (f"from the evidence of {kind}s {numbers}: {lines[0]}", *lines[1:])


def _ending(event: e.AnyEvent, state: State) -> Iterator[str]:
    match event:
        case e.StopRequested():
            soft = "with time to save; a second request kills"
            how = "killing now" if event.mode == "now" else soft
            yield f"stop requested ({clean(event.by)}): {how}"
        case e.SaveRequested():
            cannot = "this script cannot be asked to save"
            how = "asked training to save" if event.can_be_asked else cannot
            yield f"save requested ({clean(event.by)}): {how}"
        case e.RequestAnswered():
            what = "saves and stops" if event.request == "stop" else "saves"
            yield f"the training has taken the request and {what} ({step_words(event.step)})"
        case e.RequestRefused():
            what = "save and stop" if event.request == "stop" else "save"
            yield f"the ranks found no common step to {what}"
        case e.Signalling():
            yield from _signalling(event, state)
        case e.Signalled():
            for one in event.sent:
                if one.result == "denied":
                    yield f"not allowed to signal pid {one.pid} ({clean(one.role, 40)})"
        case e.TreeGone():
            if state.attempt is None or state.attempt.code != 0:
                yield "every process of this attempt is gone"
            if event.left:
                pids = words.listed([str(daemon.process.pid) for daemon in event.left])
                yield f"left running, not part of the training: pid {pids}"
            if event.shared_memory_removed:
                left = words.count(len(event.shared_memory_removed), "shared-memory segment")
                yield f"removed {left} without an owner"


def _signalling(event: e.Signalling, state: State) -> Iterator[str]:
    ends_keeper = event.stage == "keeper" and event.signal != KILL
    if not event.targets or event.signal == 0 or ends_keeper:
        return
    who = role_counts(event.targets, state.members)
    if event.stage == "freeze":
        yield f"stopping {who} with SIGSTOP, so that they start no processes during the kill"
        return
    verb = "killing" if event.signal == KILL else "ending"
    named = ""
    if len(event.targets) <= MAX_NAMED:
        named = ", pid " + ", ".join(str(target.pid) for target in event.targets)
    stall = state.last_stall
    because = why_text(event.why)
    if stall is not None and event.why == stall.verdict:
        because = f"stall {clean(stall.id, 40)}"
    yield f"{verb} {who} ({signal_name(event.signal)}{named}): {because}"


def _attempts(event: e.AnyEvent, state: State) -> Iterator[str]:  # noqa: PLR0912, PLR0915 - arms
    match event:
        case e.CheckpointRestored():
            what, copy = (words.short_path(each, state.cwd) for each in (event.path, event.copy))
            if event.problem is not None:
                yield f"{what} is torn; its kept copy was not put back: {clean(event.problem)}"
                return
            aside = words.last_part(event.aside or "")
            yield f"{what} was torn: put its kept copy {copy} there; the torn file is {aside}"
        case e.PlanMade():
            yield from _plan(event.plan, state.attempt)
        case e.AttemptLaunching() if event.plan.attempt > 1:
            yield f"attempt {event.plan.attempt} starts {origin_words(event.plan)}"
        case e.AttemptLaunched() if len(state.attempts) > 1:
            yield f"attempt {event.attempt or len(state.attempts)} runs, pid {event.pid}"
        case e.FirstStep():
            # Polling sees a later step than the first one, also right after a resume.
            seen = f"first step seen after {duration(event.after_s)}"
            saves = "; Ctrl-C saves and stops" if event.can_save else ""
            yield f"{seen}, now at step {words.number(event.step)}{saves}"
            if event.resume is not None and len(state.attempts) == 1:
                yield f"Resume: {why_text(event.resume)}"
        case e.RankEnded():
            yield f"notice: {how_it_ended(event.end)}; other ranks of its job are alive"
        case e.ResumeVerified():
            first, expected = step_words(event.first_step), step_words(event.expected_step)
            where = f"(first {first}, the checkpoint is at {expected})"
            where = f"at {first}" if event.verdict == "verified" else where
            yield f"resume {event.verdict.replace('-', ' ')} {where}: {why_text(event.why)}"
        case e.AttemptExited():
            attempt, tree = state.attempt, state.tree(event.host)
            if attempt is not None and tree is not None and tree.code != 0:
                at = f" at {step_words(event.step)}" if event.step is not None else ""
                yield f"attempt {attempt.attempt} has ended{at}: {exit_words(tree)}"
        case e.MachineSilent():
            since = clock_time(event.since, now=event.t)
            yield f"not heard since {since}: its state is unknown, and nothing is killed"
        case e.MachineHeard() if event.silent_s:
            yield f"heard again after {duration(event.silent_s)}"
        case e.CommandsStarting(for_event=name) if name == BEFORE_RESTART:
            yield "running your commands before the restart"
        case e.CommandsRan():
            for result in event.results:
                if not result.ok:
                    last = result.output.strip().splitlines()[-1:]
                    said = f": {clean(last[0], 200)}" if last else ""
                    what = f"command {result.number} for {clean(event.for_event, 60)}"
                    yield f"{what} failed: {why_text(result.why or Why('unknown'))}{said}"
        case e.Notified(sent=False):
            why = why_text(event.why or Why("unknown"))
            yield f"no message was sent to {clean(event.channel, 60)}: {why}"
        case e.LogBehind():
            where = f", kept in {clean(event.spill)}" if event.spill else ""
            behind = duration(event.behind_s)
            yield f"the event log is {behind} behind{where}: {why_text(event.why)}"


def _plan(plan: Plan, before: AttemptRecord | None) -> Iterator[str]:
    known = {use.id for use in before.plan.remedies} if before is not None else set()
    if before is not None:
        yield f"next: {why_text(plan.why)}"
    for use in plan.remedies:
        if use.id not in known:
            yield f"setting changed: {clean(use.word, 60)} ({use.kind}): {why_text(use.why)}"
    if dropped := sorted(known - {use.id for use in plan.remedies}):
        yield f"settings taken back: {words.listed([clean(name, 60) for name in dropped])}"
