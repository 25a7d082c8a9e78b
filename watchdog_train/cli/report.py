"""`wtrain report`: what happened to a run, as text, page, Markdown or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchdog_train.cli.options import json_option, run_argument, runs_dir_option

if TYPE_CHECKING:
    from watchdog_train.reporting.gather import Report


@click.command(short_help="Tell what happened to a run.")
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there: .html is a page, .md Markdown, .json data, else text.",
)
@json_option
@runs_dir_option
def report(run_ref: str | None, output: Path | None, as_json: bool, runs_dir: Path | None) -> None:
    """Tell what happened to RUN: outcome, attempts, time, stalls, checkpoints, what to keep.

    The page is also in the run directory (report.html): after a stall, in a long wait, at the end.
    """
    from watchdog_train.cli.reading import read_run
    from watchdog_train.report.report_html import report_html
    from watchdog_train.reporting.gather import gather
    from watchdog_train.store.resolve import resolve

    reading = read_run(resolve(run_ref, runs_dir))
    for problem in reading.problems:
        click.echo(f"wtrain: {problem}", err=True)
    # The state of the reading knows where the directory is now.
    found = gather(reading.run, reading.events, secrets=False, run_dir=reading.state.run_dir)
    suffix = output.suffix.lower() if output is not None else ""
    if as_json or suffix == ".json":
        _data(output, found)
    elif suffix in (".html", ".htm"):
        _give(output, report_html(found.document))
    elif suffix in (".md", ".markdown"):
        from watchdog_train.report.report_markdown import report_markdown

        _give(output, report_markdown(found.document))
    else:
        _text(output, found)


def _data(output: Path | None, found: Report) -> None:
    from watchdog_train.report.report_json import report_object

    data = report_object(found.history, found.script_lines)
    if output is None:
        from watchdog_train.cli.json_output import print_json

        print_json(**data)
        return
    import msgspec

    from watchdog_train.report.why_text import with_text

    _give(
        output, msgspec.json.format(msgspec.json.encode(with_text(data)), indent=2).decode() + "\n"
    )


def _text(output: Path | None, found: Report) -> None:
    from watchdog_train.cli.screen import paint_for_stdout, width_of_stdout
    from watchdog_train.report.report_text import report_text

    if output is not None:
        _give(output, report_text(found.document) + "\n")
        return
    paint = paint_for_stdout()
    width = min(100, width_of_stdout() or 100)
    click.echo(report_text(found.document, paint=paint, width=width), color=paint.enabled)


def _give(output: Path | None, text: str) -> None:
    from watchdog_train.errors import WtrainError
    from watchdog_train.reporting.write import write_page

    if output is None:
        click.echo(text, nl=False)
        return
    try:
        write_page(output, text)
    except OSError as error:
        raise WtrainError(
            f"the report cannot be written: {error.strerror or error}",
            context=str(output),
            reference="report-unwritable",
        ) from error
    click.echo(f"wtrain: report written to {output}", err=True)
