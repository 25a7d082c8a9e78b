"""`wtrain diagnose`: the cause behind a dump or a log that somebody brings along."""

from __future__ import annotations

import click
import msgspec

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option
from watchdog_train.cli.screen import echo
from watchdog_train.core.model import Explanation
from watchdog_train.evidence.text.bring import evidence_from
from watchdog_train.explain.judge import judge
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.evidence_text import diagnosis_text
from watchdog_train.report.explanation_text import sentences


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@json_option
def diagnose(*, paths: tuple[str, ...], as_json: bool) -> None:
    """Say what is behind stack dumps and logs: stall folders, py-spy, faulthandler, logs.

    All PATHs together are one job; - is standard input. The role of a process is read from the
    name of its file: rank0.pid12.txt, rank0-worker1.pid13.txt, launcher.pid9.txt, rank3.log.
    """
    evidence, notes = evidence_from(paths)
    found = judge(evidence)
    for note in notes:
        echo(f"wtrain: {note}", err=True)
    if as_json:
        print_json(**_fields(found))
        return
    echo(diagnosis_text(found, evidence, remedy_words()))


def _fields(found: Explanation) -> dict[str, object]:
    """The family and its neighbours on top, for scripts; then the whole value and its text."""
    ranked = [found.because, *found.alternatives] if found.because is not None else []
    return {
        "family": found.family,
        "kind": found.kind,
        "ranked": [{"family": one.family, "certainty": one.certainty} for one in ranked],
        "remedies": [one.name for one in found.remedies],
        "explanation": msgspec.to_builtins(found),
        "sentences": sentences(found),
    }
