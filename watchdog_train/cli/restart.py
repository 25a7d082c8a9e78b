"""`wtrain restart`: let a run that has ended go on from its newest whole checkpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchdog_train.cli.options import run_argument, runs_dir_option

if TYPE_CHECKING:
    from watchdog_train.supervisor.detach import Reporter
    from watchdog_train.supervisor.setup import RunSession


@click.command(short_help="Let a run that has ended go on.")
@run_argument
@click.option(
    "--with", "with_remedies", multiple=True, metavar="REMEDY", help="Apply it from now on."
)
@click.option(
    "--allow", multiple=True, metavar="REMEDY|KIND", help="Allow it from now on: an id or a kind."
)
@click.option(
    "--keep-budget",
    is_flag=True,
    help="Count --max-restarts on, as for a job that was requeued; else it is counted anew.",
)
@click.option("-d", "--detach", is_flag=True, help="Return once launched; survives logout.")
@runs_dir_option
def restart(
    *,
    run_ref: str | None,
    with_remedies: tuple[str, ...],
    allow: tuple[str, ...],
    keep_budget: bool,
    detach: bool,
    runs_dir: Path | None,
) -> None:
    """Let RUN go on after its end, in the same run directory.

    A run that lives is stopped first, with time to save. What it was started with stays in
    effect; --with and --allow add to it. The environment is that of this shell.
    """
    from watchdog_train.cli.reading import read_run
    from watchdog_train.cli.stop import stop_run
    from watchdog_train.core.policy import Policy, Recovery
    from watchdog_train.core.starting.jobs import is_begun_again
    from watchdog_train.remedies.catalogue import available, refuse_unknown
    from watchdog_train.store.resolve import resolve
    from watchdog_train.supervisor.detach import Report, in_background
    from watchdog_train.supervisor.reopen import reopen_run

    # Before a run that lives is stopped for a word that was misspelt.
    refuse_unknown(Policy(recovery=Recovery(with_remedies=with_remedies, allow=allow)))
    run = resolve(run_ref, runs_dir)
    run.hold()
    if run_ref is None:
        click.echo(f"wtrain: restarting {run.run_id}", err=True)
    state = read_run(run).state
    if not state.finished:
        task = state.job.task if state.job is not None else None
        stop_run(run, now=False, is_over=is_begun_again(task, os.environ))

    def supervise(report: Reporter | None) -> int:
        def launched(_session: RunSession) -> None:
            if report is not None:
                words = f"{run.run_id}\n{run.path}\nwtrain status {run.run_id} | wtrain logs -f"
                report(Report(code=0, words=words))

        session = reopen_run(
            run,
            available(),
            with_remedies=with_remedies,
            allow=allow,
            foreground=report is None,
            fresh_budget=not keep_budget,
            on_launched=launched,
        )
        session.close_with_words()
        return session.exit_code

    if detach:
        in_background(supervise)
    sys.exit(supervise(None))
