"""`wtrain restart` continues a run that has ended, `wtrain adopt` one whose supervisor is dead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from watchdog_train.cli.options import of_run
from watchdog_train.cli.policy_options import setting_option
from watchdog_train.cli.screen import echo

if TYPE_CHECKING:
    from watchdog_train.store.run_paths import RunDirectory
    from watchdog_train.supervisor.setup import RunSession


@click.command()
@click.option(
    "--with", "with_remedies", multiple=True, metavar="REMEDY", help="Apply it from now on."
)
@click.option(
    "--allow", multiple=True, metavar="REMEDY|KIND", help="Allow it from now on: an id or a kind."
)
@click.option(
    "--keep-budget",
    is_flag=True,
    help="Keep the count of --max-restarts, as for a requeued job.  [default: count from 0]",
)
@click.option(
    "--env",
    "changes",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Change a variable of the run's environment; NAME alone: as it is in this shell.",
)
@setting_option("job.coordination")
@setting_option("job.node_rank")
@click.option("-d", "--detach", is_flag=True, help="Return once launched; survives logout.")
@of_run
def restart(
    *,
    run_ref: str | None,
    with_remedies: tuple[str, ...],
    allow: tuple[str, ...],
    keep_budget: bool,
    changes: tuple[str, ...],
    coordination: str | None,
    node_rank: int | None,
    detach: bool,
    runs_dir: Path | None,
) -> None:
    """Continue RUN after its end, in the same run directory.

    A run that is alive is stopped first, with time to save. It keeps the directory, environment
    and settings that it was started with; --with, --allow and --env add to them. Secrets are not
    stored: they come from this shell, and so does the environment of a task of a job. For a run
    of several tasks or nodes, use the same line in each of them.
    """
    from watchdog_train.cli.reading import read_run
    from watchdog_train.cli.run import supervised
    from watchdog_train.cli.stop import stop_run
    from watchdog_train.core.policy import Policy, Recovery
    from watchdog_train.core.starting.jobs import is_begun_again
    from watchdog_train.remedies.catalogue import refuse_unknown
    from watchdog_train.report.words import listed
    from watchdog_train.supervisor.detach import refuse_to_detach
    from watchdog_train.supervisor.environment import environment_again
    from watchdog_train.supervisor.reopen import find_run, own_part, reopen_run, start_agent

    # Checked first, so that a misspelt word never stops a living run.
    refuse_unknown(Policy(recovery=Recovery(with_remedies=with_remedies, allow=allow)))
    if any(not change.partition("=")[0] for change in changes):
        raise click.UsageError("--env wants NAME or NAME=VALUE")
    if detach:
        refuse_to_detach()
    run = find_run(run_ref, runs_dir)
    if run_ref is None:
        echo(f"wtrain: restarting {run.run_id}", err=True)
    settings = {"job.coordination": coordination, "job.node_rank": node_rank}
    changed = {key: value for key, value in settings.items() if value is not None}
    run, task = own_part(run, read_run(run).state, changed)
    run.hold()
    state = read_run(run).state
    before = state.crew.task if state.crew is not None else None
    number = task.task if task is not None else 0
    if not state.finished and number == (before.task if before is not None else 0):
        stop_run(run, now=False, is_over=is_begun_again(before, os.environ))

    again = environment_again(run, os.environ, changes)
    if again.different:
        names = f"this shell differs in {listed(again.different)} (--env NAME takes it from here)"
        echo(f"wtrain: the environment is as the run had it; {names}", err=True)
    if again.missing:
        names = f"{listed(again.missing)} (they may be secrets; --env NAME=VALUE sets one)"
        echo(f"wtrain: not set here, and kept nowhere: {names}", err=True)

    def supervise(launched: Callable[[RunSession], None] | None) -> RunSession:
        if number:
            return start_agent(
                run,
                changed,
                environment=again.variables,
                on_launched=launched,
            )
        return reopen_run(
            run,
            task=task,
            changed=changed,
            with_remedies=with_remedies,
            allow=allow,
            environment=again.variables,
            fresh_budget=not keep_budget,
            on_launched=launched,
        )

    sys.exit(supervised(supervise, detach=detach)[0])


@click.command()
@of_run
def adopt(run_ref: str | None, runs_dir: Path | None) -> None:
    """Become the supervisor of RUN, whose training its keeper has kept alive."""
    from watchdog_train.store.run_directory import resolve_live

    sys.exit(adopt_here(resolve_live(run_ref, runs_dir)))


def adopt_here(directory: RunDirectory, stop_mode: Literal["soft", "now"] | None = None) -> int:
    """Supervise the run in this terminal to its end; returns its exit code."""
    from watchdog_train.supervisor.adopt import adopt_run

    session = adopt_run(directory, stop_mode=stop_mode)
    session.close_with_words()
    return session.exit_code
