"""`wtrain config`: show the settings in effect, check a file, explain a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog_train.cli.options import json_option
from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.cli.screen import echo, print_json
from watchdog_train.config import ConfigError, Problem, dump_policy, explain, load
from watchdog_train.config.text import shown_values
from watchdog_train.errors import WtrainError


@click.group()
def config() -> None:
    """Show, check and explain settings."""


@config.command()
@policy_options
@json_option
def show(as_json: bool, **params: Any) -> None:
    """Print the settings that `wtrain run` with the same flags would use."""
    loaded = policy_from(params)
    if as_json:
        values = shown_values(loaded.policy)
        print_json(sources=loaded.sources, settings=values, origin=loaded.origin)
        return
    made_of = ", ".join(("defaults", *loaded.sources))
    reasons = {key: f"by {place}" for key, place in loaded.origin.items()}
    text = dump_policy(loaded.policy, heading=f"Settings from {made_of}.", reasons=reasons)
    echo(text, nl=False)


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@json_option
def check(file: Path | None, as_json: bool) -> int:
    """Name every problem of a settings file.  [default: ./wtrain.yaml]"""
    file = file or Path("wtrain.yaml")
    problems: list[object] = []
    code = 0
    try:
        from watchdog_train.remedies.catalogue import refuse_unknown

        refuse_unknown(load(file).policy)
    except WtrainError as error:
        if not as_json:
            raise
        code = error.exit_code
        only = Problem(str(file), "", error.message, error.hint, error.reference)
        found = error.problems if isinstance(error, ConfigError) else (only,)
        problems = list(msgspec.to_builtins(found))
    if as_json:
        print_json(file=str(file), problems=problems)
    else:
        echo(f"{file}: no problems")
    return code


@config.command(name="explain")
@click.argument("key", default="", metavar="[KEY]")
def explain_(key: str) -> None:
    """Say what a setting or a section is; without KEY, list all settings."""
    echo(explain(key))
