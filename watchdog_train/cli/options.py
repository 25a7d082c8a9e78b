"""Options that several commands share, and what a shell offers while `wtrain ...` is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from watchdog_train.errors import EXIT_REFUSED, EXIT_SUCCESS

_MOST = 100


def answer(group: click.Command, instruction: str) -> int:
    """Give a shell its script, or the completions at its cursor; an exit code."""
    from click.shell_completion import shell_complete

    from watchdog_train.cli.main import COMPLETE

    code = shell_complete(group, {}, "wtrain", COMPLETE, instruction)
    return EXIT_REFUSED if code else EXIT_SUCCESS


def runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Ids of runs with this prefix, the newest first: here and on this machine."""
    from watchdog_train.store.registry import live_runs
    from watchdog_train.store.run_paths import default_runs_dir, newest_last, runs_in

    here = runs_in(context.params.get("runs_dir") or default_runs_dir())
    live = [entry.directory for entry in live_runs()]
    known = {run.run_id: run for run in (*live, *here)}
    ids = [run.run_id for run in reversed(newest_last(known.values()))]
    return [one for one in ids if one.startswith(begun)][:_MOST]


def remedies(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from watchdog_train.remedies.catalogue import available

    return [one for one in sorted(available()) if one.startswith(begun)]


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Time(click.types.StringParamType):
    """90, 90s, 10m, 2h or 7d; arrives in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from watchdog_train.config.schema import BadValueError, parse_duration

        try:
            return parse_duration(value)
        except BadValueError as error:
            self.fail(str(error), param, ctx)


def run_argument(function: AnyFunction) -> AnyFunction:
    """The optional RUN; arrives as `run_ref`."""
    return click.argument("run_ref", metavar="[RUN]", required=False, shell_complete=runs)(function)


def of_run(function: AnyFunction) -> AnyFunction:
    """The optional RUN with `--runs-dir`."""
    return run_argument(runs_dir_option(function))


def json_option(function: AnyFunction) -> AnyFunction:
    """`--json`; arrives as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print data for programs.")(
        function
    )


def config_option(default: str = "") -> Callable[[AnyFunction], AnyFunction]:
    """`--config`; arrives as `config_file`. `default`: what is read without it."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Settings file.  [default: {default}./wtrain.yaml, if there is one]",
    )


def runs_dir_option(function: AnyFunction) -> AnyFunction:
    """`--runs-dir`; arrives as `runs_dir`, a Path or None for the default."""
    return click.option(
        "--runs-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where run directories are.  [default: ./wtrain-runs]",
    )(function)
