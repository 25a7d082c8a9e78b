"""The launcher of a command, or of its shell script, with what accelerate's config file says.

It reads these two files and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watchdog_train.core.starting.command_line import Found, find, find_in_script, shell_file
from watchdog_train.core.starting.launchers import Launcher, describe

CONFIG_CAP_BYTES = 64 * 1024
SCRIPT_CAP_BYTES = 256 * 1024
MOST_BRACKETS = 200
"""A parser takes seconds for some thousand open ones."""


def launcher_of(argv: Sequence[str], environment: Mapping[str, str], cwd: str) -> Launcher | None:
    """What starts the ranks of this command; None where it and its shell script do not tell."""
    found = find(argv) or _in_script(argv, Path(cwd))
    if found is None:
        return None
    settings: dict[str, Any] | None = {}
    if found.family == "accelerate":
        settings = _accelerate_config(found, {**environment, **found.variables}, Path(cwd))
    return describe(found, environment, settings)


def _in_script(argv: Sequence[str], cwd: Path) -> Found | None:
    """What `bash run.sh` starts; what is not certain from its text alone is left as it is."""
    named = shell_file(argv)
    text = _text(cwd / named, SCRIPT_CAP_BYTES) if named is not None else None
    return None if text is None else find_in_script(text.decode("utf-8", "replace"))


def _text(path: Path, cap_bytes: int) -> bytes | None:
    """A whole file; None where it cannot be read or is too long."""
    try:
        if not path.is_file():  # a pipe would never end
            return None
        with path.open("rb") as file:
            text = file.read(cap_bytes + 1)
    except (OSError, ValueError):
        return None
    return text if len(text) <= cap_bytes else None


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

    text = _text(path, CONFIG_CAP_BYTES)
    if text is None or text.count(b"[") + text.count(b"{") > MOST_BRACKETS:
        return None
    try:
        content = yaml.safe_load(text)  # JSON is YAML, as far as such a file goes
    except (ValueError, RecursionError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None
