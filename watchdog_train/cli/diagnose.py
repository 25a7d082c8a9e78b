"""`wtrain diagnose`: the failure that a log tells of, or what the processes of a dump wait for."""

from __future__ import annotations

import click
import msgspec

from watchdog_train.cli.options import json_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.evidence.installed_families import all_families
from watchdog_train.explain.judge import judge
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.diagnosis_text import diagnosis_text


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@json_option
def diagnose(*, paths: tuple[str, ...], as_json: bool) -> None:
    """Name the exception in a log, or what the processes of a stack dump wait for.

    Reads logs, dumps of py-spy (text, JSON) and faulthandler, Flight Recorder files, stall
    folders and run directories. All PATHs together are one job; - is standard input. The name of
    a file may tell the process: rank0.pid12.txt, rank0-worker1.pid13.txt, rank3.log.
    """
    given = read_inputs(paths)
    families, warnings = all_families()
    found = judge(given.evidence, families=families)
    for warning in warnings:
        echo(f"wtrain: {warning}", err=True)
    if as_json:
        print_json(
            failure=next(iter(given.failures), None),
            others=given.failures[1:],
            family=found.family,
            kind=found.kind,
            remedies=[one.name for one in found.remedies],
            explanation=msgspec.to_builtins(found),
            read=given.read,
        )
        return
    echo(diagnosis_text(found, given.evidence, given.failures, given.read, remedy_words()))
