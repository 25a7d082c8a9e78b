"""`wtrain doctor`: tries what a night needs of this machine, and says what mends it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option
from watchdog_train.cli.screen import echo
from watchdog_train.doctor import Check, examine
from watchdog_train.report.words import clean
from watchdog_train.system import current

EXIT_FAILURES = 1
WORDS = {"ok": "OK", "warning": "WARN", "failure": "FAIL", "unknown": "?"}


@click.command()
@click.option(
    "--python", metavar="PATH", help="The training's interpreter.  [default: python on PATH]"
)
@click.option(
    "--checkpoints",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where checkpoints go.  [default: here]",
)
@json_option
def doctor(*, python: str | None, checkpoints: tuple[Path, ...], as_json: bool) -> None:
    """Try stacks, signals, heartbeats, memory, disks and GPUs; nothing is changed.

    The first line says what nobody has run on this platform. Each warning says how to mend it.
    Exit code 1 when something fails.
    """
    interpreter = python or shutil.which("python") or sys.executable
    found: list[Check] = []
    for check in examine(current(), interpreter, checkpoints or (Path.cwd(),)):
        found.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json(checks=found)
    if any(check.status == "failure" for check in found):
        sys.exit(EXIT_FAILURES)


def _print(check: Check) -> None:
    echo(f"{WORDS[check.status]:4}  {clean(check.name, 80)}: {clean(check.says, 600)}")
    if check.mend:
        echo(f"      {clean(check.mend, 400)}")
