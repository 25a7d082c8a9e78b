"""`wtrain slurm`: a batch script for a training, or the lines that a script of the site's needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from watchdog_train.cli.policy_options import (
    flags_again,
    policy_from,
    policy_options,
    wtrain_words,
)
from watchdog_train.errors import WtrainError

if TYPE_CHECKING:
    from watchdog_train.service.slurm import SlurmJob

MEET = "wtrain-meet"
_OURS = frozenset(("name", "nodes", "node_rank", "coordination"))
"""Flags of `run` that the script sets by itself."""


@click.command(
    short_help="Write a batch script of Slurm for a run.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--tasks-per-node",
    type=int,
    default=1,
    metavar="N",
    help="More than 1: srun starts each rank, and no torchrun does.",
)
@click.option("--gpus-per-node", metavar="N", help="As for sbatch.")
@click.option("--cpus-per-task", metavar="N", help="As for sbatch.")
@click.option("--time", metavar="TIME", help="As for sbatch: 1-12:00:00.")
@click.option("--partition", metavar="NAME", help="As for sbatch.")
@click.option("--account", metavar="NAME", help="As for sbatch.")
@click.option("--requeues", type=int, default=5, metavar="N", help="Requeues of the job at most.")
@click.option(
    "--warn-s",
    type=int,
    default=900,
    metavar="N",
    help="Seconds before the time limit, for a save and the end.",
)
@click.option(
    "--exclude-guilty",
    is_flag=True,
    help="A requeued job does not get the machines with which the fault may lie.",
)
@click.option("--explain", is_flag=True, help="Print only the lines to add to a script of yours.")
@policy_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def slurm(*, explain: bool, command: tuple[str, ...], **flags: Any) -> None:
    """Print an sbatch script that runs `wtrain run COMMAND` from this directory.

    Its flags are those of run; --nodes is how many nodes to ask for. Of COMMAND leave out where
    torchrun meets: the supervisors say it.
    """
    from watchdog_train.service.slurm import explained, script

    if not command:
        raise WtrainError(
            "there is no command to run",
            hint="wtrain slurm --nodes 2 -- torchrun --nproc-per-node=8 train.py",
            reference="command-missing",
        )
    job = _job(command, flags)
    click.echo(explained(job) if explain else script(job), nl=False)


def _job(command: tuple[str, ...], flags: dict[str, Any]) -> SlurmJob:
    from watchdog_train.core.starting.place import is_store
    from watchdog_train.service.slurm import SlurmJob
    from watchdog_train.store.run_directory import name_from_command

    policy = policy_from(flags).policy
    said = _nodes_of(command)
    nodes = policy.job.nodes or str(said or 1)
    if policy.job.node_rank is not None:
        raise WtrainError(
            "--node-rank belongs to one node, and the script is for all of them",
            hint="leave it out: each supervisor asks Slurm",
            reference="slurm-option",
        )
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) < 7):
        raise WtrainError(
            f"--nodes '{nodes[:40]}' is no number of nodes to ask for",
            hint="wtrain slurm --nodes 2 -- torchrun --nproc-per-node=8 train.py",
            reference="slurm-option",
        )
    if policy.job.coordination is not None and is_store(policy.job.coordination):
        raise WtrainError(
            "after a requeue to other nodes an address is the wrong one: it has to be a directory",
            hint="--coordination DIR, on a file system that all nodes share; or leave it out",
            reference="slurm-option",
        )
    if flags["exclude_guilty"] and flags["guilty_nodes"] is not None:
        raise WtrainError(
            "--exclude-guilty has a directory of its own for --guilty-nodes",
            hint="leave one of the two out",
            reference="slurm-option",
        )
    if said not in (None, int(nodes)):
        raise WtrainError(
            f"torchrun is told of {said} nodes, and --nodes asks for {nodes}",
            hint="leave --nnodes out of the command, or say the same",
            reference="slurm-option",
        )
    asked = ("gpus_per_node", "cpus_per_task", "time", "partition", "account")
    return SlurmJob(
        name=policy.name or name_from_command(command),
        wtrain=wtrain_words(),
        flags=flags_again({key: value for key, value in flags.items() if key not in _OURS}),
        command=command,
        cwd=os.getcwd(),
        coordination=os.path.abspath(policy.job.coordination or MEET),
        nodes=int(nodes),
        tasks_per_node=flags["tasks_per_node"],
        asked={key.replace("_", "-"): flags[key] for key in asked if flags[key] is not None},
        most_requeues=flags["requeues"],
        warn_s=flags["warn_s"],
        exclude_guilty=flags["exclude_guilty"],
    )


def _nodes_of(command: tuple[str, ...]) -> int | None:
    """How many nodes the command itself means, None where it does not say."""
    from watchdog_train.core.starting.command_line import find
    from watchdog_train.core.starting.launchers import describe

    found = find(command)
    launcher = describe(found, {}) if found is not None else None
    across = launcher.across if launcher is not None else None
    return launcher.nodes if launcher is not None and across and across.nodes_said else None
