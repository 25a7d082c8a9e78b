"""`wtrain ps`: the runs of this user on this machine, and with -a the ended ones here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchdog_train.cli.options import json_option, runs_dir_option

if TYPE_CHECKING:
    from watchdog_train.cli.reading import RunReading
    from watchdog_train.report.live import Live
    from watchdog_train.store.run_paths import RunDirectory

SHOWN_WITH_ALL = 200


@click.command(short_help="List the runs of this machine.")
@click.option("-a", "--all", "show_all", is_flag=True, help="The ended runs here, too.")
@json_option
@runs_dir_option
def ps(show_all: bool, as_json: bool, runs_dir: Path | None) -> None:
    """List the runs that have not ended, wherever they were started; the newest come first."""
    from watchdog_train.cli.reading import look, read_run
    from watchdog_train.errors import WtrainError

    found: list[tuple[RunReading, Live]] = []
    for run in _runs(runs_dir, show_all=show_all):
        try:
            reading = read_run(run)
        except WtrainError as error:
            # One damaged run must not hide the others.
            click.echo(f"wtrain: {run.run_id}: {error.message}", err=True)
            continue
        if show_all or not reading.state.finished:
            found.append((reading, look(reading)))
    if as_json:
        from watchdog_train.cli.json_output import print_json
        from watchdog_train.report.status_json import short_object, status_object

        runs = [short_object(status_object(reading.state, live)) for reading, live in found]
        print_json(runs=runs)
        return
    from watchdog_train.cli.screen import paint_for_stdout, width_of_stdout
    from watchdog_train.report.status_text import runs_text

    paint = paint_for_stdout()
    rows = [(reading.state, live) for reading, live in found]
    text = runs_text(rows, paint=paint, width=width_of_stdout())
    if not text:
        text = "no run here" if show_all else "no live run on this machine; -a lists ended ones"
    click.echo(text, color=paint.enabled)


def _runs(runs_dir: Path | None, *, show_all: bool) -> list[RunDirectory]:
    from watchdog_train.store.registry import live_runs
    from watchdog_train.store.run_paths import default_runs_dir, newest_last, runs_in
    from watchdog_train.system import current

    runs = {
        entry.directory.path.resolve(): entry.directory
        for entry in live_runs(boot_id=current().boot_id())
    }
    if show_all:
        here = runs_in(runs_dir or default_runs_dir())[-SHOWN_WITH_ALL:]
        runs.update({run.path.resolve(): run for run in here})
    return list(reversed(newest_last(runs.values())))
