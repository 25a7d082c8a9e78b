"""Which task of a job a run is, and whether the first one leads the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from watchdog_train.core.policy import Job, Metrics, Notify, Policy
from watchdog_train.core.starting.command_line import Found, find, shell_file
from watchdog_train.core.starting.jobs import JobTask, address_of, find_task, is_part_of_more
from watchdog_train.core.starting.launchers import Launcher, describe
from watchdog_train.core.starting.nodes import NodeError, find_node
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.duplicates import ancestors
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import read_regular

MPI_STARTERS = ("hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "prterun", "prted", "orted")
TORCH: Final = ("wtrain", "torchrun", "torch")
"""Tasks that these start form one world; a step of Slurm or MPI may be a sweep."""


def own_task(
    environment: Mapping[str, str],
    system: ProcessSystem,
    settings: Job,
    launcher: Launcher | None,
) -> JobTask | None:
    """The task of a job that this new run is, or None; WtrainError: node or address is unknown."""
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
    """The environment with the number of this node, which separates two on one machine."""
    if task is None or task.kind != "node":
        return dict(environment)
    return {**environment, "WTRAIN_NODE": str(task.task)}


def _mpi_starter(environment: Mapping[str, str], system: ProcessSystem) -> str | None:
    """The nearest ancestor that starts MPI tasks, as `PID-START`: the job has no other name."""
    if not is_part_of_more(environment) or not {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"} & set(
        environment
    ):
        return None
    rows = system.all_processes()
    above = [rows[pid] for pid in ancestors(rows)]
    return next((f"{row.pid}-{row.start}" for row in above if row.name in MPI_STARTERS), None)


def of_agent(policy: Policy) -> Policy:
    """The settings of an agent: its leader reports for all."""
    return msgspec.structs.replace(policy, notify=Notify(), metrics=Metrics())


def is_led(task: JobTask | None, settings: Job) -> bool:
    """Whether the tasks of a job have one leader; in a sweep they have none."""
    if task is None or (task.coordination is None and task.here != task.tasks):
        return False
    here = task.source in TORCH and sys.platform != "win32"  # which has no link
    return here or task.coordination is not None or settings.nodes is not None


CONFIG_CAP_BYTES = 64 * 1024
SCRIPT_CAP_BYTES = 256 * 1024
MOST_BRACKETS = 200
"""A parser takes seconds for some thousand open ones."""


def launcher_of(argv: Sequence[str], environment: Mapping[str, str], cwd: str) -> Launcher | None:
    """What starts the ranks of this command; None if it and its shell script do not show it."""
    found = find(argv) or _in_script(argv, Path(cwd))
    if found is None:
        return None
    settings: dict[str, Any] | None = {}
    if found.family == "accelerate":
        settings = _accelerate_config(found, {**environment, **found.variables}, Path(cwd))
    return describe(found, environment, settings)


def _in_script(argv: Sequence[str], cwd: Path) -> Found | None:
    """What `bash run.sh` starts; ignored unless certain from its text alone."""
    named = shell_file(argv)
    text = _text(cwd / named, SCRIPT_CAP_BYTES) if named is not None else None
    return None if text is None else find(("sh", "-c", text.decode("utf-8", "replace")))


def _text(path: Path, cap_bytes: int) -> bytes | None:
    """A complete file; None if it is unreadable or too long."""
    with suppress(ValueError):  # a NUL in its name
        found = read_regular(path, cap_bytes + 1, follow=True)
        return found[0] if found is not None and found[1] <= cap_bytes else None
    return None


def _accelerate_config(
    found: Found, environment: Mapping[str, str], cwd: Path
) -> dict[str, Any] | None:
    """The defaults of `accelerate launch`; None if they cannot be read.

    Which file it is: accelerate 1.15, accelerate/commands/config/config_args.py; without
    --config_file, --cpu leaves the default file unread.
    """
    named = found.options.get("config-file")
    if named is not None:
        return _read(cwd / os.path.expanduser(named))
    cache = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME", os.path.join(cache, "huggingface"))
    path = cwd / os.path.expanduser(home) / "accelerate" / "default_config.yaml"
    if "cpu" in found.options or not path.is_file():
        return {}
    return _read(path)


def _read(path: Path) -> dict[str, Any] | None:
    import yaml  # most runs do not need it

    text = _text(path, CONFIG_CAP_BYTES)
    if text is None or text.count(b"[") + text.count(b"{") > MOST_BRACKETS:
        return None
    try:
        content = yaml.safe_load(text)  # such JSON is valid YAML
    except (ValueError, RecursionError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None
