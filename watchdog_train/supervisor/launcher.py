"""The launcher of a command, with what accelerate's own config file says. Reads that file only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watchdog_train.core.command_line import Found, find
from watchdog_train.core.launchers import Launcher, describe

CONFIG_CAP_BYTES = 64 * 1024
MOST_BRACKETS = 200
"""A parser takes seconds for some thousand open ones."""


def launcher_of(argv: Sequence[str], environment: Mapping[str, str], cwd: str) -> Launcher | None:
    """What starts the ranks of this command; None where the command does not tell."""
    found = find(argv)
    if found is None:
        return None
    settings: dict[str, Any] | None = {}
    if found.family == "accelerate":
        settings = _accelerate_config(found, {**environment, **found.variables}, Path(cwd))
    return describe(found, environment, settings)


def _accelerate_config(
    found: Found, environment: Mapping[str, str], cwd: Path
) -> dict[str, Any] | None:
    """The settings that `accelerate launch` takes as defaults; None when they cannot be read.

    Which file it is: accelerate 1.15, accelerate/commands/config/config_args.py; without
    --config_file, --cpu leaves the default file unread.
    """
    named = found.options.get("config-file")
    if named is not None:
        return _read(cwd / os.path.expanduser(named))
    cache = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME", os.path.join(cache, "huggingface"))
    path = cwd / os.path.expanduser(home) / "accelerate" / "default_config.yaml"
    if "cpu" in found.options or not path.is_file():
        return {}
    return _read(path)


def _read(path: Path) -> dict[str, Any] | None:
    import yaml  # most runs do not need it

    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(CONFIG_CAP_BYTES + 1)
        if len(text) > CONFIG_CAP_BYTES or text.count(b"[") + text.count(b"{") > MOST_BRACKETS:
            return None
        content = yaml.safe_load(text)  # JSON is YAML, as far as such a file goes
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None
