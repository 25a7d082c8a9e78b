"""The same training twice: found among the live runs of this user, never among other processes.

Same training: user, command, directory, and the variables that tell sweeps, arrays and several
tasks on a node apart. Ending a duplicate goes through its own supervisor, so that it is saved,
dumped and recorded like any other stop.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from typing import Literal

from watchdog_train.core.jobs import TASK_VARIABLES
from watchdog_train.errors import WtrainError
from watchdog_train.store import registry
from watchdog_train.store import requests as request_files

DISTINGUISHING = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
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
"""Of devices, of jobs and arrays, and of the tasks of a job."""
KILL_WAIT_S = 90.0
LOOK_S = 0.2


def training_key(command: tuple[str, ...], cwd: str, environment: Mapping[str, str]) -> str:
    """The same for the same training, safe to store: a digest, not the words."""
    parts = [*command, "", cwd, *(f"{name}={environment.get(name)}" for name in DISTINGUISHING)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def handle_duplicates(key: str, policy: Literal["refuse", "kill", "ignore"]) -> tuple[str, ...]:
    """Refuse to run beside a live run of the same training, or end that one first.

    Returns:
        The ids of the runs that were ended.

    Raises:
        WtrainError: exit code 78: such a run lives, and the policy refuses or could not end it.
    """
    if policy == "ignore":
        return ()
    twins = [run for run in registry.live_runs() if run.training_key == key]
    if not twins:
        return ()
    if policy == "refuse":
        run_id = twins[0].run_id
        raise WtrainError(
            f"the same training is supervised already: {run_id} (pid {twins[0].pid})",
            hint=(
                f"wtrain status {run_id}, wtrain logs -f {run_id} or wtrain stop {run_id}; "
                "--duplicates ignore starts beside it"
            ),
            reference="run-duplicate",
        )
    for run in twins:
        request_files.post(run.directory, "stop_now", f"--duplicates kill of pid {os.getpid()}")
    deadline = time.monotonic() + KILL_WAIT_S
    names = {run.run_id for run in twins}
    while names & {run.run_id for run in registry.live_runs()}:
        if time.monotonic() > deadline:
            raise WtrainError(
                f"the duplicate run did not end within {KILL_WAIT_S:.0f} s: {', '.join(names)}",
                hint="wtrain status tells why; --duplicates ignore starts beside it",
                reference="run-duplicate",
            )
        time.sleep(LOOK_S)
    return tuple(sorted(names))
