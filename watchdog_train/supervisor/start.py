"""A run from its first line to its exit code: what `wtrain run` and `wtrain adopt` share."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from watchdog_train.config import dump_policy
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.registry import live_runs
from watchdog_train.store.run_directory import create, name_from_command
from watchdog_train.store.run_paths import AGENTS, RunDirectory, default_runs_dir, runs_in
from watchdog_train.supervisor.adopt import adopt_run
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.duplicates import (
    Twins,
    find_twins,
    refuse_twins,
    training_key,
)
from watchdog_train.supervisor.environment import keep_environment
from watchdog_train.supervisor.job_task import (
    environment_of,
    is_led,
    launcher_of,
    of_agent,
    own_task,
)
from watchdog_train.supervisor.resources import refuse_little_room
from watchdog_train.supervisor.setup import RunSession, link_of
from watchdog_train.system import current
from watchdog_train.whole_files import replace_whole


def start_run(
    policy: Policy,
    command: tuple[str, ...],
    *,
    options: tuple[str, ...] = (),
    on_launched: Callable[[RunSession], None] | None = None,
) -> RunSession:
    """Supervise a command until it is finished; the session knows the outcome.

    In the background if a caller waits for the launch; see RunSession. WtrainError: refused with
    exit code 78, as there is no place for the run, or it runs already.
    """
    refuse_little_room()
    cwd = os.getcwd()
    system = current()
    launcher = launcher_of(command, os.environ, cwd)
    task = own_task(os.environ, system, policy.job, launcher)
    environment = environment_of(task, os.environ)
    key = training_key(command, cwd, environment)
    live = live_runs(boot_id=system.boot_id())
    twins = Twins() if policy.recovery.duplicates == "ignore" else find_twins(key, live, system)
    refuse_twins(twins)
    if twins.unwatched:
        run = twins.unwatched[-1]
        # Whether it makes progress is judged as ever: a hang is dumped, killed and restarted.
        return adopt_run(
            run.directory,
            opening=f"wtrain: the same training lives already and nobody watches it ({run.run_id})"
            ": it is taken up with its own settings instead of started again; --duplicates ignore "
            "starts beside it",
            on_adopted=on_launched,
        )
    opening = None
    leads = task if is_led(task, policy.job) else None
    name = policy.name or name_from_command(command)
    runs_dir = default_runs_dir(policy.runs_dir)
    if leads is not None and leads.task:
        name = f"{name}-{leads.name_of(leads.task)}"
        runs_dir, policy = runs_dir / AGENTS, of_agent(policy)
        remove_succeeded(runs_dir, name)
    elif task is not None and leads is None:
        name = f"{name}-{task.name_of(task.task)}"  # a person identifies tasks by their runs' names
    elif task is None and policy.job.coordination is not None:
        opening = "wtrain: this is the only task of its job: there is nobody to meet"
    children = ChildTable(system)
    link = link_of(leads, children)
    directory = create(runs_dir, name, time.time())
    write_settings(directory, policy, os.environ, hint="choose another place with --runs-dir")
    session = RunSession(
        directory,
        policy,
        environment=environment,
        cwd=cwd,
        on_launched=on_launched,
        opening=opening,
        task=leads,
        children=children,
        link=link,
    )
    session.context.unled = task if leads is None else None
    session.begin(name=name, argv=command, options=options, launcher=launcher)
    session.run()
    return session


def remove_succeeded(runs_dir: Path, name: str) -> None:
    """Remove agents' directories of this name whose leaders have all of their data."""
    for run in runs_in(runs_dir):
        with suppress(WtrainError, OSError):
            ended = run.name == name and is_held(run.lock) is False
            ended = ended and not os.listdir(run.stalls)
            if ended and read_state(run).outcome == "succeeded":
                shutil.rmtree(run.path)


def write_settings(
    directory: RunDirectory, policy: Policy, environment: Mapping[str, str], *, hint: str
) -> None:
    """Keep the settings of a run with it; WtrainError, with `hint`, if a file cannot be written."""
    try:
        replace_whole(directory.config, dump_policy(policy).encode())
        keep_environment(directory, environment)
    except OSError as error:
        raise WtrainError(
            f"the run's settings cannot be written: {error.strerror}",
            context=str(directory.config),
            hint=hint,
            reference="run-directory-unwritable",
        ) from error
