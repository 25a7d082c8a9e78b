"""`wtrain clean`: shows what ended runs have left on this machine; with --yes removes it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from watchdog_train.cli.options import Time, json_option, runs_dir_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.report.words import clean as one_line
from watchdog_train.report.words import size_text
from watchdog_train.store.run_paths import default_runs_dir
from watchdog_train.supervisor.leftovers import Leftover, find_leftovers, remove
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
    """Show orphaned processes, stale slots, shared memory and locks of runs that have ended.

    Nothing is removed without --yes. Run directories are removed only with --keep-last or
    --older-than; those of live runs, and `latest`, never. A training whose supervisor is dead is
    listed with the command that adopts it. Run it on each machine of a job.
    """
    refuse_foreign()
    system = current()
    found = find_leftovers(
        system, runs_dir or default_runs_dir(), keep_last=keep_last, older_than_s=older_than_s
    )
    tried = [one for one in found if yes and one.removable]
    problems = {one.what: remove(one, system) for one in tried}
    if as_json:
        rows = [
            {
                **msgspec.structs.asdict(one),
                "removed": one.what in problems and problems[one.what] is None,
                "problem": problems.get(one.what),
            }
            for one in found
        ]
        print_json(leftovers=rows)
    else:
        _print_text(found, problems, yes=yes)
    if any(problems.values()):
        sys.exit(EXIT_SOME_LEFT)


def _print_text(found: tuple[Leftover, ...], problems: dict[str, str | None], *, yes: bool) -> None:
    """`problems`: of those that were to be removed; None: removed."""
    if not found:
        echo("nothing is left over")
        return
    for leftover in found:
        state = "removable" if leftover.removable else "listed"
        if leftover.what in problems:
            problem = problems[leftover.what]
            state = "removed" if problem is None else f"NOT removed ({problem})"
        weight = "" if leftover.bytes is None else f" ({size_text(leftover.bytes)})"
        echo(f"{state:9}  {leftover.kind:8}  {one_line(leftover.what)}{weight}")
        echo(f"           {one_line(leftover.why)}")
    if not yes and any(leftover.removable for leftover in found):
        echo("wtrain clean --yes removes what is removable", err=True)
