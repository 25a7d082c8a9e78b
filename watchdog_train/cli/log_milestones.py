"""`wtrain logs --milestones`: the way of all ranks, one arrival a line, merged by time."""

from __future__ import annotations

from collections.abc import Collection

from watchdog_train.cli.reading import look, read_run
from watchdog_train.cli.screen import echo
from watchdog_train.core.events import AttemptLaunching, Milestones
from watchdog_train.report.places_text import milestone_lines
from watchdog_train.report.status_json import places_now
from watchdog_train.store.run_paths import RunDirectory


def show_milestones(run: RunDirectory, chosen: Collection[int], rank: int | None) -> None:
    """Print those of the chosen attempts, as recorded last; of a living one as they are."""
    reading = read_run(run)
    state, live = reading.state, look(reading, log_lines=0)
    launched: dict[int, AttemptLaunching] = {}
    told: dict[int, Milestones] = {}
    for event in reading.events:
        if isinstance(event, AttemptLaunching):
            launched[event.attempt] = event
        elif isinstance(event, Milestones):
            told[event.attempt] = event
    nothing = True
    for number, start in launched.items():
        if number not in chosen:
            continue
        last = told.get(number)
        places, now = (last.ranks, last.mono) if last is not None else ((), start.mono)
        if state.attempt is not None and number == state.attempt.attempt:
            places, now, _ = places_now(state, live)
        known = state.launcher.processes if state.launcher is not None else None
        ranks = max(known or 1, *(each.rank + 1 for each in places), 1)
        lines = milestone_lines(
            places, now, start.mono, epoch=start.t - start.mono, ranks=ranks, only=rank
        )
        if len(chosen) > 1 and lines:
            echo(f"wtrain: attempt {number}", err=True)
        nothing = nothing and not lines
        for line in lines:
            echo(line)
    if nothing:
        echo("wtrain: no milestone is known: no process has written one down", err=True)
