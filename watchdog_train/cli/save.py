"""`wtrain save`: ask a run for a checkpoint now; it says whether one was asked for or saved."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from watchdog_train.cli.event_watch import EventWatch
from watchdog_train.cli.options import of_run
from watchdog_train.cli.reading import RunReading, look, read_run, refuse_unreadable
from watchdog_train.cli.screen import echo
from watchdog_train.core import events as e
from watchdog_train.errors import EXIT_INTERRUPTED, EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.report.document import Live
from watchdog_train.report.words import short_path
from watchdog_train.store import requests
from watchdog_train.store.run_directory import resolve_live
from watchdog_train.store.run_paths import RunDirectory

ANSWER_S = 15.0
"""Time limit for a living supervisor to take a request."""
SAVE_S = 600.0


@click.command()
@click.option("--wait", is_flag=True, help="Wait until the checkpoint exists, ten minutes at most.")
@of_run
def save(run_ref: str | None, wait: bool, runs_dir: Path | None) -> None:
    """Ask RUN to save now; it continues training afterwards.

    Without --wait, exit code 0 means that the training was asked, not that it has saved.
    """
    run = resolve_live(run_ref, runs_dir)
    reading = read_run(run)
    refuse_unreadable(reading)
    if reading.state.finished:
        raise _ended(run, reading.state.outcome)
    live = look(reading).live
    if live.supervisor_alive is False:
        raise WtrainError(
            "the supervisor of this run is dead",
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
    asked = watch.wait(lambda event: isinstance(event, e.SaveRequested | e.RunFinished), ANSWER_S)
    if isinstance(asked, e.RunFinished):
        raise _ended(run, asked.outcome)
    if not isinstance(asked, e.SaveRequested):
        what = f"the supervisor has not taken the request within {ANSWER_S:.0f} s"
        raise _late(run, what, f"the request stays; wtrain status {run.run_id}", "save-late")
    if not asked.can_be_asked:
        raise _cannot_be_asked(reading, live)
    echo(f"wtrain: asked {run.run_id} to save, which it does after a step", err=True)
    if not wait:
        return

    def is_answer(event: e.AnyEvent) -> bool:
        if isinstance(event, e.SaveProven | e.RequestRefused):
            return event.request == "save" and event.sequence >= asked.sequence
        return isinstance(event, e.RunFinished)

    proven = watch.wait(is_answer, SAVE_S)
    if isinstance(proven, e.RunFinished):
        raise _ended(run, proven.outcome)
    if isinstance(proven, e.RequestRefused):
        what = "the ranks of the job found no common step for a save"
        hint = "they continue training; ask again, or wtrain stop"
        raise _late(run, what, hint, "save-no-common-step")
    if not isinstance(proven, e.SaveProven):
        what = "training was asked to save, and no step has ended since that could take the request"
        if watch.state.save_answered >= asked.sequence:
            what = "the training has taken the request, and no finished save has been seen since"
        raise _late(run, what, f"wtrain status {run.run_id}", "save-not-seen")
    where = short_path(proven.path, os.getcwd())
    step = "" if proven.step is None else f" (step {proven.step:,})"
    echo(f"wtrain: saved a valid checkpoint: {where}{step}", err=True)


def _cannot_be_asked(reading: RunReading, live: Live) -> WtrainError:
    attempt = reading.state.attempt
    if attempt is None or attempt.first_step_s is None:
        hint = "no training step was seen yet: ask again when it trains"
    elif live.can_save:
        hint = "another task of its job does not listen, or does not answer: wtrain ps"
    elif live.can_stop:
        hint = (
            "its loop asks watchdog_train.should_stop(): "
            f"wtrain stop {reading.run.run_id} makes it save and exit"
        )
    else:
        hint = (
            "a Hugging Face Trainer listens without changes; your own loop may ask"
            " watchdog_train.should_stop(), save and exit"
        )
    return WtrainError(
        "this training cannot be asked to save: nothing in it listens",
        context=reading.run.run_id,
        hint=hint,
        reference="save-cannot-be-asked",
    )


def _ended(run: RunDirectory, outcome: str | None) -> WtrainError:
    what = f"the run has ended already: {outcome}"
    return WtrainError(what, context=run.run_id, reference="run-finished")


def _late(run: RunDirectory, what: str, hint: str, reference: str) -> WtrainError:
    code = EXIT_RETRY_ELSEWHERE
    return WtrainError(what, context=run.run_id, hint=hint, reference=reference, exit_code=code)
