"""`wtrain stalls`: every bundle of a run, newest last."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, run_argument, runs_dir_option
from watchdog_train.evidence.bundle import Bundle, bundles_in
from watchdog_train.store.resolve import resolve

SCHEMA_VERSION = 1


@click.command("stalls")
@run_argument
@runs_dir_option
@json_option
def stalls(*, run_ref: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """List what was caught: stalls, crashes and dumps on request."""
    run = resolve(run_ref, runs_dir)
    rows = [_row(path, bundle) for path, bundle in bundles_in(run.stalls)]
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "stalls": rows})
        return
    if run_ref is None:
        click.echo(f"wtrain: run {run.run_id}", err=True)
    for row in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(row["at"]))))
        family = row["family"] or "cause unknown"
        click.echo(
            f"{row['id']}  {at}  attempt {row['attempt']}  {row['why']}: {family}"
            f"  ({row['captured']} of {row['processes']} captured)"
        )
    if not rows:
        click.echo("nothing was caught", err=True)


def _row(path: Path, bundle: Bundle) -> dict[str, object]:
    verdict = bundle.verdict
    return {
        "id": verdict.id,
        "dir": os.path.abspath(path),
        "at": verdict.at,
        "attempt": verdict.attempt,
        "why": verdict.why,
        "processes": len(verdict.processes),
        "captured": sum(process.captured for process in verdict.processes),
        "family": bundle.explanation.family if bundle.explanation else None,
    }
