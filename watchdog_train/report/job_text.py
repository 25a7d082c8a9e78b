"""A job of several tasks in words: its events, a line of status, its runs side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import hostname_of, machine_of
from watchdog_train.core.model import Value
from watchdog_train.report import words
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import clean, clock_time, ranks_text

Row = TypeVar("Row")


def led_by(state: State) -> str | None:
    """The job in which this run is an agent of the leader; None: it is no agent."""
    task = state.task
    return task.job if task is not None and task.task else None


def task_words(state: State) -> str:
    """Which task of which job, and its part there; empty for a run that is no task."""
    task = state.task
    if task is None:
        return ""
    how = "follows task 0" if task.task else "leads the others"
    return f"{clean(task.words, 120)}, {how}"


MachineState = Literal["leads", "heard", "silent", "lost", "not-come"]


class MachineNow(Value):
    """One machine of a job, as its leader knows it."""

    name: str
    hostname: str
    ranks: tuple[int, ...]
    state: MachineState
    since: float | None = None
    """Unix seconds of its last message."""

    @property
    def unknown(self) -> bool:
        """Whether its present state is unknown."""
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
        now: MachineState = "heard" if machine_of(host, state) is not None else "not-come"
        if not number:
            now = "leads"
        elif tree is not None and tree.lost:
            now = "lost"
        elif since is not None:
            now = "silent"
        hostname, here = clean(hostname_of(host, state), 64), ranks.get(host, ())
        found.append(MachineNow(name=name, hostname=hostname, ranks=here, state=now, since=since))
    return found


def machine_cells(machine: MachineNow, *, now: float | None) -> tuple[str, str, str, str]:
    """Name, host name, ranks, and its state."""
    words_of = {"silent": "not heard", "lost": "lost, not heard", "not-come": "not heard yet"}
    word = words_of.get(machine.state, machine.state)
    if machine.since is not None:
        word += f" since {clock_time(machine.since, now=now)}"
    on = ranks_text(machine.ranks) if machine.ranks else "no rank seen"
    return machine.name, machine.hostname, on, word


def job_object(state: State) -> dict[str, Any] | None:
    """The same for a program; None of a run that is no task of a job."""
    task = state.task
    if task is None:
        return None
    fields = msgspec.structs.asdict(task)
    return {"id": fields.pop("job"), **fields, "machines": machines_now(state)}


def guilty_words(state: State) -> tuple[str, ...]:
    """Machines to avoid in the next attempt of the job, each with the reason."""
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
