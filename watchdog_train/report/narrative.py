"""Events as plain sentences: on the terminal when they happen, and in the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
"""How many processes, tasks or machines are named one by one."""
REPEATED = (e.Signalling, e.AttemptExited, e.TreeGone)
"""In a job of many machines only the first of these is shown; the log has each of them."""
CAPITALS = {"stall": "STALL", "crash": "CRASH", "manual": "DUMP"}


def narrate(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """Zero or more lines about an event; `state` is the state after it."""
    return prefixed(*told(event, state))


def told(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """The same without the prefix."""
    parts = (_silence, _evidence, _ending, _checkpoints, _attempts, _household)
    lines = tuple(line for part in parts for line in part(event, state))
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


def _silence(event: e.AnyEvent, state: State) -> Iterator[str]:
    """Idle, uneven or short of something; the status line shows what is waited for."""
    match event:
        case e.SuspicionEnded():
            if (pause := pause_sentence(event)) is not None:
                yield pause
        case e.StallDeclared():
            yield f"STALL {clean(event.stall_id, 40)}: {stall_words(event, state)}"
        case e.StallRecovered():
            yield f"stall {clean(event.stall_id, 40)} is over: {why_text(event.why)}"
        case e.WouldHaveKilled():
            known = any(stall.verdict == event.why for stall in state.stalls)
            why = "" if known else f": {why_text(event.why)}"
            yield f"stall {clean(event.stall_id, 40)} is reported only, nothing is killed{why}"
        case e.Noticed():
            yield f"notice: {why_text(event.why)}"
        case e.Straggling():
            yield f"straggler: {straggler_words(event.straggler)}"
        case e.Warned():
            yield warned_words(event)


def stall_words(event: e.StallDeclared, state: State) -> str:
    """The root and who waits for it, by the last stack sample; else the silence."""
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


def warned_words(event: e.Warned) -> str:
    """What will go wrong, or that it will not any more."""
    if not event.over:
        return f"warning: {why_text(event.ahead.why)}"
    return {
        "disk": f"the disk of {clean(event.ahead.about, 400)} has room enough again",
        "memory": "memory is enough again",
        "gpu-shared": "no other process is on the GPU any more",
        "unsaved": "a save has ended",
    }[event.ahead.kind]


def _evidence(event: e.AnyEvent, state: State) -> Iterator[str]:
    match event:
        case e.EvidenceCollecting() if not event.host:
            what = {
                "stall": "taking stacks of every process, before anything is killed",
                "crash": "taking what the crash left behind",
                "manual": "taking stacks of every process; nothing is killed",
            }[event.why]
            yield f"evidence {clean(event.stall_id, 40)}: {what}"
        case e.EvidenceMoved():
            where = words.short_path(event.dir, state.cwd)
            yield f"there is room again: evidence {clean(event.stall_id, 40)} is in {where}"
        case e.EvidenceCollected():
            where = words.short_path(event.dir, state.cwd)
            of_another = (  # its machine ended later: it may only have lost its peer
                event.why == "crash" and state.attempt and state.attempt.end.host != event.host
            )
            if event.crash is not None and not (of_another or _is_said(event, state)):
                head = f"{CAPITALS[event.why]} {clean(event.stall_id, 40)}"
                yield f"{head}: {crash_words(event.crash)}"
            if event.host and len(state.trees) > MAX_NAMED:
                return
            if event.why == "crash":
                yield f"evidence on disk: {duration(event.seconds)}, {where}"
            else:
                number = f"{event.captured} of {words.count(len(event.processes), 'process')}"
                yield f"evidence on disk: {number}, {duration(event.seconds)}, {where}"
                for missing in event.missing[:MAX_NAMED]:
                    yield f"  no stack of pid {missing.pid}: {clean(missing.why)}"
                if (more := len(event.missing) - MAX_NAMED) > 0:
                    yield f"  and {more} more without a stack"
            if event.problem:
                yield f"  evidence is incomplete: {clean(event.problem)}"
        case e.StallExplained():
            yield from _explained(event, state)


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


def _ending(event: e.AnyEvent, state: State) -> Iterator[str]:  # noqa: PLR0912 - one arm each
    match event:
        case e.StopRequested():
            how = (
                "killing now"
                if event.mode == "now"
                else "with time to save; a second request kills"
            )
            yield f"stop requested ({clean(event.by)}): {how}"
        case e.StopAsked():
            yield why_text(event.why)
        case e.SaveRequested():
            cannot = "this script cannot be asked to save"
            how = "asked training to save" if event.can_be_asked else cannot
            yield f"save requested ({clean(event.by)}): {how}"
        case e.RequestAnswered() | e.RequestRefused():
            yield _answer(event)
        case e.SaveProven():
            where = words.short_path(event.path, state.cwd)
            yield f"saved: {where} ({step_words(event.step)}), valid"
        case e.Signalling():
            yield from _signalling(event, state)
        case e.Signalled():
            for one in event.sent:
                if one.result == "denied":
                    yield f"not allowed to signal pid {one.pid} ({clean(one.role, 40)})"
        case e.SurvivedKill():
            pids = words.listed([str(pid) for pid in event.pids])
            yield f"still there after SIGKILL: pid {pids}: {why_text(event.why)}"
        case e.TreeGone():
            if state.attempt is None or state.attempt.code != 0:
                yield "every process of this attempt is gone"
            if event.left:
                pids = words.listed([str(daemon.process.pid) for daemon in event.left])
                yield f"left running, not part of the training: pid {pids}"
            if event.shared_memory_removed:
                left = words.count(len(event.shared_memory_removed), "shared-memory segment")
                yield f"removed {left} without an owner"


def _answer(event: e.RequestAnswered | e.RequestRefused) -> str:
    stops = event.request == "stop"
    if isinstance(event, e.RequestRefused):
        what = "save and stop" if stops else "save"
        return f"the ranks found no common step to {what}"
    what = "saves and stops" if stops else "saves"
    return f"the training has taken the request and {what} ({step_words(event.step)})"


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


def _checkpoints(event: e.AnyEvent, state: State) -> Iterator[str]:
    match event:
        case e.CheckpointsShared():
            yield f"checkpoints: {why_text(event.why)}"
        case e.CheckpointNotKept():
            what = words.short_path(event.path, state.cwd)
            why = why_text(event.why)
            yield f"no copy of {what} was kept, which is overwritten in place: {why}"
        case e.CheckpointRestored():
            what, copy = (words.short_path(each, state.cwd) for each in (event.path, event.copy))
            if event.problem is not None:
                yield f"{what} is torn; its kept copy was not put back: {clean(event.problem)}"
                return
            aside = words.last_part(event.aside or "")
            yield f"{what} was torn: put its kept copy {copy} there; the torn file is {aside}"
        case e.CheckpointRejected():
            where = words.short_path(event.path, state.cwd)
            yield f"checkpoint passed over: {where}: {why_text(event.why)}"
        case e.CheckpointChosen():
            where = words.short_path(event.path, state.cwd)
            yield f"checkpoint chosen: {where} ({step_words(event.step)}): {why_text(event.why)}"


def _attempts(event: e.AnyEvent, state: State) -> Iterator[str]:  # noqa: PLR0912 - one arm each
    match event:
        case e.PlanMade():
            yield from _plan(event.plan, state.attempt)
        case e.BackingOff():
            # The plan follows at once, and says why.
            yield f"waiting {duration(event.delay_s)} first"
        case e.GpuMemoryHeld():
            yield f"waiting for GPU memory: {why_text(event.why)}"
        case e.GpuMemoryFree():
            yield f"the GPU memory is free, after {duration(event.waited_s)}"
        case e.AttemptLaunching() if event.plan.attempt > 1:
            yield f"attempt {event.plan.attempt} starts {origin_words(event.plan)}"
        case e.LaunchPostponed():
            yield f"the start failed ({why_text(event.why)}); trying again"
        case e.AttemptLaunched() if len(state.attempts) > 1:
            yield f"attempt {event.attempt or len(state.attempts)} runs, pid {event.pid}"
        case e.FirstStep():
            # Polling sees a later step than the first one, also right after a resume.
            seen = f"first step seen after {duration(event.after_s)}"
            saves = "; Ctrl-C saves and stops" if event.can_save else ""
            yield f"{seen}, now at step {words.number(event.step)}{saves}"
            if event.resume is not None and len(state.attempts) == 1:
                yield f"Resume: {why_text(event.resume)}"
        case e.HookNotArmed():
            what = f"the hook of {clean(event.hook, 60)} is not armed"
            yield f"notice: {what}: {why_text(event.why)}; weaker signals are used instead"
        case e.RankEnded():
            yield f"notice: {how_it_ended(event.end)}; other ranks of its job are alive"
        case e.RemedyTaken():
            word = "in effect" if event.took else "NOT in effect"
            yield f"setting {clean(event.remedy, 60)} is {word}: {why_text(event.why)}"
        case e.ResumeVerified():
            first, result = step_words(event.first_step), event.verdict.replace("-", " ")
            where = f"(first {first}, the checkpoint is at {step_words(event.expected_step)})"
            where = f"at {first}" if event.verdict == "verified" else where
            yield f"resume {result} {where}: {why_text(event.why)}"
        case e.AttemptExited():
            attempt, tree = state.attempt, state.tree(event.host)
            if attempt is not None and tree is not None and tree.code != 0:
                at = f" at {step_words(event.step)}" if event.step is not None else ""
                how = exit_words(tree)
                yield f"attempt {attempt.attempt} has ended{at}: {how}"


def _plan(plan: Plan, before: AttemptRecord | None) -> Iterator[str]:
    known = {use.id for use in before.plan.remedies} if before is not None else set()
    if before is not None:
        yield f"next: {why_text(plan.why)}"
    for use in plan.remedies:
        if use.id not in known:
            yield f"setting changed: {clean(use.word, 60)} ({use.kind}): {why_text(use.why)}"
    if dropped := sorted(known - {use.id for use in plan.remedies}):
        yield f"settings taken back: {words.listed([clean(name, 60) for name in dropped])}"


def _household(event: e.AnyEvent, _state: State) -> Iterator[str]:
    """Other machines, the supervisor, its log, messages and commands."""
    match event:
        case e.MachineSilent():
            since = clock_time(event.since, now=event.t)
            yield f"not heard since {since}: its state is unknown, and nothing is killed"
        case e.MachineHeard() if event.silent_s:
            yield f"heard again after {duration(event.silent_s)}"
        case e.MachineLost():
            yield f"{why_text(event.why)}: its state is unknown"
        case e.CommandsStarting(for_event=name) if name == BEFORE_RESTART:
            yield "running your commands before the restart"
        case e.CommandsRan():
            for result in event.results:
                if not result.ok:
                    yield _failure(event, result)
        case e.Notified(sent=False):
            why = why_text(event.why or Why("unknown"))
            yield f"no message was sent to {clean(event.channel, 60)}: {why}"
        case e.Adopted():
            instead = f"in place of pid {event.previous_pid}"
            yield f"adopted: pid {event.pid} supervises {instead}: {why_text(event.why)}"
        case e.Reopened():
            yield f"the run continues: {why_text(event.why)}"
        case e.SupervisorLeft():
            yield f"the supervisor exits, the training continues: {why_text(event.why)}"
        case e.LogBehind():
            where = f", kept in {clean(event.spill)}" if event.spill else ""
            behind = duration(event.behind_s)
            yield f"the event log is {behind} behind{where}: {why_text(event.why)}"


def _failure(event: e.CommandsRan, result: e.CommandResult) -> str:
    last = result.output.strip().splitlines()[-1:]
    said = f": {clean(last[0], 200)}" if last else ""
    what = f"command {result.number} for {clean(event.for_event, 60)}"
    return f"{what} failed: {why_text(result.why or Why('unknown'))}{said}"
