"""`wtrain replay RUN-OR-TRACE`: what the detector would have called, under other settings.

Must not hold the trace in memory: it may have millions of lines.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from watchdog_train.cli.options import config_option, json_option, runs_dir_option
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import load
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold import evolve
from watchdog_train.core.model import EvidenceResult, Patience, PatienceRow
from watchdog_train.core.model.explanation import Silence
from watchdog_train.core.policy import Policy
from watchdog_train.core.replay import Replay, unseen
from watchdog_train.core.trace import TraceLine, decode_line, sample_of
from watchdog_train.errors import WtrainError
from watchdog_train.explain.patience import limit_s
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import columns, duration
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_directory import resolve
from watchdog_train.store.run_paths import LATEST
from watchdog_train.store.trace_file import trace_lines

WAITED_FOR_S = 15.0
"""A stack sample of the run may come so much later; then the one before it counts."""


@click.command()
@click.argument("source", metavar="[RUN-OR-TRACE]", required=False)
@config_option("the run's own; for a file ")
@json_option
@runs_dir_option
def replay(
    source: str | None, config_file: Path | None, as_json: bool, runs_dir: Path | None
) -> None:
    """Say what would have been called a stall, and when.

    Runs the detector over the trace.jsonl of a run, or over such a file, under its own clock.
    Nothing is started or killed. What the run's stack samples have found is in its trace; where
    other settings ask for one that the run did not take, it finds "unknown".
    """
    path, policy, title = _source(source, runs_dir, config_file)
    looks = RecordedLooks(policy)
    judged = Replay(policy, looks.answer)
    samples, seconds, at = 0, 0.0, 0.0
    skipped = first_skipped = 0
    for number, raw in enumerate(trace_lines(path), 1):
        line = decode_line(raw)
        if line is None or (samples and not line.begins and line.t <= at):
            skipped, first_skipped = skipped + 1, first_skipped or number
            continue
        if line.begins:
            judged.begin()
        elif samples:
            seconds += line.t - at
        samples, at = samples + 1, line.t
        looks.hear(line)
        judged.judge(sample_of(line))
    if samples == 0:
        raise WtrainError(
            "there is no sample in this trace", context=str(path), reference="trace-empty"
        )
    if skipped:
        echo(f"wtrain: {skipped} lines are no samples, the first is line {first_skipped}", err=True)
    if judged.left_out:
        echo(f"wtrain: {judged.left_out} more verdicts are left out", err=True)
    if as_json:
        print_json(verdicts=judged.findings, first_stall_t=judged.first_stall_t)
        return
    echo(f"{title}: {samples} samples, {duration(seconds)}")
    _print_findings(judged)


def _source(
    reference: str | None, runs_dir: Path | None, config_file: Path | None
) -> tuple[Path, Policy, str]:
    """A trace, the policy to judge it by, and its name; WtrainError: there is no such run."""
    if reference is not None:
        path = Path(os.path.expanduser(reference))
        if path.suffix == ".jsonl" or (path.is_file() and path.name != LATEST):
            return path, load(config_file).policy, str(path)
    run = resolve(reference, runs_dir)
    if config_file is not None:
        return run.trace, load(config_file).policy, run.run_id
    log = read_events(run.events, strict=False, spill_dir=run.spill_dir)
    limits = evolve.replay(log.events).limits
    policy = Policy(detection=limits.detection, patience=limits.patience, timing=limits.timing)
    return run.trace, policy, run.run_id


class RecordedLooks:
    """Stack samples of a run as its trace has kept them; reads each line before it is judged."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._at = 0.0
        self._asked_at: float | None = None
        self._fresh = False
        self._found_at = 0.0
        self._row: PatienceRow = "unknown"
        self._ends_at: float | None = None

    def hear(self, line: TraceLine) -> None:
        """Record the result of a stack sample of the run."""
        self._at = line.t
        if line.begins:
            self._row, self._ends_at, self._asked_at, self._fresh = "unknown", None, None, False
        if line.row is None:
            return
        left_s = line.look_in_s
        self._row, self._ends_at = line.row, self._at + left_s if left_s is not None else None
        self._fresh, self._found_at = True, self._at

    def answer(self, silence: Verdict) -> EvidenceResult | None:
        """Of a stack sample that is asked for now; None: not yet."""
        if self._asked_at is None:
            self._asked_at = self._at
        if not self._fresh and self._at - self._asked_at <= WAITED_FOR_S:
            return None
        if silence.progress_at > self._found_at:  # of an earlier silence
            self._row, self._ends_at = "unknown", None
        if self._row == "unknown" and silence.stopped:
            self._row = "stopped"
        self._asked_at, self._fresh = None, False
        where = Silence(phase=silence.phase, early=silence.early)
        left_s = max(0.0, self._ends_at - self._at) if self._ends_at is not None else None
        limit = limit_s(self._row, where, self._policy.patience)
        return unseen(Patience(row=self._row, limit_s=limit, look_in_s=left_s))


def _print_findings(judged: Replay) -> None:
    rows = [("t", "verdict", "phase", "basis", "why")]
    rows += [
        (f"{found.t:.1f}", found.kind, found.phase, found.basis, why_text(found.why))
        for found in judged.findings
    ]
    if judged.findings:
        echo("\n".join(columns(rows)))
    if judged.first_stall_t is None:
        echo("no stall: nothing would have been killed")
    else:
        echo(f"first stall at {judged.first_stall_t:.1f} s")
