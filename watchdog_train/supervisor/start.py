"""A run from its first line to its exit code: what `wtrain run` and `wtrain adopt` share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from watchdog_train.config import dump_policy
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError
from watchdog_train.remedies.catalogue import Remedy
from watchdog_train.store.run_directory import (
    RunDirectory,
    create,
    default_runs_dir,
    name_from_command,
)
from watchdog_train.supervisor.display import Display
from watchdog_train.supervisor.duplicates import handle_duplicates, training_key
from watchdog_train.supervisor.job import join
from watchdog_train.supervisor.setup import RunSession
from watchdog_train.supervisor.terminal import terminal_now
from watchdog_train.system import current


def start_run(
    policy: Policy,
    command: tuple[str, ...],
    remedies: Mapping[str, Remedy],
    *,
    foreground: bool,
    on_launched: Callable[[RunSession], None] | None = None,
) -> RunSession:
    """Supervise a command until it is finished; the session knows the outcome.

    Raises:
        WtrainError: refused, with exit code 78: no place for the run, or it runs already.
    """
    cwd = os.getcwd()
    key = training_key(command, cwd, os.environ)
    handle_duplicates(key, policy.recovery.duplicates)
    job = join(os.environ, current())
    name = policy.name or name_from_command(command)
    if job is not None:  # so that a person can tell the tasks of a job by their runs' names
        name = f"{name}-task{job.task.task}"
    directory = create(default_runs_dir(policy.runs_dir), name, time.time())
    write_settings(directory, policy, hint="choose another place with --runs-dir")
    session = RunSession(
        directory,
        policy,
        remedies,
        terminal=terminal_now(foreground=foreground),
        display=Display(),
        foreground=foreground,
        environment=os.environ,
        cwd=cwd,
    )
    session.supervisor.on_launched = None if on_launched is None else lambda: on_launched(session)
    session.context.job = job
    session.begin(name=name, argv=command)
    session.run()
    return session


def write_settings(directory: RunDirectory, policy: Policy, *, hint: str) -> None:
    """Keep the settings in effect with the run; `hint` says what to do where that fails.

    Raises:
        WtrainError: the file cannot be written.
    """
    try:
        # URLs of notifications can be secrets; the directory may be copied with its files' modes.
        directory.config.touch(mode=0o600)
        directory.config.write_text(dump_policy(policy), encoding="utf-8")
    except OSError as error:
        raise WtrainError(
            f"the run's settings cannot be written: {error.strerror}",
            context=str(directory.config),
            hint=hint,
            reference="run-directory-unwritable",
        ) from error
