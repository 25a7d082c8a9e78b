"""Options that several commands share, so that they are named and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from watchdog_train.cli.completion import runs

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Time(click.types.StringParamType):
    """90, 90s, 10m, 2h or 7d; arrives in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As settings are read."""
        from watchdog_train.config.schema import BadValueError, parse_duration

        try:
            return parse_duration(value)
        except BadValueError as error:
            self.fail(str(error), param, ctx)


def run_argument(function: AnyFunction) -> AnyFunction:
    """The optional RUN; arrives as `run_ref`."""
    return click.argument("run_ref", metavar="[RUN]", required=False, shell_complete=runs)(function)


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
