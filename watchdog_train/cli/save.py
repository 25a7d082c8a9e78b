"""`wtrain save`: ask a run for a checkpoint now. Asked is not saved, and it says which."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchdog_train.cli.options import run_argument, runs_dir_option
from watchdog_train.errors import EXIT_INTERRUPTED, EXIT_RETRY_ELSEWHERE, WtrainError

if TYPE_CHECKING:
    from watchdog_train.cli.reading import RunReading
    from watchdog_train.report.live import Live
    from watchdog_train.store.run_paths import RunDirectory

ANSWER_S = 15.0
"""Within this a living supervisor takes a request."""
SAVE_S = 600.0
POLL_S = 0.2


@click.command(short_help="Ask a run to save a checkpoint now.")
@run_argument
@click.option("--wait", is_flag=True, help="Until the checkpoint is there, ten minutes at most.")
@runs_dir_option
def save(run_ref: str | None, wait: bool, runs_dir: Path | None) -> None:
    """Ask RUN to save now; it goes on training afterwards.

    Without --wait, exit code 0 says that training was asked, not that it has saved.
    """
    from watchdog_train.cli.reading import look, read_run, refuse_unreadable
    from watchdog_train.store.resolve import resolve_live

    run = resolve_live(run_ref, runs_dir)
    reading = read_run(run)
    refuse_unreadable(reading)
    if reading.state.finished:
        raise _ended(run, reading.state.outcome)
    live = look(reading)
    try:
        if live.supervisor_alive is not False:
            _through_supervisor(reading, live, wait=wait)
        else:
            _without_supervisor(reading, live, wait=wait)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _through_supervisor(reading: RunReading, live: Live, *, wait: bool) -> None:
    from watchdog_train.cli.watching import EventWatch
    from watchdog_train.core.events import RequestRefused, RunFinished, SaveProven, SaveRequested
    from watchdog_train.store import requests

    run = reading.run
    watch = EventWatch(run)
    requests.post(run, "save", "wtrain save")
    asked = watch.wait(lambda event: isinstance(event, SaveRequested | RunFinished), ANSWER_S)
    if isinstance(asked, RunFinished):
        raise _ended(run, asked.outcome)
    if not isinstance(asked, SaveRequested):
        raise WtrainError(
            f"the supervisor has not taken the request within {ANSWER_S:.0f} s",
            context=run.run_id,
            hint=f"the request stays; wtrain status {run.run_id}",
            reference="save-late",
            exit_code=EXIT_RETRY_ELSEWHERE,
        )
    if not asked.can_be_asked:
        raise _cannot_be_asked(reading, live)
    click.echo(f"wtrain: asked {run.run_id} to save, which it does after a step", err=True)
    if not wait:
        return
    proven = watch.wait(
        lambda event: (
            isinstance(event, RunFinished)
            or (
                isinstance(event, SaveProven | RequestRefused)
                and event.request == "save"
                and event.sequence >= asked.sequence
            )
        ),
        SAVE_S,
    )
    if isinstance(proven, RunFinished):
        raise _ended(run, proven.outcome)
    if isinstance(proven, RequestRefused):
        raise WtrainError(
            "the ranks of the job have found no step at which all could save",
            context=run.run_id,
            hint="they go on training; ask again, or wtrain stop",
            reference="save-no-common-step",
            exit_code=EXIT_RETRY_ELSEWHERE,
        )
    if not isinstance(proven, SaveProven):
        raise _not_seen(run, taken=watch.state.save_answered >= asked.sequence)
    step = "" if proven.step is None else f" (step {proven.step:,})"
    click.echo(f"wtrain: saved and checked whole: {_shown(proven.path)}{step}", err=True)


def _without_supervisor(reading: RunReading, live: Live, *, wait: bool) -> None:
    """Raise the word of the control page ourselves, as the only one who holds the run."""
    run = reading.run
    if not live.here or not live.can_save:
        raise _cannot_be_asked(reading, live)
    asked_at = time.time()
    _raise_save_request(reading)
    click.echo(f"wtrain: asked {run.run_id} to save; its supervisor is dead", err=True)
    click.echo(f"wtrain: to have it watched again: wtrain adopt {run.run_id}", err=True)
    if wait:
        _wait_for_record(reading, asked_at)


def _raise_save_request(reading: RunReading) -> None:
    import socket

    from watchdog_train.client.layout import CONTROL_FILE
    from watchdog_train.core.model import ProcessId
    from watchdog_train.store.control import ControlPage
    from watchdog_train.store.lock import Holder, RunLock
    from watchdog_train.system import current

    run, slot_dir = reading.run, reading.state.slot_dir
    if slot_dir is None:
        raise _not_seen(run, taken=False)
    system = current()
    me = system.identity(os.getpid()) or ProcessId(os.getpid(), 0)
    who = Holder(pid=me.pid, start=me.start, host=socket.gethostname(), boot_id=system.boot_id())
    lock = RunLock(run.lock, who)
    lock.acquire()
    try:
        with ControlPage.open(Path(slot_dir) / CONTROL_FILE) as page:
            page.request_save()
    except (OSError, ValueError) as error:
        raise WtrainError(
            f"the training cannot be reached: {error}",
            context=slot_dir,
            hint=f"wtrain adopt {run.run_id}",
            reference="save-unreachable",
        ) from error
    finally:
        lock.release()


def _wait_for_record(reading: RunReading, asked_at: float) -> None:
    from watchdog_train.core.model import newest_checkpoint
    from watchdog_train.store.slots import read_saves

    run, attempt = reading.run, reading.state.attempt
    deadline = time.monotonic() + SAVE_S
    while attempt is not None and time.monotonic() < deadline:
        saves = read_saves(run.attempt(attempt.attempt), 20)
        fresh = newest_checkpoint(record for record in saves if record.t >= asked_at)
        if fresh is not None:
            path = _shown(fresh.path)
            click.echo(f"wtrain: saved, as the training says, not checked: {path}", err=True)
            return
        time.sleep(POLL_S)
    raise _not_seen(run, taken=False)


def _shown(path: str) -> str:
    from watchdog_train.report.words import short_path

    return short_path(path, os.getcwd())


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


def _not_seen(run: RunDirectory, *, taken: bool) -> WtrainError:
    what = (
        "the training has taken the request to save, and no finished save has been seen since"
        if taken
        else "training was asked to save, and no step has ended since that could take the request"
    )
    return WtrainError(
        what,
        context=run.run_id,
        hint=f"wtrain status {run.run_id}",
        reference="save-not-seen",
        exit_code=EXIT_RETRY_ELSEWHERE,
    )
