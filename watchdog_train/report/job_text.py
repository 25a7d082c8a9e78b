"""A job of several tasks in words: its events, a line of status, its runs side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.guilty import guilty_nodes
from watchdog_train.report import words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean

Row = TypeVar("Row")


def sentences(event: e.AnyEvent, state: State) -> tuple[str, ...]:
    """What an event about another machine is worth saying, as plain sentences."""
    match event:
        case e.TaskJoined() if state.attempt is not None and not state.attempt.settled:
            how = "task 0 decides from now on" if event.task.task else "this one leads"
            return (f"its ranks train one world with those of the other tasks: {how}",)
        case e.MachineLost():
            return (f"{why_text(event.why)}: what runs there is unknown",)
        case e.PeerLost():
            return (f"{why_text(event.why)}: its run gets another one",)
        case _:
            return ()


def task_words(state: State) -> str:
    """Which task of what, and what it does for the others; empty for a run that is none."""
    task = state.task
    if task is None:
        return ""
    how = "carries out what task 0 decides" if task.task else "leads the others"
    return f"{clean(task.words, 120)}, {how}"


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
