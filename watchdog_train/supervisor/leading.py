"""Which task of a job leads, and which carry out: the first one leads."""

from __future__ import annotations

from typing import Final

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Job, Metrics, Notify, Policy
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.supervisor.agent import Agent
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands.remote import Machines
from watchdog_train.supervisor.loop import Supervisor


def of_agent(policy: Policy) -> Policy:
    """The settings of an agent: its leader tells the world."""
    return msgspec.structs.replace(policy, notify=Notify(), metrics=Metrics())


TORCH: Final = ("wtrain", "torchrun", "torch")
"""Who starts tasks under these names means one world; a step of Slurm or MPI may be a sweep."""


def is_led(task: JobTask | None, settings: Job) -> bool:
    """Whether the tasks of a job have one leader from their start; those of a sweep have none."""
    if task is None or (task.coordination is None and task.here != task.tasks):
        return False
    if task.kind == "node" or settings.tasks == "together":
        return True
    named = task.coordination is not None or task.source in TORCH
    return settings.tasks == "auto" and named


def led(context: Context, state: State, task: JobTask | None) -> Supervisor:
    """The supervisor of a run: of its own, of a leader, or of an agent."""
    if task is not None and context.link is not None:
        if task.task:
            return Agent(context, state, context.link)
        context.machines = Machines(context, task, context.link)
    return Supervisor(context, state)
