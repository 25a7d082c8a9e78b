"""Which task of which job a process is: environments as their starters set them."""

from __future__ import annotations

import pytest

from watchdog_train.core.starting.jobs import JobTask, address_of, find_task, is_begun_again

# `srun -N1 -n4`, Slurm 22.05; what does not matter here is left out.
SRUN = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "0",
}
BATCH = {name: value for name, value in SRUN.items() if "STEP" not in name} | {"SLURM_PROCID": "0"}


def srun(**changes: str) -> dict[str, str]:
    """The variables of a step, with others in their places."""
    return SRUN | {f"SLURM_{name}": value for name, value in changes.items()}


# `mpirun -n 2` of Open MPI 5, measured.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-20111@1",
    "PMIX_RANK": "1",
}
# `mpirun -n 2` of MPICH 4, measured.
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

ALONE = {
    "nothing": {},
    "a batch script of Slurm": BATCH,
    "a step of one task": srun(STEP_NUM_TASKS="1", PROCID="0"),
    "one task a node": srun(STEP_NUM_NODES="4", STEP_TASKS_PER_NODE="1(x4)", NODEID="2"),
    "one MPI process": {
        **OPEN_MPI,
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    },
    "ranks started by hand on who knows how many machines": {**TORCH, "MASTER_ADDR": "node1"},
    "a rank without an address": {"RANK": "1", "WORLD_SIZE": "2"},
    "a number that is none": srun(PROCID="-1"),
    "a task outside the job": srun(PROCID="4"),
    "nonsense": srun(STEP_NUM_TASKS="9" * 30),
    "a job array": {"SLURM_JOB_ID": "1235", "SLURM_ARRAY_TASK_ID": "3"},
    "MPICH when nobody is known to have started it": HYDRA,
}


@pytest.mark.parametrize("environment", ALONE.values(), ids=ALONE)
def test_alone(environment: dict[str, str]) -> None:
    """What carries such variables without being one of several tasks here stays alone."""
    assert find_task(environment) is None


UNEVEN = srun(
    STEP_NUM_NODES="4", STEP_NUM_TASKS="9", STEP_TASKS_PER_NODE="2(x3),3", NODEID="3", PROCID="7"
)
AGAIN_BY_TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
SEVERAL = {
    "srun": (SRUN, ("slurm:1234.0", 2, 4, 4)),
    "srun on nodes with different numbers of tasks": (UNEVEN, ("slurm:1234.0", 7, 9, 3)),
    "a requeued job": (srun(RESTART_COUNT="1"), ("slurm:1234.0-1", 2, 4, 4)),
    "Open MPI": (OPEN_MPI, ("mpi:prterun-vm-20111@1", 1, 2, 2)),
    "Open MPI inside a Slurm step of one daemon a node": (
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", **OPEN_MPI},
        ("mpi:prterun-vm-20111@1", 1, 2, 2),
    ),
    "MPICH": (HYDRA, ("mpi:77-88", 1, 2, 2)),
    "srun with PMI2": ({**SRUN, "PMI_RANK": "2", "PMI_SIZE": "4"}, ("slurm:1234.0", 2, 4, 4)),
    "torchrun around us, in a Slurm step": (
        {**SRUN, **TORCH, "LOCAL_WORLD_SIZE": "2", **AGAIN_BY_TORCHRUN},
        ("torchrun:none-1-127.0.0.1:29500", 1, 2, 2),
    ),
    "ranks started by hand": (TORCH, ("torch:127.0.0.1:29500", 1, 2, 2)),
    "two of four ranks started by hand": (
        {**TORCH, "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "LOCAL_WORLD_SIZE": "2"},
        ("torch:node1:29500", 1, 4, 2),
    ),
    "variables of our own": (
        {"WTRAIN_JOB": "x/../y", "WTRAIN_TASK": "0", "WTRAIN_TASKS": "3", **SRUN},
        ("job:x/../y", 0, 3, 3),
    ),
}


@pytest.mark.parametrize(("environment", "wanted"), SEVERAL.values(), ids=SEVERAL)
def test_one_of_several(environment: dict[str, str], wanted: tuple[str, int, int, int]) -> None:
    """The job's name, the task's number, how many there are and how many here."""
    found = find_task(environment, mpi_starter="77-88")
    assert (found.job, found.task, found.tasks, found.here) == wanted


def test_words_for_a_person() -> None:
    """`ps` and the opening line call a task so."""
    found = find_task(SRUN)
    assert found.words == "task 2 of 4 of Slurm step 1234.0"


def of_slurm(name: str, source: str = "slurm") -> JobTask:
    return JobTask(job=name, source=source, task=1, tasks=2, here=1)  # type: ignore[arg-type]


AGAIN = {
    "the first start": (of_slurm("slurm:1234.0"), {"SLURM_RESTART_COUNT": "1"}, True),
    "a later one": (of_slurm("slurm:1234.0-1"), {"SLURM_RESTART_COUNT": "2"}, True),
    "another step of it": (of_slurm("slurm:1234.7"), {"SLURM_RESTART_COUNT": "1"}, True),
    "this one": (of_slurm("slurm:1234.0-1"), {"SLURM_RESTART_COUNT": "1"}, False),
    "not requeued": (of_slurm("slurm:1234.0"), {}, False),
    "another job": (of_slurm("slurm:123.0"), {"SLURM_RESTART_COUNT": "1"}, False),
    "a job of a longer number": (of_slurm("slurm:12345.0"), {"SLURM_RESTART_COUNT": "1"}, False),
    "no job of Slurm": (of_slurm("slurm:1234.0", "nodes"), {"SLURM_RESTART_COUNT": "1"}, False),
    "no job": (None, {"SLURM_RESTART_COUNT": "1"}, False),
}


@pytest.mark.parametrize(("task", "more", "wanted"), AGAIN.values(), ids=AGAIN)
def test_a_requeued_job_has_ended_before(
    task: JobTask | None, more: dict[str, str], wanted: bool
) -> None:
    """Only Slurm's own word for the same job counts: then nothing of the run can live anywhere."""
    assert is_begun_again(task, {**SRUN, **more}) is wanted
    assert not is_begun_again(task, {**BATCH, **more})
    assert not is_begun_again(task, more)


GOOD = {
    "tcp://node1:29400": ("node1", 29400),
    "TCP://node1.cluster.example:1024/": ("node1.cluster.example", 1024),
    "tcp://10.0.0.7:65535": ("10.0.0.7", 65535),
    "tcp://[fe80::1]:29400": ("fe80::1", 29400),
}
BAD = {
    "tcp://node1": "tcp://HOST:PORT",
    "tcp://:29400": "tcp://HOST:PORT",
    "tcp://fe80::1:29400": "tcp://HOST:PORT",
    "tcp://user@node1:29400": "tcp://HOST:PORT",
    "tcp://node1:29400/path": "tcp://HOST:PORT",
    "tcp://node1:29400\n": "tcp://HOST:PORT",
    "tcp://node1:80": "port 80 is none",
    "tcp://node1:70000": "port 70000 is none",
    "http://node1:29400": "tcp://HOST:PORT",
    "node1:29400": "tcp://HOST:PORT",
    "/shared/meet": "tcp://HOST:PORT",
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_understood(text: str) -> None:
    """Names, numbers, IPv6 in brackets."""
    assert address_of(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused(text: str) -> None:
    """A directory, too."""
    with pytest.raises(ValueError, match=BAD[text]):
        address_of(text)
