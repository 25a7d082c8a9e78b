"""Events as plain sentences: on the terminal when they happen, and in the report. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.detection.rank_gone import how_it_ended
from watchdog_train.core.events.telling import BEFORE_RESTART
from watchdog_train.core.fold.state import State, Tree
from watchdog_train.core.model import Plan, Why, signal_name
from watchdog_train.report import words
from watchdog_train.report.explanation_text import because, crash_words, sentences
from watchdog_train.report.facts import (
    exit_words,
    origin_words,
    role_counts,
    step_words,
)
from watchdog_train.report.notices import straggler_words
from watchdog_train.report.patience_text import pause_sentence
from watchdog_train.report.summary import prefixed
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, duration

KILL = 9
MAX_NAMED = 4
"""Processes, orphans, tasks and the like that are named one by one."""
REPEATED = (e.Signalling, e.AttemptExited, e.TreeGone)
"""Of a job of many machines the first speaks for all that follow; the log has each of them."""
CAPITALS = {"stall": "STALL", "crash": "CRASH", "manual": "DUMP"}


def narrate(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """Zero or more lines about an event; `state` is the state after it."""
    return prefixed(*told(event, state))


def told(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """The same without the beginning that tells them from the training's."""
    parts = (_silence, _evidence, _ending, _attempts, _household)
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
    """Whether a machine is where the event says that its own has come to."""
    match event:
        case e.Signalling():
            return tree.kill is not None and tree.kill.stage == event.stage
        case e.AttemptExited():
            return tree.ended and (tree.code, tree.signal) == (event.code, event.signal)
        case _:
            return tree.gone


def _silence(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What is said about a training that is quiet, uneven or in want of something.

    The status line and `wtrain status` show what is waited for.
    """
    match event:
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
        case e.Straggling():
            return (f"straggler: {straggler_words(event.straggler)}",)
        case e.Warned():
            return (warned_words(event),)
        case _:
            return ()


def warned_words(event: e.Warned) -> str:
    """What will go wrong, or that it will not any more."""
    if not event.over:
        return f"warning: {why_text(event.ahead.why)}"
    return {
        "disk": f"the disk of {clean(event.ahead.about, 400)} has room enough again",
        "memory": "memory is enough again",
        "gpu-shared": "nobody else is on the GPU any more",
        "unsaved": "a save has ended",
    }[event.ahead.kind]


def _evidence(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What is said about evidence and what it tells."""
    match event:
        case e.EvidenceCollecting() if not event.host:
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
            of_another = (  # whose machine ended later: it may only have lost its peer
                event.why == "crash" and state.attempt and state.attempt.end.host != event.host
            )
            if event.crash is not None and not of_another:
                head = f"{CAPITALS[event.why]} {clean(event.stall_id, 40)}"
                lines.append(f"{head}: {crash_words(event.crash)}")
            if event.host and len(state.trees) > MAX_NAMED:
                return tuple(lines)
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
    of = state.stall(event.stall_id)
    lines = sentences(event.explanation)
    if of is not None and of.crash is not None:  # that was the first line
        cause = because(event.explanation)
        lines = (cause,) if cause else ()
    if not event.tasks or not lines:
        return lines
    kind = state.task.kind if state.task is not None else "task"
    numbers = ", ".join(map(str, event.tasks[:MAX_NAMED]))
    return (f"from the evidence of {kind}s {numbers}: {lines[0]}", *lines[1:])


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
            denied = (one for one in event.sent if one.result == "denied")
            return tuple(
                f"not allowed to signal pid {one.pid} ({clean(one.role, 40)})" for one in denied
            )
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
            return (f"notice: {how_it_ended(event.end)}, and others of its job live on",)
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
            attempt, tree = state.attempt, state.tree(event.host)
            if attempt is None or tree is None or tree.code == 0:
                return ()
            at = f" at {step_words(event.step)}" if event.step is not None else ""
            return (f"attempt {attempt.attempt} has ended{at}: {exit_words(tree)}",)
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


def _household(event: e.AnyEvent, state: State) -> tuple[str, ...]:  # noqa: PLR0912 - one arm each
    """Other machines, copies of a run, who watches it, its log, its messages."""
    match event:
        case e.TaskJoined() if state.attempt is not None and not state.attempt.settled:
            how = "task 0 decides from now on" if event.task.task else "this one leads"
            return (f"its ranks train one world with those of the other tasks: {how}",)
        case e.MachineSilent():
            since = clock_time(event.since, None, now=event.t)
            return (f"not heard since {since}: what it does is unknown, and nothing is killed",)
        case e.MachineHeard() if event.silent_s:
            return (f"heard again after {duration(event.silent_s)}",)
        case e.MachineLost():
            return (f"{why_text(event.why)}: what runs there is unknown",)
        case e.PeerLost():
            return (f"{why_text(event.why)}: its run gets another one",)
        case e.OrphansFound():
            lines = [
                f"also running: pid {orphan.pid} ({clean(orphan.command, 120)}): "
                f"{why_text(orphan.why)}"
                for orphan in event.orphans[:MAX_NAMED]
            ]
            more = len(event.orphans) - MAX_NAMED
            pids = " ".join(str(orphan.pid) for orphan in event.orphans)
            return (
                *lines,
                *([f"and {more} more of them"] if more > 0 else []),
                f"to end them: kill {pids}",
            )
        case e.CommandsStarting(for_event=name):
            return ("running your commands before the restart",) if name == BEFORE_RESTART else ()
        case e.CommandsRan():
            return tuple(_failure(event, result) for result in event.results if not result.ok)
        case e.Notified(sent=False):
            why = why_text(event.why or Why("unknown"))
            return (f"nobody was told on {clean(event.channel, 60)}: {why}",)
        case e.Adopted():
            return (
                (
                    f"adopted: pid {event.pid} watches on in place of pid {event.previous_pid}: "
                    f"{why_text(event.why)}"
                ),
            )
        case e.Reopened():
            return (f"the run goes on: {why_text(event.why)}",)
        case e.SupervisorLeft():
            return (f"the supervisor leaves, training goes on: {why_text(event.why)}",)
        case e.LogBehind():
            where = f", kept in {clean(event.spill)}" if event.spill else ""
            return (
                f"the event log is {duration(event.behind_s)} behind{where}: {why_text(event.why)}",
            )
        case _:
            return ()


def _failure(event: e.CommandsRan, result: e.CommandResult) -> str:
    last = result.output.strip().splitlines()[-1:]
    said = f": {clean(last[0], 200)}" if last else ""
    what = f"command {result.number} for {clean(event.for_event, 60)}"
    return f"{what} failed: {why_text(result.why or Why('unknown'))}{said}"
