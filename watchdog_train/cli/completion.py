"""What a shell offers while `wtrain ...` is typed: its function asks us as click does."""

from __future__ import annotations

import click

from watchdog_train.errors import EXIT_REFUSED, EXIT_SUCCESS

_MOST = 100


def answer(group: click.Command, instruction: str) -> int:
    """Give a shell its script, or the words that may stand at its cursor; an exit code."""
    from click.shell_completion import shell_complete

    from watchdog_train.cli.main import COMPLETE

    code = shell_complete(group, {}, "wtrain", COMPLETE, instruction)
    return EXIT_REFUSED if code else EXIT_SUCCESS


def runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Ids of runs that begin so, the newest first: here and on this machine."""
    from watchdog_train.store.registry import live_runs
    from watchdog_train.store.run_paths import default_runs_dir, newest_last, runs_in

    here = runs_in(context.params.get("runs_dir") or default_runs_dir())
    live = [entry.directory for entry in live_runs()]
    known = {run.run_id: run for run in (*live, *here)}
    ids = [run.run_id for run in reversed(newest_last(known.values()))]
    return [one for one in ids if one.startswith(begun)][:_MOST]


def remedies(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Ids of remedies that begin so."""
    from watchdog_train.remedies.catalogue import available

    return [one for one in sorted(available()) if one.startswith(begun)]
