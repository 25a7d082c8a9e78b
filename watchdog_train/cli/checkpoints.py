"""`wtrain checkpoints DIR`: which checkpoints there are, newest first, and which are whole."""

from __future__ import annotations

import os
from typing import Any

import click

from watchdog_train.checkpoints.formats import Level
from watchdog_train.checkpoints.registry import BY_NAME
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option
from watchdog_train.core.model import CheckpointFinding, Survey
from watchdog_train.errors import WtrainError
from watchdog_train.report.words import clean, columns

_WORDS = {True: "whole", False: "partial", None: "unknown"}


@click.command("checkpoints")
@click.argument("directory", type=click.Path(), metavar="DIR")
@click.option(
    "--level",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="quick: structure, sizes, markers; full: every checksum, too.",
)
@json_option
def checkpoints(*, directory: str, level: Level, as_json: bool) -> None:
    """Tell which checkpoints below DIR are whole. Nothing is loaded, changed or deleted."""
    if not os.path.isdir(directory):
        raise WtrainError(
            "there is no such directory",
            context=directory,
            hint="name the directory that holds the checkpoints, or one checkpoint",
            reference="checkpoints-no-directory",
        )
    found = survey(
        SurveyRequest(
            directories=(os.path.abspath(directory),),
            only_directories=True,
            level=level,
            check="all",
        )
    )
    if found.problem:
        click.echo(f"wtrain: incomplete: {found.problem}", err=True)
    if as_json:
        print_json(**as_answer(found))
    else:
        click.echo("\n".join(_table(found, directory)))


def as_answer(found: Survey) -> dict[str, Any]:
    """The JSON answer, newest first."""
    best = found.newest_whole
    return {
        "newest_whole": None if best is None else best.path,
        "checkpoints": [
            {
                "path": finding.path,
                "format": finding.format,
                "step": finding.step,
                "whole": finding.whole,
                "why": finding.said,
            }
            for finding in found.findings
        ],
    }


def _table(found: Survey, directory: str) -> list[str]:
    if not found.findings:
        return [f"no checkpoints below {directory}"]
    rows = [("path", "format", "step", "state", "why")]
    rows += [_row(finding) for finding in found.findings]
    lines = columns(rows)
    best = found.newest_whole
    if best is None:
        return [*lines, "none of them is known to be whole"]
    known = BY_NAME.get(best.format)
    hint = known.resume_hint if known is not None else "by the script's own way"
    return [*lines, f"newest whole: {best.path}", f"to resume: {hint}"]


def _row(finding: CheckpointFinding) -> tuple[str, str, str, str, str]:
    step = "-" if finding.step is None else str(finding.step)
    return (
        clean(finding.path),
        finding.format,
        step,
        _WORDS[finding.whole],
        clean(f"{finding.said} ({finding.how_checked})"),
    )
