"""`wtrain replay RUN-OR-TRACE`: what the detector would have called, under other settings.

Must not hold the trace in memory: it may be ten million lines long.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click

from watchdog_train.cli.options import config_option, json_option, runs_dir_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import load
from watchdog_train.core.fold import evolve
from watchdog_train.core.policy import Limits, Policy
from watchdog_train.core.traces.replaying import Replay
from watchdog_train.core.traces.trace_reading import TraceReader
from watchdog_train.errors import WtrainError
from watchdog_train.explain.recorded_looks import RecordedLooks
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import columns, duration
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import LATEST
from watchdog_train.store.trace_file import trace_lines


class _Source(NamedTuple):
    """A trace, and the limits of its run."""

    path: Path
    limits: Limits | None
    title: str


@click.command()
@click.argument("source", metavar="[RUN-OR-TRACE]", required=False)
@config_option("the run's own; for a file ")
@json_option
@runs_dir_option
def replay(
    source: str | None, config_file: Path | None, as_json: bool, runs_dir: Path | None
) -> None:
    """Say what would have been called a stall, and when.

    Runs the detector over the trace.jsonl of a run, or over any file of that format, under its own
    clock. Nothing is started or ended. The trace of a run tells what was waited for at each look.
    In a file that does not, every look says "unknown".
    """
    chosen = _source(source, runs_dir)
    policy = _policy(chosen.limits, config_file)
    reader = TraceReader()
    looks = RecordedLooks(policy, reader)
    judged = Replay(policy, looks.answer)
    for line, torn in trace_lines(chosen.path):
        found = reader.read(line, torn=torn)
        if found is None:
            continue
        if found.new_attempt:
            judged.begin_attempt()
        looks.hear(found)
        judged.judge(found.sample)
    if reader.samples == 0:
        raise WtrainError(
            "there is no sample in this trace" + "".join(f"\n{p}" for p in reader.problems[:3]),
            context=str(chosen.path),
            hint='samples look like this: {"t":12.0,"ranks":{"0":{"step":7,"phase":"train"}},...}',
            reference="trace-empty",
        )
    if not reader.has_header:
        echo("wtrain: the trace has no header; poll_s is taken from the samples", err=True)
    for problem in reader.problems:
        echo(f"wtrain: {problem}", err=True)
    if judged.left_out:
        echo(f"wtrain: {judged.left_out} more verdicts are left out", err=True)
    if as_json:
        print_json(verdicts=judged.findings, first_stall_t=judged.first_stall_t)
        return
    _print_table(chosen, reader, judged)


def _source(reference: str | None, runs_dir: Path | None) -> _Source:
    """A file, or the trace of a run.

    Raises:
        WtrainError: there is no such thing, or the run has no trace.
    """
    if reference is not None:
        path = Path(os.path.expanduser(reference))
        if path.is_file() and path.name != LATEST:
            return _Source(path, None, str(path))
        if path.suffix in (".jsonl", ".json") and not path.exists():
            raise WtrainError("there is no such file", context=reference, reference="trace-unknown")
    run = resolve(reference, runs_dir)
    if not run.trace.is_file():
        raise WtrainError(
            "this run has no trace.jsonl",
            context=str(run.path),
            hint="its directory was copied without it, or the disk was full",
            reference="trace-missing",
        )
    log = read_events(run.events, strict=False, spill_dir=run.spill_dir)
    return _Source(run.trace, evolve.replay(log.events).limits, run.run_id)


def _policy(limits: Limits | None, config_file: Path | None) -> Policy:
    if limits is None or config_file is not None:
        return load(config_file).policy
    return Policy(detection=limits.detection, patience=limits.patience, timing=limits.timing)


def _print_table(chosen: _Source, reader: TraceReader, judged: Replay) -> None:
    what = f"{chosen.title}: {reader.samples} samples, {duration(reader.seconds)}"
    if not judged.findings:
        echo(f"{what}; nothing would have been called")
        return
    echo(what)
    rows = [("t", "verdict", "phase", "basis", "why")]
    rows += [
        (f"{found.t:.1f}", found.kind, found.phase, found.basis, why_text(found.why))
        for found in judged.findings
    ]
    echo("\n".join(columns(rows)))
    if judged.first_stall_t is None:
        echo("no stall: nothing would have been ended")
    else:
        echo(f"first stall at {judged.first_stall_t:.1f} s")
