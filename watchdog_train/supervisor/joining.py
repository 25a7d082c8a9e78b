"""Which task of a job a run is, and the place where it meets the others."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from watchdog_train.core.policy import Job
from watchdog_train.core.starting.jobs import JobTask, find_task, is_part_of_more
from watchdog_train.core.starting.launchers import Launcher
from watchdog_train.core.starting.nodes import NodeError, find_node
from watchdog_train.core.starting.place import is_store, store_place
from watchdog_train.errors import WtrainError
from watchdog_train.peers.directory import DirectoryRecords
from watchdog_train.peers.shared import SharedRecords
from watchdog_train.peers.store import LOAD_S, StoreRecords
from watchdog_train.store.places import private_runtime_directory
from watchdog_train.supervisor.command import pythons_of
from watchdog_train.supervisor.job import FIRST_LOOK_S, JobLink
from watchdog_train.system.protocol import ProcessSystem

MPI_STARTERS = ("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "prterun", "prted", "orted")
_MOST_ANCESTORS = 32
HOLD_S = 15.0
"""For the store to listen: the port of a supervisor that was killed just now is free soon."""


def link_to(
    task: JobTask | None,
    system: ProcessSystem,
    command: Sequence[str],
    *,
    is_new: bool = False,
) -> JobLink | None:
    """The link of a task; None of no task, or where no private place can be had.

    Args:
        task: which one.
        system: this machine.
        command: of the training, whose interpreter has torch.
        is_new: nothing of the run lives yet, so a place that cannot be used is refused at once.

    Raises:
        WtrainError: the place that all machines share cannot be used.
    """
    if task is None:
        return None
    if task.coordination is None:
        path = private_runtime_directory("jobs", task.folder, make=True)
        return None if path is None else JobLink(task, DirectoryRecords(path), system)
    records = _slow_records(task, task.coordination, command)
    shared = SharedRecords(records, task.task, task.tasks)
    store = records if isinstance(records, StoreRecords) else None
    # Who takes up a run must not believe that nobody is there.
    shared.read_now(FIRST_LOOK_S if store is None else LOAD_S)
    if is_new and store is not None:
        problem = _never_reached(store, shared, leads=task.task == 0)
        if problem is not None:
            shared.close()
            raise _no_store(task.coordination, problem)
    return JobLink(task, shared, system)


def _never_reached(store: StoreRecords, shared: SharedRecords, *, leads: bool) -> str | None:
    """Why no waiting helps; the first task's store has to listen, the others may wait for it."""
    until = time.monotonic() + HOLD_S
    while leads and store.problem and store.cannot is None and time.monotonic() < until:
        shared.read_now(until - time.monotonic())
    return store.cannot or (store.problem if leads else None)


def _slow_records(
    task: JobTask, coordination: str, command: Sequence[str]
) -> DirectoryRecords | StoreRecords:
    if not is_store(coordination):
        return DirectoryRecords(_shared_place(task, coordination))
    try:
        place = store_place(coordination)
    except ValueError as error:
        raise _no_store(coordination, str(error)) from None
    if sys.platform == "win32":
        raise _no_store(coordination, "on Windows there is only a directory")
    return StoreRecords(place, pythons_of(command), task.folder, task.task, task.tasks)


def _no_store(coordination: str, problem: str) -> WtrainError:
    return WtrainError(
        f"the supervisors of the job cannot meet at {coordination[:200]}: {problem}",
        hint="--coordination tcp://HOST:PORT: an address of the first node that every node "
        "reaches, and a port there that nobody uses, torchrun neither; or a directory",
        reference="coordination-unusable",
    )


def _shared_place(task: JobTask, coordination: str) -> Path:
    base = Path(coordination)
    try:
        # Not its parents: a file system that is not mounted here would be a folder of our own.
        base.mkdir(mode=0o700, exist_ok=True)
        problem = "" if base.is_dir() else "it is no directory"
    except OSError as error:
        problem = error.strerror or str(error)
    path = None
    if not problem:
        path = private_runtime_directory("jobs", task.folder, make=True, bases=(base,))
        problem = "a folder of this user alone (mode 0700) cannot be made or used in it"
    if path is None:
        raise WtrainError(
            f"the supervisors of the job cannot meet at {coordination}: {problem}",
            hint="--coordination DIR: a directory that every machine of the job sees and you own",
            reference="coordination-unusable",
        )
    return path


def own_task(
    environment: Mapping[str, str],
    system: ProcessSystem,
    settings: Job,
    launcher: Launcher | None,
    cwd: str,
) -> JobTask | None:
    """The task of a job that this new run is; None when it is none.

    Args:
        environment: of the supervisor.
        system: this machine.
        settings: of the job.
        launcher: what the command starts its ranks with.
        cwd: to which `settings.coordination` is relative.

    Raises:
        WtrainError: which node this is cannot be told.
    """
    coordination = settings.coordination
    if coordination is not None and not is_store(coordination):
        coordination = os.path.abspath(os.path.join(cwd, os.path.expanduser(coordination)))
        settings = msgspec.structs.replace(settings, coordination=coordination)
    try:
        task = find_node(settings, environment, launcher)
    except NodeError as error:
        raise WtrainError(str(error), hint=error.hint, reference="node-unknown") from error
    if task is None and settings.nodes is None:
        starter = _mpi_starter(environment, system)
        task = find_task(environment, mpi_starter=starter, coordination=coordination)
    return task


def join(task: JobTask | None, system: ProcessSystem, command: Sequence[str]) -> JobLink | None:
    """Meet the peers of a new run's task; None of none, and of one that has its supervisor.

    Args:
        task: of the new run.
        system: this machine.
        command: of its training.

    Raises:
        WtrainError: the place to meet cannot be used, or a task that was said to be this one has
            a supervisor already.
    """
    link = link_to(task, system, command, is_new=True)
    holder = link.holder() if link is not None else None
    if link is not None and holder is not None:
        link.close()
    if holder is not None and task is not None and task.coordination is not None:
        raise WtrainError(
            f"{task.words} has a supervisor already: pid {holder.pid} on {holder.host[:64]}",
            hint="each needs a number of its own, and each job a name (WTRAIN_JOB) or a "
            "directory of its own",
            reference="node-taken",
        )
    if link is None or holder is not None:
        return None
    link.ignore_the_dead()
    return link


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
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        row = rows.get(pid)
        if row is None:
            return None
        if row.name in MPI_STARTERS:
            return f"{row.pid}-{row.start}"
        pid = row.ppid
    return None
