"""`wtrain status`: one screen about one run, from its log and one look at its processes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, run_argument, runs_dir_option
from watchdog_train.cli.reading import exit_code, look, read_run
from watchdog_train.cli.screen import echo, paint_for_stdout, width_of_stdout
from watchdog_train.report.status_json import status_object
from watchdog_train.report.status_text import milestones_text, status_text
from watchdog_train.store.resolve import resolve

LOG_LINES = 5


@click.command()
@run_argument
@click.option(
    "--milestones",
    is_flag=True,
    help="Show the way of every rank to its first step, and where it is now.",
)
@json_option
@runs_dir_option
def status(run_ref: str | None, milestones: bool, as_json: bool, runs_dir: Path | None) -> None:
    """Say how RUN is doing; without RUN the newest one here.

    Exit code: 0 it runs under a supervisor, 3 it has ended, 4 its supervisor is dead or
    out of reach.
    """
    reading = read_run(resolve(run_ref, runs_dir))
    state, live = reading.state, look(reading, log_lines=0 if as_json or milestones else LOG_LINES)
    if as_json:
        for problem in reading.problems:
            echo(f"wtrain: {problem}", err=True)
        print_json(**status_object(state, live))
    else:
        paint = paint_for_stdout()
        if milestones:
            text = milestones_text(state, live, paint=paint)
        else:
            text = status_text(state, live, paint=paint, width=width_of_stdout())
        echo(text, paint=paint)
    sys.exit(exit_code(state, live))
