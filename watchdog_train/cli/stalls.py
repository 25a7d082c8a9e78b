"""`wtrain stalls`: every bundle of a run, newest last."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click
import msgspec

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option, run_argument, runs_dir_option
from watchdog_train.cli.screen import echo
from watchdog_train.evidence.bundle import Bundle, bundles_in
from watchdog_train.report.explanation_text import crash_words, what_happened
from watchdog_train.store.resolve import resolve


@click.command()
@run_argument
@runs_dir_option
@json_option
def stalls(*, run_ref: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """List what was caught: stalls, crashes and dumps on request."""
    run = resolve(run_ref, runs_dir)
    rows = [_row(path, bundle) for path, bundle in bundles_in(run.stalls)]
    if as_json:
        print_json(stalls=rows)
        return
    if run_ref is None:
        echo(f"wtrain: run {run.run_id}", err=True)
    for row in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(row["at"]))))
        told = " ".join(str(row[name]) for name in ("what", "cause") if row[name])
        echo(
            f"{row['id']}  {at}  attempt {row['attempt']}  {row['why']}: {told}"
            f"  ({row['captured']} of {row['processes']} captured)"
        )
    if not rows:
        echo("nothing was caught", err=True)


def _row(path: Path, bundle: Bundle) -> dict[str, object]:
    verdict, found = bundle.verdict, bundle.explanation
    what = crash_words(verdict.crash) if verdict.crash is not None else None
    if what is None and found is not None and found.tells:
        what = what_happened(found)
    cause = found.family if found is not None else None
    if cause is None and what is None:
        cause = "cause unknown"
    return {
        "id": verdict.id,
        "dir": os.path.abspath(path),
        "at": verdict.at,
        "attempt": verdict.attempt,
        "why": verdict.why,
        "processes": len(verdict.processes),
        "captured": sum(process.captured for process in verdict.processes),
        "what": what,
        "cause": cause,
        "crash": msgspec.to_builtins(verdict.crash),
        "family": found.family if found is not None else None,
    }
