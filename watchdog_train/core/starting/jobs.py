"""Which task of which job this process is, from the variables that its starter has set. Pure.

The variables alone do not make it one of several tasks: a batch script of Slurm has SLURM_NTASKS
and SLURM_PROCID, and is alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from watchdog_train.core.model import Value

Source = Literal["wtrain", "torchrun", "openmpi", "hydra", "slurm", "torch", "kubernetes", "nodes"]
Kind = Literal["task", "node"]

SOURCE_WORDS: dict[Source, str] = {
    "wtrain": "job",
    "torchrun": "torchrun job",
    "openmpi": "Open MPI job",
    "hydra": "MPI job",
    "slurm": "Slurm step",
    "torch": "distributed job at",
    "kubernetes": "Kubernetes job",
    "nodes": "job",
}
MOST_TASKS = 4096
"""A number above this is a mistake, not a machine."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")

TASK_VARIABLES = (
    "WTRAIN_TASK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "RANK",
    "LOCAL_RANK",
    "WTRAIN_NODE",
)
"""Two processes that differ in one of these are two tasks, never the same training twice."""

_ADDRESS = re.compile(
    r"tcp://(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[^\s/:\[\]@?#]{1,253}))"
    r":(?P<port>\d{1,5})/?",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


class JobTask(Value):
    """One task of a job; each task has its own supervisor."""

    job: str
    """Equal for all tasks of the job, unique among the present jobs of this user."""
    source: Source
    task: int
    """Number in the complete job, from 0."""
    tasks: int
    here: int
    """Of these on this machine, this one included; 0: not known."""
    kind: Kind = "task"
    """node: the supervisor of the launcher of a complete node (`--nodes`)."""
    coordination: str | None = None
    """tcp://HOST:PORT where the first task listens; None: only tasks of one machine meet."""

    @property
    def met(self) -> int:
        """Tasks that meet and can be asked, this one included."""
        return self.here if self.coordination is None else self.tasks

    def name_of(self, number: int) -> str:
        return f"{self.kind}{number}"

    @property
    def words(self) -> str:
        """For a person: `task 2 of 4 of Slurm step 1234.0`."""
        named = self.job.partition(":")[2] or self.job
        return f"{self.kind} {self.task} of {self.tasks} of {SOURCE_WORDS[self.source]} {named}"


def find_task(
    environment: Mapping[str, str],
    *,
    mpi_starter: str | None = None,
    coordination: str | None = None,
) -> JobTask | None:
    """The task that this environment describes; None without others that it could meet.

    The innermost starter decides: an mpirun inside a Slurm step passes on the step's variables.
    `mpi_starter` identifies the process that starts the tasks of an MPI job, for those that do not
    name the job (MPICH, Intel MPI).
    """
    for find in (_explicit, _torchrun, _open_mpi, _hydra, _slurm, _torch):
        told = find(environment, mpi_starter)
        if told is None:
            continue
        source, job, task, tasks, here = told
        if job is None or task is None or tasks is None:
            return None
        here = here or 0
        if not (0 <= task < tasks <= MOST_TASKS and 0 <= here <= tasks):
            return None
        found = JobTask(
            job=job, source=source, task=task, tasks=tasks, here=here, coordination=coordination
        )
        return found if found.met > 1 else None
    return None


def is_part_of_more(environment: Mapping[str, str]) -> bool:
    """Whether this process seems to be one of several, here or on other machines.

    Then invisible ranks may work elsewhere. Without such a sign a missing rank is not born yet, or
    never will be.
    """
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "NNODES", "PET_NNODES"):
        if (number(environment, name) or 0) > 1:
            return True
    if environment.get("SLURM_STEP_ID"):
        sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")
        if any((number(environment, name) or 0) > 1 for name in sizes):
            return True
    address = environment.get("MASTER_ADDR", "")
    return bool(address) and address not in LOOPBACK


Told = tuple[Source, str | None, int | None, int | None, int | None]
"""Source, name of the job, this task's number, all tasks, and tasks on this machine."""


def _explicit(environment: Mapping[str, str], _starter: str | None) -> Told | None:
    """For a starter that wtrain does not know: WTRAIN_JOB, WTRAIN_TASK, WTRAIN_TASKS."""
    name = environment.get("WTRAIN_JOB")
    if not name:
        return None
    tasks = number(environment, "WTRAIN_TASKS")
    return "wtrain", f"job:{name}", number(environment, "WTRAIN_TASK"), tasks, tasks


def _torchrun(environment: Mapping[str, str], _starter: str | None) -> Told | None:
    """`torchrun ... wtrain run`: a supervisor for each rank."""
    run_id = environment.get("TORCHELASTIC_RUN_ID")
    if not run_id or "RANK" not in environment:
        return None
    # The agent's own restart makes it another job: its old ranks are gone.
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    where = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
    sizes = _numbers(environment, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return "torchrun", f"torchrun:{run_id}-{restart}-{where}", *sizes


def _open_mpi(environment: Mapping[str, str], starter: str | None) -> Told | None:
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    name = environment.get("PMIX_NAMESPACE") or starter
    sizes = (f"OMPI_COMM_WORLD_{each}" for each in ("RANK", "SIZE", "LOCAL_SIZE"))
    return "openmpi", f"mpi:{name}" if name else None, *_numbers(environment, *sizes)


def _hydra(environment: Mapping[str, str], starter: str | None) -> Told | None:
    """MPICH and its derivatives, Intel MPI: only the starter identifies the job."""
    if "PMI_SIZE" not in environment or "MPI_LOCALNRANKS" not in environment:
        return None
    sizes = _numbers(environment, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")
    return "hydra", f"mpi:{starter}" if starter else None, *sizes


def _slurm(environment: Mapping[str, str], _starter: str | None) -> Told | None:
    """A task of srun. The batch script has no SLURM_STEP_ID, and is one process."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    tasks = number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    nodes = number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    here = tasks if nodes == 1 else _on_this_node(environment)
    name = slurm_step(job, step, environment)
    return "slurm", name, number(environment, "SLURM_PROCID"), tasks, here


def slurm_step(job: str, step: str, environment: Mapping[str, str]) -> str:
    """The job name of this step: a requeued job keeps its number in Slurm."""
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return f"slurm:{job}.{step}" + (f"-{restarts}" if restarts not in ("", "0") else "")


def is_begun_again(task: JobTask | None, environment: Mapping[str, str]) -> bool:
    """Whether Slurm has requeued the job of this task: then it has ended all of it."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if task is None or task.source != "slurm" or not job or not step:
        return False
    now = int(number(environment, "SLURM_RESTART_COUNT") or 0)
    match = re.fullmatch(rf"slurm:{re.escape(job)}\.[^-]+(?:-(\d{{1,6}}))?", task.job)
    return match is not None and int(match[1] or 0) < now


def _on_this_node(environment: Mapping[str, str]) -> int | None:
    """The entry of this node in a list like `2(x3),1`."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    node = number(environment, "SLURM_NODEID")
    if not text or node is None:
        return None
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if match is None:
            return None
        times = int(match[2] or 1)
        if node < times:
            return int(match[1])
        node -= times
    return None


def _torch(environment: Mapping[str, str], _starter: str | None) -> Told | None:
    """Ranks started by hand: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as env:// reads them.

    The number on this machine is LOCAL_WORLD_SIZE, or known if the master's address is one that
    only this machine has.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    rank, tasks, here = _numbers(environment, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if here is None and address in LOOPBACK:
        here = tasks
    name = f"torch:{address}:{port}" if address and port else None
    return "torch", name, rank, tasks, here


def _numbers(
    environment: Mapping[str, str], *names: str
) -> tuple[int | None, int | None, int | None]:
    rank, tasks, here = (number(environment, name) for name in names)
    return rank, tasks, here


def number(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is set, if it is a number."""
    text = next((environment[name] for name in names if environment.get(name)), "").strip()
    return int(text) if text.isdecimal() and len(text) <= 9 else None


def address_of(coordination: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`.

    Raises:
        ValueError: another form; the message has the reason.
    """
    match = _ADDRESS.fullmatch(coordination)
    if match is None:
        raise ValueError("it is not tcp://HOST:PORT, with an IPv6 address in brackets")
    port = int(match["port"])
    if not 1024 <= port < 1 << 16:
        raise ValueError(f"port {port} is none of 1024 to 65535")
    return match["six"] or match["name"], port
