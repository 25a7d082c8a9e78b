"""A job of several tasks in words: its events, a line of status, its runs side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any, Literal, TypeVar

from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import hostname_of, machine_of
from watchdog_train.core.model import Value
from watchdog_train.report import words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, ranks_text

Row = TypeVar("Row")


def led_by(state: State) -> str | None:
    """The job for whose leader this run does what one machine has to do; None: for nobody."""
    task = state.task
    return task.job if task is not None and task.task else None


def task_words(state: State) -> str:
    """Which task of what, and what it does for the others; empty for a run that is none."""
    task = state.task
    if task is None:
        return ""
    how = "carries out what task 0 decides" if task.task else "leads the others"
    return f"{clean(task.words, 120)}, {how}"


class MachineNow(Value):
    """One machine of a job, as its leader knows it."""

    name: str
    hostname: str
    ranks: tuple[int, ...]
    state: Literal["leads", "heard", "silent", "lost", "not-come"]
    since: float | None = None
    """Unix seconds: when it was heard last."""

    @property
    def unknown(self) -> bool:
        """What it does."""
        return self.state not in ("leads", "heard")


def machines_now(state: State) -> list[MachineNow]:
    """Every machine of a job that this run leads."""
    crew = state.crew
    if crew is None or crew.task.task:
        return []
    ranks, silent = dict(crew.ranks), dict(crew.silent)
    found = []
    for number in range(crew.task.tasks):
        name = crew.task.name_of(number)
        host = name if number else ""
        tree, since = state.tree(host), silent.get(host)
        word: Literal["leads", "heard", "silent", "lost", "not-come"]
        if not number:
            word = "leads"
        elif tree is not None and tree.lost:
            word = "lost"
        elif since is not None:
            word = "silent"
        else:
            word = "heard" if machine_of(host, state) is not None else "not-come"
        each = MachineNow(
            name=name,
            hostname=clean(hostname_of(host, state), 64),
            ranks=ranks.get(host, ()),
            state=word,
            since=since,
        )
        found.append(each)
    return found


def machine_cells(
    machine: MachineNow, *, zone: tzinfo | None, now: float | None
) -> tuple[str, str, str, str]:
    """Name, host name, ranks, and whether it is heard."""
    words_of = {"silent": "not heard", "lost": "lost, not heard", "not-come": "not heard yet"}
    word = words_of.get(machine.state, machine.state)
    if machine.since is not None:
        word += f" since {clock_time(machine.since, zone, now=now)}"
    on = ranks_text(machine.ranks) if machine.ranks else "no rank seen"
    return machine.name, machine.hostname, on, word


def job_object(state: State) -> dict[str, Any] | None:
    """The same for a program; None of a run that is no task of a job."""
    task = state.task
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
        "machines": machines_now(state),
    }


def guilty_words(state: State) -> tuple[str, ...]:
    """Machines to leave out when the job is begun again, each with the reason."""
    named = state.guilty if state.finished else ()
    return tuple(f"{clean(one.host, 64)}: {why_text(one.why)}" for one in named)


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
