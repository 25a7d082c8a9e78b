"""`wtrain config`: show the settings in effect, check a file, explain a setting."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from watchdog_train.cli.json_output import print_json
from watchdog_train.cli.options import json_option
from watchdog_train.cli.policy_options import policy_from, policy_options
from watchdog_train.cli.screen import echo
from watchdog_train.config import ConfigError, dump_policy, explain, load
from watchdog_train.config.text import shown_values
from watchdog_train.errors import WtrainError
from watchdog_train.explain.patience import table
from watchdog_train.report.patience_text import table_text
from watchdog_train.rules import RulesError, load_rules
from watchdog_train.trusted_files import open_read

_RULES = re.compile(rb"^(?:- )?family:|^frames:", re.MULTILINE)
_HEAD_BYTES = 1 << 16


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
    """Name every problem of a settings file and its rule files.  [default: ./wtrain.yaml]

    FILE may also be a rule file, or a folder of them.
    """
    file = file or Path("wtrain.yaml")
    problems: list[object] = []
    code = 0
    try:
        if _holds_rules(file):
            load_rules([file])
        else:
            from watchdog_train.remedies.catalogue import refuse_unknown

            policy = load(file).policy
            load_rules(policy.evidence.rules_dirs)
            refuse_unknown(policy)
    except WtrainError as error:
        if not as_json:
            raise
        code = error.exit_code
        found = error.problems if isinstance(error, RulesError | ConfigError) else ()
        problems = [
            _rule_problem(*problem) if isinstance(problem, tuple) else msgspec.to_builtins(problem)
            for problem in found
        ] or [_rule_problem(str(file), str(error))]
    if as_json:
        print_json(file=str(file), problems=problems)
    else:
        echo(f"{file}: no problems")
    return code


def _holds_rules(file: Path) -> bool:
    """A folder, or a file that begins a family or sets of frames where settings have sections."""
    if file.is_dir():
        return True
    with suppress(OSError), open_read(file, follow=True) as content:
        return _RULES.search(content.read(_HEAD_BYTES)) is not None
    return False


def _rule_problem(place: str, words: str) -> dict[str, str | None]:
    """As the problems of settings are written."""
    return {
        "place": place,
        "key": "evidence.rules_dirs",
        "message": words,
        "hint": "docs/rules.md describes the format",
        "reference": "rules-invalid",
    }


@config.command(name="explain")
@click.argument("key", default="", metavar="[KEY]")
@policy_options
def explain_(key: str, **params: Any) -> None:
    """Say what a setting or a section is; without KEY, list all settings.

    `wtrain config explain patience` prints how long each kind of wait is given, with the settings
    in effect.
    """
    echo(explain(key))
    if key == "patience":
        policy = policy_from(params).policy
        echo(f"\n{table_text(table(policy.detection, policy.patience))}")
