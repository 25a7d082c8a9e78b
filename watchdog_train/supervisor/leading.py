"""Which task of a job a run is, and whether the first one leads the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from watchdog_train.core.fold.state import State
from watchdog_train.core.policy import Job, Metrics, Notify, Policy
from watchdog_train.core.starting.jobs import JobTask, address_of, find_task, is_part_of_more
from watchdog_train.core.starting.launchers import Launcher
from watchdog_train.core.starting.nodes import NodeError, find_node
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.duplicates import ancestors
from watchdog_train.supervisor.loop import Supervisor
from watchdog_train.system.protocol import ProcessSystem

MPI_STARTERS = ("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "prterun", "prted", "orted")
TORCH: Final = ("wtrain", "torchrun", "torch")
"""Who starts tasks under these names means one world; a step of Slurm or MPI may be a sweep."""


def own_task(
    environment: Mapping[str, str],
    system: ProcessSystem,
    settings: Job,
    launcher: Launcher | None,
) -> JobTask | None:
    """The task of a job that this new run is; None when it is none.

    Raises:
        WtrainError: which node this is cannot be told, or where the nodes meet.
    """
    if settings.coordination is not None:
        try:
            address_of(settings.coordination)
        except ValueError as error:
            raise WtrainError(
                f"the machines of the job cannot meet at {settings.coordination[:200]}: {error}",
                hint="--coordination tcp://HOST:PORT: an address of the first machine that all "
                "others reach, and a free port there",
                reference="coordination-unusable",
            ) from None
    starter = _mpi_starter(environment, system)
    task = find_task(environment, mpi_starter=starter, coordination=settings.coordination)
    try:
        return find_node(settings, environment, launcher, task)
    except NodeError as error:
        raise WtrainError(str(error), hint=error.hint, reference="node-unknown") from error


def environment_of(task: JobTask | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the number of this node, which tells two on one machine apart."""
    if task is None or task.kind != "node":
        return dict(environment)
    return {**environment, "WTRAIN_NODE": str(task.task)}


def _mpi_starter(environment: Mapping[str, str], system: ProcessSystem) -> str | None:
    """The nearest process above us that starts MPI tasks: for those, the job has no other name."""
    if not is_part_of_more(environment) or not {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"} & set(
        environment
    ):
        return None
    rows = system.all_processes()
    above = [rows[pid] for pid in ancestors(rows)]
    return next((f"{row.pid}-{row.start}" for row in above if row.name in MPI_STARTERS), None)


def of_agent(policy: Policy) -> Policy:
    """The settings of an agent: its leader tells the world."""
    return msgspec.structs.replace(policy, notify=Notify(), metrics=Metrics())


def is_led(task: JobTask | None, settings: Job) -> bool:
    """Whether the tasks of a job have one leader; those of a sweep have none."""
    if task is None or (task.coordination is None and task.here != task.tasks):
        return False
    here = task.source in TORCH and sys.platform != "win32"  # which has no link
    return here or task.coordination is not None or settings.nodes is not None


def led(context: Context, state: State, task: JobTask | None) -> Supervisor:
    """The supervisor of a run: of its own, of a leader, or of an agent."""
    if task is not None and context.link is not None:
        # Not at the top, as in all who meet: a run alone does without the link's modules.
        if task.task:
            from watchdog_train.supervisor.agent import Agent

            return Agent(context, state, context.link)
        from watchdog_train.supervisor.hands.remote import Machines

        context.machines = Machines(context, task, context.link)
    return Supervisor(context, state)
