"""`wtrain status`: one screen about one run. `wtrain ps`: the runs of this user, a line each."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from watchdog_train.cli.options import json_option, run_argument, runs_dir_option
from watchdog_train.cli.reading import look, read_run
from watchdog_train.cli.screen import echo, paint_for_stdout, print_json, width_of_stdout
from watchdog_train.errors import WtrainError
from watchdog_train.report.document import Document
from watchdog_train.report.run_json import short_object, status_object
from watchdog_train.report.status_text import milestones_text, runs_text, status_text
from watchdog_train.store.registry import live_runs
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import RunDirectory, default_runs_dir, newest_last, runs_in
from watchdog_train.system import current

LOG_LINES = 5


@click.command()
@run_argument
@click.option(
    "--milestones",
    is_flag=True,
    help="Show the startup timeline of every rank, and where it is now.",
)
@json_option
@runs_dir_option
def status(run_ref: str | None, milestones: bool, as_json: bool, runs_dir: Path | None) -> None:
    """Say how RUN is doing; without RUN the newest one here.

    Exit code: 0 it runs under a supervisor, 3 it has ended, 4 its supervisor is dead or
    out of reach.
    """
    reading = read_run(resolve(run_ref, runs_dir))
    document = look(reading, log_lines=0 if as_json or milestones else LOG_LINES)
    if as_json:
        for problem in reading.problems:
            echo(f"wtrain: {problem}", err=True)
        print_json(**status_object(document))
    else:
        paint = paint_for_stdout()
        if milestones:
            text = milestones_text(document, paint=paint)
        else:
            text = status_text(document, paint=paint, width=width_of_stdout())
        echo(text, paint=paint)
    live = document.live
    if document.state.finished:
        sys.exit(3)
    sys.exit(0 if live.supervisor_alive and live.blind_s is None else 4)


SHOWN_WITH_ALL = 200


@click.command()
@click.option("-a", "--all", "show_all", is_flag=True, help="The ended runs here, too.")
@json_option
@runs_dir_option
def ps(show_all: bool, as_json: bool, runs_dir: Path | None) -> None:
    """List the runs that have not ended, wherever they were started; the newest come first."""
    found: list[Document] = []
    for run in _runs(runs_dir, show_all=show_all):
        try:
            reading = read_run(run)
        except WtrainError as error:
            # One damaged run must not hide the others.
            echo(f"wtrain: {run.run_id}: {error.message}", err=True)
            continue
        if show_all or not reading.state.finished:
            found.append(look(reading))
    if as_json:
        print_json(runs=[*map(short_object, found)])
        return
    paint = paint_for_stdout()
    text = runs_text(found, paint=paint, width=width_of_stdout())
    if not text:
        text = "no run here" if show_all else "no live run on this machine; -a lists ended ones"
    echo(text, paint=paint)


def _runs(runs_dir: Path | None, *, show_all: bool) -> list[RunDirectory]:
    runs = {
        entry.directory.path.resolve(): entry.directory
        for entry in live_runs(boot_id=current().boot_id())
    }
    if show_all:
        here = runs_in(runs_dir or default_runs_dir())[-SHOWN_WITH_ALL:]
        runs.update({run.path.resolve(): run for run in here})
    return list(reversed(newest_last(runs.values())))
