"""The same training twice: a second run of it is refused, or takes over one without a supervisor.

The same training has the same user, command and directory, and the same variables of sweeps, arrays
and tasks on a node. This module kills nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

from watchdog_train.core.model import ProcessRow, Value
from watchdog_train.core.starting.jobs import TASK_VARIABLES
from watchdog_train.errors import WtrainError
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.registry import LiveRun
from watchdog_train.system.protocol import ProcessSystem

JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "PBS_JOBID",
    "PBS_ARRAY_INDEX",
    "LSB_JOBID",
    "LSB_JOBINDEX",
    "SGE_TASK_ID",
    "WTRAIN_JOB",
    *TASK_VARIABLES,
)
"""Set for jobs, arrays and tasks of a job."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DISTINGUISHING = (*_DEVICES, *JOB_VARIABLES)


def training_key(command: tuple[str, ...], cwd: str, environment: Mapping[str, str]) -> str:
    """The same for the same training; a digest, so safe to store."""
    parts = [*command, "", cwd, *(f"{name}={environment.get(name)}" for name in DISTINGUISHING)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Twins(Value):
    supervised: tuple[LiveRun, ...] = ()
    unwatched: tuple[LiveRun, ...] = ()
    """The supervisor is dead, and a process of the run lives."""


def find_twins(key: str, live: Iterable[LiveRun], system: ProcessSystem) -> Twins:
    """Live runs of this training; one without a supervisor counts if a process of it lives."""
    found = [run for run in live if run.training_key == key]
    return Twins(
        supervised=tuple(run for run in found if run.supervised is not False),
        unwatched=tuple(run for run in found if run.supervised is False and _lives(run, system)),
    )


def _lives(run: LiveRun, system: ProcessSystem) -> bool:
    try:
        state = read_state(run.directory, strict=False)
    except WtrainError:
        return False  # a run with a damaged log cannot be adopted
    if state.finished:
        return False
    attempt = state.attempt
    left = {daemon.process for daemon in state.daemons if daemon.is_left}
    known = {member.identity for member in state.members} - left
    known |= {who for who in (attempt.root, attempt.keeper) if who} if attempt else set()
    return any(system.is_alive(who) for who in known)


def refuse_twins(twins: Twins, *, unwatched: bool = False) -> None:
    """Raise WtrainError beside a supervised run of this training, or (`unwatched`) an orphan."""
    if unwatched and twins.unwatched:
        run = twins.unwatched[-1]
        message = f"the same training lives already and nobody watches it: {run.run_id}"
        hint = f"wtrain adopt {run.run_id} goes on with it; wtrain stop {run.run_id} ends it"
    elif twins.supervised:
        run = twins.supervised[0]
        message = f"the same training is supervised already: {run.run_id} (pid {run.pid})"
        hint = (
            f"wtrain status {run.run_id}, wtrain attach {run.run_id} or "
            f"wtrain stop {run.run_id}; --duplicates ignore starts beside it"
        )
    else:
        return
    raise WtrainError(message, hint=hint, reference="run-duplicate")


def ancestors(rows: Mapping[int, ProcessRow]) -> list[int]:
    """This process and its ancestors, from below."""
    found, pid = list[int](), os.getpid()
    while pid in rows and pid not in found:
        found.append(pid)
        pid = rows[pid].ppid
    return found
