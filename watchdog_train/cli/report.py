"""`wtrain report`: what happened to a run, as text, as one HTML page, or as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from watchdog_train.cli.options import json_option, run_argument, runs_dir_option


@click.command(short_help="Tell what happened to a run.")
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there: .html is a page, .json data, anything else text.",
)
@json_option
@runs_dir_option
def report(run_ref: str | None, output: Path | None, as_json: bool, runs_dir: Path | None) -> None:
    """Tell what happened to RUN: outcome, attempts, stalls, checkpoints, settings, what to keep.

    The page is also in the run directory, as report.html.
    """
    from watchdog_train.cli.reading import read_run
    from watchdog_train.remedies.catalogue import script_lines as lines_for
    from watchdog_train.report.document import report_document
    from watchdog_train.report.facts import framework
    from watchdog_train.report.history import history
    from watchdog_train.store.resolve import resolve

    reading = read_run(resolve(run_ref, runs_dir))
    for problem in reading.problems:
        click.echo(f"wtrain: {problem}", err=True)
    script_lines = lines_for(framework(reading.state))
    told = history(reading.events)
    suffix = output.suffix.lower() if output is not None else ""
    if as_json or suffix == ".json":
        from watchdog_train.report.report_json import report_object

        data = report_object(told, script_lines)
        if output is None:
            from watchdog_train.cli.json_output import print_json

            print_json(data)
            return
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
    elif suffix in (".html", ".htm"):
        from watchdog_train.report.report_html import report_html

        text = report_html(report_document(told, script_lines))
    else:
        from watchdog_train.cli.screen import paint_for_stdout, width_of_stdout
        from watchdog_train.report.report_text import report_text

        document = report_document(told, script_lines)
        if output is None:
            paint = paint_for_stdout()
            shown = report_text(document, paint=paint, width=min(100, width_of_stdout() or 100))
            click.echo(shown, color=paint.enabled)
            return
        text = report_text(document) + "\n"
    _write(output, text)


def _write(output: Path | None, text: str) -> None:
    from watchdog_train.errors import WtrainError
    from watchdog_train.report.write import write_page

    if output is None:
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
