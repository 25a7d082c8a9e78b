"""`wtrain report`: what happened to a run, as text, page or JSON."""

from __future__ import annotations

from pathlib import Path

import click

from watchdog_train.cli.options import json_option, run_argument, runs_dir_option


@click.command()
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there: .html is a page, .json data, else text.",
)
@json_option
@runs_dir_option
def report(run_ref: str | None, output: Path | None, as_json: bool, runs_dir: Path | None) -> None:
    """Report on RUN: outcome, attempts, time, stalls, checkpoints, settings to keep.

    The page is also in the run directory (report.html): after a stall, in a long wait, at the end.
    """
    from watchdog_train.cli.reading import read_run
    from watchdog_train.cli.screen import echo, json_text, paint_for_stdout, width_of_stdout
    from watchdog_train.errors import WtrainError
    from watchdog_train.report.report_text import report_html, report_page, report_text
    from watchdog_train.report.run_json import report_object
    from watchdog_train.reporting import gather
    from watchdog_train.store.run_directory import resolve
    from watchdog_train.trusted_files import refuse_foreign_links
    from watchdog_train.whole_files import replace_whole

    reading = read_run(resolve(run_ref, runs_dir))
    for problem in reading.problems:
        echo(f"wtrain: {problem}", err=True)
    # The state of the reading knows where the directory is now.
    document = gather(reading.run, reading.events, reading.state)
    page = report_page(document)
    suffix = output.suffix.lower() if output is not None else ""
    paint = paint_for_stdout()
    if as_json or suffix == ".json":
        text = json_text(**report_object(document))
    elif suffix in (".html", ".htm"):
        text = report_html(page)
    elif output is not None:
        text = report_text(page) + "\n"
    else:
        width = min(100, width_of_stdout() or 100)
        text = report_text(page, paint=paint, width=width) + "\n"
    if output is None:
        echo(text, nl=False, paint=paint)
        return
    try:
        refuse_foreign_links(output)
        replace_whole(output, text.encode("utf-8", "replace"))
    except OSError as error:
        raise WtrainError(
            f"the report cannot be written: {error.strerror or error}",
            context=str(output),
            reference="report-unwritable",
        ) from error
    echo(f"wtrain: report written to {output}", err=True)
