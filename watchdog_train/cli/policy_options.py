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
from watchdog_train.config.schema import flags, settings
from watchdog_train.config.text import scalar
from watchdog_train.core.policy import Limits

_OF_REMEDIES = {"--with", "--without", "--allow"}


class _Lines(click.types.StringParamType):
    """A text that holds spaces: in a variable each one is on a line of its own."""

    name = "text"
    envvar_list_splitter = "\n"


def policy_options(function: AnyFunction) -> AnyFunction:
    """All of them; hand the command's keyword arguments to policy_from()."""
    for setting in reversed(flags()):
        function = setting_option(setting.key)(function)
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
    """The settings in effect, from the command's keyword arguments; ConfigError: all problems."""
    overrides = {setting.key: params.get(setting.name) for setting in flags()}
    return load(
        params.get("config_file"),
        params.get("preset"),
        {key: value for key, value in overrides.items() if value not in (None, ())},
        limits=click.get_current_context().find_object(Limits),
    )


def setting_option(key: str) -> Callable[[AnyFunction], AnyFunction]:
    """The flag of one setting; arrives under the setting's own name."""
    setting = settings()[key]
    text, _, without = setting.text.partition("; null: ")
    text = f"{text[0].upper()}{text[1:]}."
    if without:
        text += f"  [default: {without}]"
    if setting.kind == "true or false":
        return click.option(setting.flag, setting.name, is_flag=True, default=None, help=text)
    if setting.default not in (None, ()):
        text += f"  [default: {scalar(setting.default)}]"
    kind: Any = str
    metavar = setting.metavar
    if setting.kind == "choice":
        kind = click.Choice(setting.choices)
    elif setting.kind == "whole number":
        kind, metavar = int, "N"
    elif setting.kind == "time":
        metavar = "TIME"
    elif setting.kind == "list of texts":
        text += "  [may be repeated]"
        if setting.flag == "--on":
            kind = _Lines()
    return click.option(
        setting.flag,
        setting.name,
        type=kind,
        metavar=metavar,
        multiple=setting.kind == "list of texts",
        default=None,
        show_default=False,
        help=text,
        shell_complete=remedies if setting.flag in _OF_REMEDIES else None,
    )
