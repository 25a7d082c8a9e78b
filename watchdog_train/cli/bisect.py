"""`wtrain bisect`: find the setting that makes a hang appear, by short trials."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option
from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.errors import EXIT_GAVE_UP, EXIT_INTERRUPTED

MINUTES = 30.0
STEPS = 5


@click.command(
    short_help="Find the setting that makes a hang appear.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1, max=10_000),
    default=MINUTES,
    show_default=True,
    help="For all trials together.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=STEPS,
    show_default=True,
    help="A trial that has made so many steps runs.",
)
@click.option(
    "--try", "only", metavar="CHANGE", multiple=True, help="Only this.  [may be repeated]"
)
@click.option(
    "--output-option",
    "output_options",
    metavar="NAME",
    multiple=True,
    help="An option of COMMAND that says where it writes, beside the usual names.  "
    "[may be repeated]",
)
@click.option("--in-place", is_flag=True, help="Let trials write where the training writes.")
@json_option
@policy_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def bisect(
    *,
    minutes: float,
    steps: int,
    only: tuple[str, ...],
    output_options: tuple[str, ...],
    in_place: bool,
    as_json: bool,
    command: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run COMMAND for a few steps as it is, then again with one thing changed at a time.

    Loader workers, threads, ranks, numbers of examples, loggers, torch.compile, the cache: each
    trial ends after its first steps or its standstill, and writes to a copy of the output folder.
    Exit code 0: a change was found with which it runs, or it runs as it is; 76: none was found.
    """
    from watchdog_train.bisecting.outputs import refuse_shared
    from watchdog_train.bisecting.runner import Bisection
    from watchdog_train.checkpoints.find import place_options
    from watchdog_train.core.recovery.bisect import Trial, conclude
    from watchdog_train.remedies.catalogue import refuse_unknown
    from watchdog_train.report import bisect_text
    from watchdog_train.store.run_paths import default_runs_dir
    from watchdog_train.supervisor.command import check_command

    policy = policy_from(flags).policy
    refuse_unknown(policy)
    check_command(command)
    _refuse_unknown_changes(only)
    cwd = os.getcwd()
    if not in_place:
        refuse_shared(place_options(command, cwd, output_options))
    folder = _folder(default_runs_dir(policy.runs_dir))
    bisection = Bisection(
        command,
        policy,
        folder,
        cwd=cwd,
        steps=steps,
        seconds=60.0 * minutes,
        output_options=output_options,
        in_place=in_place,
        only=only,
    )
    trials: list[Trial] = []
    click.echo(f"wtrain: at most {minutes:g} min of trials, kept in {folder}", err=True)
    interrupted = False
    try:
        for trial in bisection.trials():
            if not trials:
                for words in bisection.said:
                    click.echo(f"wtrain: {words}", err=True)
                if not as_json:
                    click.echo(bisect_text.heading())
            trials.append(trial)
            if not as_json:
                click.echo(bisect_text.line(trial))
    except KeyboardInterrupt:
        interrupted = True
    conclusion = conclude(trials)
    if as_json:
        print_json(bisect_text.as_json(trials, conclusion))
    else:
        click.echo("\n".join(bisect_text.closing(trials, conclusion, command)))
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)
    runs = bool(trials) and trials[0].outcome == "ran"
    sys.exit(0 if conclusion.found or runs else EXIT_GAVE_UP)


def _refuse_unknown_changes(only: tuple[str, ...]) -> None:
    from watchdog_train.core.recovery.bisect import ALL_CHANGES

    for name in only:
        if name not in ALL_CHANGES:
            raise click.BadParameter(
                f"'{name[:40]}' is no change; there are: {', '.join(ALL_CHANGES)}",
                param_hint="--try",
            )


def _folder(runs_dir: Path) -> Path:
    from watchdog_train.errors import WtrainError

    stamp = time.strftime("bisect-%Y%m%d-%H%M%S")
    folder = runs_dir / f"{stamp}-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise WtrainError(
            f"there is no place for the trials: {error.strerror}",
            context=str(folder),
            hint="choose another place with --runs-dir DIR",
            reference="run-directory-unwritable",
        ) from error
    return folder
