"""The flags of `wtrain run` that are settings, and how they become a policy.

Must not explain a setting in words of its own: texts and defaults come from core.policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from watchdog_train.cli.options import AnyFunction, config_option, remedies
from watchdog_train.config import LoadedPolicy, load
from watchdog_train.config.presets import PRESETS
from watchdog_train.config.schema import FLAG_OF_KEY, settings
from watchdog_train.config.text import scalar
from watchdog_train.core.policy import Limits

_OF_REMEDIES = {"--with", "--without", "--allow"}
_METAVARS = {
    "--name": "NAME",
    "--resume-arg": "ARGS",
    "--checkpoints": "DIR",
    "--runs-dir": "DIR",
    "--notify": "URL",
    "--on": "EVENT=COMMAND",
    "--metrics-file": "FILE",
    "--termination-log": "FILE",
    "--nodes": "N|auto|slurm",
    "--coordination": "tcp://HOST:PORT",
}


class _Lines(click.types.StringParamType):
    """A text that holds spaces: in a variable each one is on a line of its own."""

    name = "text"
    envvar_list_splitter = "\n"


def policy_options(function: AnyFunction) -> AnyFunction:
    """All of them; hand the command's keyword arguments to policy_from()."""
    for key in reversed(FLAG_OF_KEY):
        function = setting_option(key)(function)
    function = click.option(
        "--preset",
        metavar="NAME",
        shell_complete=lambda _context, _parameter, begun: [
            name for name in PRESETS if name.startswith(begun)
        ],
        help="Start from a named set of settings: " + ", ".join(PRESETS) + ".",
    )(function)
    return config_option()(function)


def policy_from(params: Mapping[str, Any]) -> LoadedPolicy:
    """The settings in effect, from the command's keyword arguments.

    Raises:
        ConfigError: with every problem at once.
    """
    overrides = {key: params.get(parameter_name(key)) for key in FLAG_OF_KEY}
    return load(
        params.get("config_file"),
        params.get("preset"),
        {key: value for key, value in overrides.items() if value not in (None, ())},
        limits=click.get_current_context().find_object(Limits),
    )


def parameter_name(key: str) -> str:
    """The keyword argument in which the flag of a setting arrives: the setting's own name."""
    return key.rpartition(".")[2]


def setting_option(key: str) -> Callable[[AnyFunction], AnyFunction]:
    """The flag of one setting."""
    setting, flag = settings()[key], FLAG_OF_KEY[key]
    parameter = parameter_name(setting.key)
    text, _, without = setting.text.partition("; null: ")
    text = f"{text[0].upper()}{text[1:]}."
    if without:
        text += f"  [default: {without}]"
    if setting.kind == "true or false":
        return click.option(flag, parameter, is_flag=True, default=None, help=text)
    if setting.default not in (None, ()):
        text += f"  [default: {scalar(setting.default)}]"
    kind: Any = str
    metavar = _METAVARS.get(flag)
    if setting.kind == "choice":
        kind = click.Choice(setting.choices)
    elif setting.kind == "whole number":
        kind, metavar = int, "N"
    elif setting.kind == "time":
        metavar = "TIME"
    elif setting.kind == "list of texts":
        text += "  [may be repeated]"
        if flag == "--on":
            kind = _Lines()
    return click.option(
        flag,
        parameter,
        type=kind,
        metavar=metavar,
        multiple=setting.kind == "list of texts",
        default=None,
        show_default=False,
        help=text,
        shell_complete=remedies if flag in _OF_REMEDIES else None,
    )
