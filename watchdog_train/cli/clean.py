"""`wtrain clean`: shows what ended runs have left on this machine; with --yes removes it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import Time, json_option, runs_dir_option
from watchdog_train.cli.screen import echo
from watchdog_train.report.words import clean as one_line
from watchdog_train.report.words import size_text
from watchdog_train.store.run_paths import default_runs_dir
from watchdog_train.supervisor.leftover import Leftover
from watchdog_train.supervisor.leftovers import find_leftovers, remove
from watchdog_train.system import current
from watchdog_train.system.proc import refuse_foreign

EXIT_SOME_LEFT = 1


@click.command()
@click.option("--yes", is_flag=True, help="Remove what is shown as removable.")
@click.option(
    "--keep-last",
    type=click.IntRange(min=0),
    metavar="N",
    help="Ended runs here, too, but for the newest N.",
)
@click.option(
    "--older-than",
    "older_than_s",
    type=Time(),
    metavar="TIME",
    help="Ended runs here, too, that are older (7d, 12h).",
)
@json_option
@runs_dir_option
def clean(
    *,
    yes: bool,
    keep_last: int | None,
    older_than_s: float | None,
    as_json: bool,
    runs_dir: Path | None,
) -> None:
    """Show orphaned processes, stale slots, shared memory and locks of runs that are over.

    Nothing is removed without --yes. Run directories are touched only with --keep-last or
    --older-than; runs that live, and `latest`, never. A training that nobody watches any more is
    listed with the command that takes it up again. Each machine of a job cleans its own.
    """
    refuse_foreign()
    system = current()
    found = find_leftovers(
        system, runs_dir or default_runs_dir(), keep_last=keep_last, older_than_s=older_than_s
    )
    failures: dict[str, str] = {}
    removed: set[str] = set()
    if yes:
        for leftover in found:
            if not leftover.removable:
                continue
            problem = remove(leftover, system)
            if problem is None:
                removed.add(leftover.what)
            else:
                failures[leftover.what] = problem
    if as_json:
        rows = [
            {
                **msgspec.structs.asdict(leftover),
                "removed": leftover.what in removed,
                "problem": failures.get(leftover.what),
            }
            for leftover in found
        ]
        print_json(leftovers=rows)
    else:
        _print_text(found, removed, failures, yes=yes)
    if failures:
        sys.exit(EXIT_SOME_LEFT)


def _print_text(
    found: tuple[Leftover, ...], removed: set[str], failures: dict[str, str], *, yes: bool
) -> None:
    if not found:
        echo("nothing is left over")
        return
    for leftover in found:
        state = "listed"
        if leftover.what in failures:
            state = f"NOT removed ({failures[leftover.what]})"
        elif leftover.what in removed:
            state = "removed"
        elif leftover.removable:
            state = "removable"
        weight = "" if leftover.bytes is None else f" ({size_text(leftover.bytes)})"
        echo(f"{state:9}  {leftover.kind:8}  {one_line(leftover.what)}{weight}")
        echo(f"           {one_line(leftover.why)}")
    if not yes and any(leftover.removable for leftover in found):
        echo("wtrain clean --yes removes what is removable", err=True)
