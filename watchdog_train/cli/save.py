"""`wtrain save`: ask a run for a checkpoint now. Asked is not saved, and it says which."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from watchdog_train.cli.options import run_argument, runs_dir_option
from watchdog_train.cli.reading import RunReading, look, read_run, refuse_unreadable
from watchdog_train.cli.screen import echo
from watchdog_train.cli.watching import EventWatch
from watchdog_train.core.events import (
    AnyEvent,
    RequestRefused,
    RunFinished,
    SaveProven,
    SaveRequested,
)
from watchdog_train.errors import EXIT_INTERRUPTED, EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.report.status import Live
from watchdog_train.report.words import short_path
from watchdog_train.store import requests
from watchdog_train.store.resolve import resolve_live
from watchdog_train.store.run_paths import RunDirectory

ANSWER_S = 15.0
"""Within this a living supervisor takes a request."""
SAVE_S = 600.0


@click.command()
@run_argument
@click.option("--wait", is_flag=True, help="Until the checkpoint is there, ten minutes at most.")
@runs_dir_option
def save(run_ref: str | None, wait: bool, runs_dir: Path | None) -> None:
    """Ask RUN to save now; it goes on training afterwards.

    Without --wait, exit code 0 says that training was asked, not that it has saved.
    """
    run = resolve_live(run_ref, runs_dir)
    reading = read_run(run)
    refuse_unreadable(reading)
    if reading.state.finished:
        raise _ended(run, reading.state.outcome)
    live = look(reading)
    if live.supervisor_alive is False:
        raise WtrainError(
            "nobody supervises this run: its supervisor is dead",
            context=run.run_id,
            hint=f"wtrain adopt {run.run_id}, then wtrain save {run.run_id}",
            reference="save-unsupervised",
        )
    try:
        _ask(reading, live, wait=wait)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _ask(reading: RunReading, live: Live, *, wait: bool) -> None:
    run = reading.run
    watch = EventWatch(run)
    requests.post(run, "save", "wtrain save")
    asked = watch.wait(lambda event: isinstance(event, SaveRequested | RunFinished), ANSWER_S)
    if isinstance(asked, RunFinished):
        raise _ended(run, asked.outcome)
    if not isinstance(asked, SaveRequested):
        what = f"the supervisor has not taken the request within {ANSWER_S:.0f} s"
        raise _late(run, what, f"the request stays; wtrain status {run.run_id}", "save-late")
    if not asked.can_be_asked:
        raise _cannot_be_asked(reading, live)
    echo(f"wtrain: asked {run.run_id} to save, which it does after a step", err=True)
    if not wait:
        return

    def is_answer(event: AnyEvent) -> bool:
        if isinstance(event, SaveProven | RequestRefused):
            return event.request == "save" and event.sequence >= asked.sequence
        return isinstance(event, RunFinished)

    proven = watch.wait(is_answer, SAVE_S)
    if isinstance(proven, RunFinished):
        raise _ended(run, proven.outcome)
    if isinstance(proven, RequestRefused):
        what = "the ranks of the job have found no step at which all could save"
        hint = "they go on training; ask again, or wtrain stop"
        raise _late(run, what, hint, "save-no-common-step")
    if not isinstance(proven, SaveProven):
        what = "training was asked to save, and no step has ended since that could take the request"
        if watch.state.save_answered >= asked.sequence:
            what = "the training has taken the request, and no finished save has been seen since"
        raise _late(run, what, f"wtrain status {run.run_id}", "save-not-seen")
    step = "" if proven.step is None else f" (step {proven.step:,})"
    echo(f"wtrain: saved and checked whole: {short_path(proven.path, os.getcwd())}{step}", err=True)


def _cannot_be_asked(reading: RunReading, live: Live) -> WtrainError:
    attempt = reading.state.attempt
    if attempt is None or attempt.first_step_s is None:
        hint = "no training step was seen yet: ask again when it trains"
    elif live.can_save:
        hint = "another task of its job does not listen, or is not heard: wtrain ps"
    elif live.can_stop:
        hint = (
            "its loop asks watchdog_train.should_stop(): "
            f"wtrain stop {reading.run.run_id} lets it save and end"
        )
    else:
        hint = (
            "a Hugging Face Trainer listens by itself; a loop of your own may ask"
            " watchdog_train.should_stop(), save and end"
        )
    return WtrainError(
        "this training cannot be asked to save: nothing in it listens",
        context=reading.run.run_id,
        hint=hint,
        reference="save-cannot-be-asked",
    )


def _ended(run: RunDirectory, outcome: str | None) -> WtrainError:
    return WtrainError(
        f"the run has ended already: {outcome}", context=run.run_id, reference="run-finished"
    )


def _late(run: RunDirectory, what: str, hint: str, reference: str) -> WtrainError:
    return WtrainError(
        what,
        context=run.run_id,
        hint=hint,
        reference=reference,
        exit_code=EXIT_RETRY_ELSEWHERE,
    )
