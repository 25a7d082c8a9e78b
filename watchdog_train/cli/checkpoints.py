"""`wtrain checkpoints DIR`: the checkpoints in a directory, newest first, and which are valid."""

from __future__ import annotations

import os

import click

from watchdog_train.checkpoints.formats import Level
from watchdog_train.checkpoints.registry import Formats, all_formats
from watchdog_train.checkpoints.survey import SurveyRequest, survey
from watchdog_train.cli.options import json_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.core.model import Survey
from watchdog_train.errors import WtrainError
from watchdog_train.report.words import clean, columns

_WORDS = {True: "valid", False: "invalid", None: "unknown"}


@click.command()
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
    """List the checkpoints below DIR and whether each is valid.

    Nothing is loaded, changed or deleted.
    """
    if not os.path.isdir(directory):
        raise WtrainError(
            "there is no such directory",
            context=directory,
            hint="name the directory that holds the checkpoints, or one checkpoint",
            reference="checkpoints-no-directory",
        )
    formats = all_formats()
    found = survey(
        SurveyRequest(
            directories=(os.path.abspath(directory),),
            only_directories=True,
            level=level,
            check="all",
        ),
        formats=formats,
    )
    for warning in found.warnings:
        echo(f"wtrain: {clean(warning)}", err=True)
    if found.problem:
        echo(f"wtrain: incomplete: {found.problem}", err=True)
    best = found.newest_whole
    if as_json:
        rows = [
            {
                "path": one.path,
                "format": one.format,
                "step": one.step,
                "whole": one.whole,
                "why": one.said,
            }
            for one in found.findings
        ]
        print_json(newest_whole=None if best is None else best.path, checkpoints=rows)
    elif not found.findings:
        echo(f"no checkpoints below {directory}")
    else:
        echo("\n".join(_table(found, formats)))


def _table(found: Survey, formats: Formats) -> list[str]:
    rows = [("path", "format", "step", "state", "why")]
    for one in found.findings:
        step = "-" if one.step is None else str(one.step)
        why = clean(f"{one.said} ({one.how_checked})")
        rows.append((clean(one.path), one.format, step, _WORDS[one.whole], why))
    lines = columns(rows)
    best = found.newest_whole
    if best is None:
        return [*lines, "none of them is known to be valid"]
    known = formats.by_name.get(best.format)
    hint = known.resume_hint if known is not None else "by the script's own way"
    return [*lines, f"newest valid: {best.path}", f"to resume: {hint}"]
