"""A job of several tasks in words: its events, a line of status, its runs side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.guilty import guilty_nodes
from watchdog_train.report import words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, duration

Row = TypeVar("Row")


def sentences(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What an event about the peers is worth saying, as plain sentences."""
    attempt = state.attempt
    kind = state.task.kind if state.task is not None else "task"
    match event:
        case e.TasksCoupled() if event.together:
            return (f"this {kind} and its peers stand and fall together: {why_text(event.why)}",)
        case e.TasksCoupled():
            return (f"this {kind} stands alone: {why_text(event.why)}",)
        case e.PeerAnnounced() if attempt is not None and attempt.ended:
            # Otherwise the stall that follows says it.
            return (
                f"{kind} {event.task}: {why_text(event.why)}; this {kind} begins again with it",
            )
        case e.PeerRetracted():
            return (why_text(event.why),)
        case e.BarrierReached():
            return (f"evidence of all {kind}s is on disk (waited {duration(event.waited_s)})",)
        case e.BarrierMissed():
            return (f"{why_text(event.why)}: going on without it",)
        case e.PlanReceived():
            return (f"{kind} {event.proposer} has planned attempt {event.plan_attempt} for all",)
        case e.CheckpointUnseen():
            return (f"{clean(event.path)} is passed over: {why_text(event.why)}",)
        case e.TaskJoined() if attempt is not None:
            how = "task 0 decides from now on" if event.task.task else "this one leads"
            return (f"its ranks train one world with those of the other tasks: {how}",)
        case e.MachineLost():
            return (f"{why_text(event.why)}: what runs there is unknown",)
        case e.PeerLost():
            return (f"{why_text(event.why)}: its run gets another one",)
        case _:
            return ()


def task_words(state: State) -> str:
    """Which task of what, and whether it acts with the others; empty for a run that is none."""
    job, crew = state.job, state.crew
    if crew is not None:
        how = "carries out what task 0 decides" if crew.task.task else "leads the others"
        return f"{clean(crew.task.words, 120)}, {how}"
    if job is None:
        return ""
    how = "together with its peers" if job.together else "on its own so far"
    return f"{clean(job.task.words, 120)}, {how}"


def job_object(state: State) -> dict[str, Any] | None:
    """The same for a program; None of a run that is no task of a job."""
    task, crew = state.task, state.crew
    if task is None:
        return None
    return {
        "id": task.job,
        "source": task.source,
        "kind": task.kind,
        "task": task.task,
        "tasks": task.tasks,
        "here": task.here,
        "coordination": task.coordination,
        "together": crew is not None or (state.job is not None and state.job.together),
        "machines": {one.host: one.hostname for one in crew.machines} if crew is not None else {},
        "guilty_nodes": [{"host": one.host, "why": one.why} for one in guilty_nodes(state)],
    }


def guilty_words(state: State) -> tuple[str, ...]:
    """Machines to leave out when the job is begun again, each with the reason."""
    return tuple(f"{clean(one.host, 64)}: {why_text(one.why)}" for one in guilty_nodes(state))


def grouped(rows: Sequence[Row], state_of: Callable[[Row], State]) -> list[Row]:
    """Runs of one job side by side, by task, where the first of them stood."""
    jobs: dict[str, list[Row]] = {}
    for row in rows:
        task = state_of(row).task
        jobs.setdefault(task.job if task else f"\0{id(row)}", []).append(row)

    def number(row: Row) -> int:
        task = state_of(row).task
        return task.task if task is not None else 0

    return [row for group in jobs.values() for row in sorted(group, key=number)]


def task_cell(state: State) -> str:
    """The cell of `ps`: `2/4 slurm:1234.0`; "-" for a run that is no task of a job."""
    task = state.task
    if task is None:
        return "-"
    return f"{task.task}/{task.tasks} {words.cut(clean(task.job, 60), 24)}"
