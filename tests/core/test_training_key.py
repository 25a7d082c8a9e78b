"""What makes two runs the same training, and what tells them apart: no task is a duplicate."""

from __future__ import annotations

import pytest

from watchdog_train.supervisor.duplicates import training_key

COMMAND = ("python", "train.py", "--lr", "3e-4")
OF_TWO_TASKS = {
    "srun": ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, {"SLURM_PROCID": "1"}),
    "a Slurm array": ({"SLURM_ARRAY_TASK_ID": "1"}, {"SLURM_ARRAY_TASK_ID": "2"}),
    "two Slurm jobs": ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8"}),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "1"}),
    "MPICH": ({"PMI_RANK": "0"}, {"PMI_RANK": "1"}),
    "PMIx": ({"PMIX_RANK": "0"}, {"PMIX_RANK": "1"}),
    "ranks started by hand": ({"RANK": "0"}, {"RANK": "1"}),
    "tasks named by the user": ({"WTRAIN_TASK": "0"}, {"WTRAIN_TASK": "1"}),
    "a sweep over GPUs": ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}),
    "a PBS array": ({"PBS_ARRAY_INDEX": "0"}, {"PBS_ARRAY_INDEX": "1"}),
    "an LSF array": ({"LSB_JOBINDEX": "1"}, {"LSB_JOBINDEX": "2"}),
    "a Grid Engine array": ({"SGE_TASK_ID": "1"}, {"SGE_TASK_ID": "2"}),
}  # fmt: skip


@pytest.mark.parametrize(("first", "change"), OF_TWO_TASKS.values(), ids=OF_TWO_TASKS)
def test_tasks_are_no_duplicates(first: dict[str, str], change: dict[str, str]) -> None:
    """The same command in the same place, but another task, array index, job or device."""
    second = {**first, **change}
    assert training_key(COMMAND, "/w", first) != training_key(COMMAND, "/w", second)


def test_other_arguments_or_another_directory_are_another_training() -> None:
    """A sweep over arguments or directories is not the same training again and again."""
    keys = {
        training_key(COMMAND, "/w", {}),
        training_key((*COMMAND[:-1], "1e-4"), "/w", {}),
        training_key(COMMAND, "/v", {}),
    }
    assert len(keys) == 3


def test_the_same_training_is_the_same() -> None:
    """Whatever else differs in the environment: a second shell is no second training."""
    one = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "PWD": "/w", "SSH_TTY": "/dev/pts/1"}
    other = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SSH_TTY": "/dev/pts/9"}
    assert training_key(COMMAND, "/w", one) == training_key(COMMAND, "/w", other)
