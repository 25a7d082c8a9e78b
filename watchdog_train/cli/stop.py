"""`wtrain stop`: stop a run through its supervisor, or supervise the stop if that is dead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from watchdog_train.cli.event_watch import EventWatch
from watchdog_train.cli.options import of_run
from watchdog_train.cli.reading import look, newest_save, read_run, refuse_unreadable
from watchdog_train.cli.screen import echo
from watchdog_train.config import load
from watchdog_train.core.events import RunFinished
from watchdog_train.core.recovery.kill import KEEPER_S, KILL_S
from watchdog_train.errors import EXIT_INTERRUPTED, EXIT_RETRY_ELSEWHERE, WtrainError
from watchdog_train.report.summary import closing_lines
from watchdog_train.store import requests
from watchdog_train.store.run_directory import resolve_live
from watchdog_train.store.run_paths import RunDirectory

Mode = Literal["soft", "now"]

MARGIN_S = 30.0
"""Added to the limits of the run: evidence, and a supervisor that is busy."""
UNKNOWN_LIMITS_S = 300.0


@click.command()
@click.option("--now", is_flag=True, help="Do not wait for a save: kill all of its processes now.")
@of_run
def stop(run_ref: str | None, now: bool, runs_dir: Path | None) -> None:
    """Stop RUN and wait until every process of it is gone.

    Without RUN, stop the only live run of this directory. A training that can be asked to save
    does so first.
    """
    stop_run(resolve_live(run_ref, runs_dir), now=now)


def stop_run(run: RunDirectory, *, now: bool, is_over: bool = False) -> None:
    """Stop a run and wait until it has ended; report if it had ended already.

    `now`: without time to save. `is_over`: it is known to have ended, on any machine.
    WtrainError: it belongs to another machine, or does not end in time.
    """
    reading = read_run(run)
    refuse_unreadable(reading)
    if reading.state.finished:
        echo(f"wtrain: {run.run_id} has ended already: {reading.state.outcome}", err=True)
        return
    live = look(reading).live
    if not live.here and live.supervisor_alive is not True and not is_over:
        raise WtrainError(
            f"the run belongs to {reading.state.host}",
            context=run.run_id,
            hint="stop it there",
            reference="run-elsewhere",
        )
    mode: Mode = "now" if now else "soft"
    echo(f"wtrain: stopping {run.run_id}", err=True)
    try:
        if live.supervisor_alive is False or (is_over and not live.here):
            _without_supervisor(run, mode)
        else:
            _through_supervisor(run, mode)
    except KeyboardInterrupt:
        echo(f"wtrain: the run is still being stopped: wtrain status {run.run_id}", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _through_supervisor(run: RunDirectory, mode: Mode) -> None:
    watch = EventWatch(run)
    requests.post(run, "stop_now" if mode == "now" else "stop", "wtrain stop")
    limit_s = _limit_s(run, mode)
    finished = watch.wait(lambda event: isinstance(event, RunFinished), limit_s, tell=True)
    if finished is None and not watch.state.finished and watch.lost:
        echo("wtrain: the supervisor died during the stop", err=True)
        _without_supervisor(run, mode)
        return
    if not watch.state.finished:
        raise WtrainError(
            f"the run has not ended within {limit_s:.0f} s; it is in state '{watch.state.state}'",
            context=run.run_id,
            hint=f"wtrain status {run.run_id}; wtrain stop --now {run.run_id} does not wait",
            reference="stop-late",
            exit_code=EXIT_RETRY_ELSEWHERE,
        )
    for line in closing_lines(watch.state, {}, newest_save=newest_save(run, watch.state)):
        echo(line, err=True)


def _limit_s(run: RunDirectory, mode: Mode) -> float:
    """The sum of the time limits of all stages, by the settings of the run."""
    try:
        policy = load(run.config).policy
    except WtrainError:
        return UNKNOWN_LIMITS_S
    stopping = policy.stopping
    total_s = stopping.hang_grace_s + KEEPER_S + 2 * KILL_S + MARGIN_S
    if mode == "soft":
        total_s += max(stopping.ask_s, policy.timing.ask_most_s)
        total_s += stopping.grace_s + stopping.hang_grace_s
    return total_s


def _without_supervisor(run: RunDirectory, mode: Mode) -> None:
    from watchdog_train.cli.restart import adopt_here

    adopt_here(run, stop_mode=mode)
