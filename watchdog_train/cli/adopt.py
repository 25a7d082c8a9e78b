"""`wtrain adopt`: become the supervisor of a run whose supervisor is gone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from watchdog_train.cli.options import run_argument, runs_dir_option

if TYPE_CHECKING:
    from watchdog_train.store.run_directory import RunDirectory


@click.command()
@run_argument
@runs_dir_option
def adopt(run_ref: str | None, runs_dir: Path | None) -> None:
    """Become the supervisor of RUN; its training has lived on under its keeper."""
    from watchdog_train.store.resolve import resolve_live

    sys.exit(adopt_here(resolve_live(run_ref, runs_dir)))


def adopt_here(directory: RunDirectory, stop_mode: Literal["soft", "now"] | None = None) -> int:
    """Adopt with our catalogue, terminal and words; returns the run's exit code."""
    from watchdog_train.remedies.catalogue import available
    from watchdog_train.supervisor.adopt import adopt_run
    from watchdog_train.supervisor.display import Display
    from watchdog_train.supervisor.terminal import terminal_now

    session = adopt_run(
        directory,
        available(),
        terminal=terminal_now(foreground=True),
        display=Display(),
        stop_mode=stop_mode,
    )
    session.close_with_words()
    return session.exit_code
