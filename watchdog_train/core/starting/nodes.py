"""Which node of a job this supervisor leads: by its settings, its environment, torchrun's words.

Pure. What contradicts itself is refused: a node under a wrong number would wait for peers that
never come, or act as another node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from watchdog_train.core.policy import Job
from watchdog_train.core.starting.jobs import MOST_TASKS, JobTask, Source, number, slurm_step
from watchdog_train.core.starting.launchers import Across, Launcher

AUTO, SLURM = "auto", "slurm"


class NodeError(ValueError):
    """It is unknown or contradictory which node this is; `hint` names what would settle it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def find_node(
    settings: Job,
    environment: Mapping[str, str],
    launcher: Launcher | None,
    task: JobTask | None = None,
) -> JobTask | None:
    """The node of this supervisor; without `--nodes` the task, None for a job of one node.

    Raises:
        NodeError: unknown, or two sources contradict each other.
    """
    wanted = settings.nodes
    if wanted is None:
        if settings.node_rank is not None:
            raise NodeError("--node-rank says which of how many nodes?", "add --nodes N")
        return task
    if wanted == AUTO and launcher is None and task is not None and task.here > 1:
        if task.here != task.tasks and task.coordination is None:
            raise _no_place(f"{task.tasks} tasks")
        return task
    across = launcher.across if launcher is not None else None
    nodes = _how_many(wanted, environment, launcher)
    rank = _which(settings, nodes, environment, across)
    if launcher is not None and across is not None:
        _must_agree(nodes, rank, launcher.nodes, across)
    if nodes == 1:
        return None
    if settings.coordination is None:
        raise _no_place(f"{nodes} nodes")
    job, source = _name(environment, across)
    return JobTask(
        job=job,
        source=source,
        task=rank,
        tasks=nodes,
        here=1,
        kind="node",
        coordination=settings.coordination,
    )


def _no_place(those: str) -> NodeError:
    return NodeError(
        f"the supervisors of {those} need a place to meet",
        "--coordination tcp://HOST:PORT, HOST being the first node and PORT a free one there",
    )


def _how_many(wanted: str, environment: Mapping[str, str], launcher: Launcher | None) -> int:
    if wanted not in (AUTO, SLURM):
        if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= MOST_TASKS):
            raise NodeError(
                f"--nodes '{wanted[:40]}' is no number up to {MOST_TASKS}, nor auto or slurm",
                "--nodes 4 --node-rank 0",
            )
        return int(wanted)
    if _is_step(environment):
        return _nodes_of_step(environment)
    if wanted == SLURM:
        raise NodeError(
            "--nodes slurm, but this is no step of a Slurm job",
            "let srun start it, one task a node: srun --ntasks-per-node=1 wtrain run ...",
        )
    said = number(environment, "PET_NNODES") or (launcher.nodes if launcher is not None else None)
    if said is None or (said == 1 and _is_pod(environment)):
        raise NodeError(
            "--nodes auto, and neither Slurm, torchrun's --nnodes nor PET_NNODES says how many",
            "--nodes N --node-rank R",
        )
    return said


def _which(settings: Job, nodes: int, environment: Mapping[str, str], across: Across | None) -> int:
    rank = settings.node_rank
    if rank is None and _is_step(environment) and _nodes_of_step(environment) == nodes:
        rank = number(environment, "SLURM_NODEID")
    if rank is None and across is not None:
        rank = across.node_rank
    if rank is None:
        rank = number(environment, "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "NODE_RANK")
    if rank is None and nodes == 1:
        rank = 0
    if rank is None:
        raise NodeError(
            f"which of the {nodes} nodes this is says neither Slurm, torchrun's --node-rank, "
            "PET_NODE_RANK, JOB_COMPLETION_INDEX nor NODE_RANK",
            "--node-rank R, from 0",
        )
    if not 0 <= rank < nodes:
        raise NodeError(f"node {rank} is none of 0 to {nodes - 1}", "--node-rank counts from 0")
    return rank


def _must_agree(nodes: int, rank: int, told: int | None, across: Across) -> None:
    if across.nodes_said and told not in (None, nodes):
        raise NodeError(
            f"torchrun is told of {told} nodes, and --nodes means {nodes}",
            "the two have to be the same",
        )
    if across.node_rank is not None and across.node_rank != rank:
        raise NodeError(
            f"torchrun is told that this is node {across.node_rank}, and wtrain that it is {rank}",
            "the two have to be the same",
        )


def _name(environment: Mapping[str, str], across: Across | None) -> tuple[str, Source]:
    """Equal for all nodes of a job, and unique among the jobs of this user."""
    named = environment.get("WTRAIN_JOB")
    if named:
        return f"job:{named}", "wtrain"
    if _is_step(environment):
        job, step = environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"]
        return slurm_step(job, step, environment), "slurm"
    if _is_pod(environment):
        # The pods of an indexed job are called JOB-INDEX; a JobSet shows its own name if the
        # manifest passes it on.
        host = re.sub(r"-\d{1,6}\Z", "", environment.get("HOSTNAME", ""))
        again = environment.get("JOBSET_RESTART_ATTEMPT", "0")
        name = environment.get("JOBSET_NAME") or host
        return f"kubernetes:{name}" + (f"-{again}" if again not in ("", "0") else ""), "kubernetes"
    if across is None:
        return "nodes:", "nodes"
    place = across.endpoint or f"{across.master_addr}:{across.master_port}".strip(":")
    return f"nodes:{across.rdzv_id}@{place}".removesuffix("@"), "nodes"


def _is_step(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("SLURM_JOB_ID") and environment.get("SLURM_STEP_ID"))


def _is_pod(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("JOB_COMPLETION_INDEX"))


def _nodes_of_step(environment: Mapping[str, str]) -> int:
    nodes = number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    tasks = number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if not nodes or nodes > MOST_TASKS:
        raise NodeError("this Slurm step does not say how many nodes it has", "--nodes N")
    if tasks is not None and tasks != nodes:
        raise NodeError(
            f"the Slurm step has {tasks} tasks on {nodes} nodes: one supervisor leads a whole node",
            "srun --ntasks-per-node=1, or --nodes auto without a launcher: one supervisor a rank",
        )
    return nodes
