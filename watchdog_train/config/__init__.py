"""Settings of a run: their sources, precedence and errors.

Must not start anything. Precedence, later ones win: defaults, preset, config file (`--config`, or
`wtrain.yaml` in the working directory), WTRAIN_ variables, flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.config import schema
from watchdog_train.config.presets import PRESETS
from watchdog_train.config.reading import ConfigError, Problem, read_config_file
from watchdog_train.config.schema import parse_duration
from watchdog_train.config.text import dump_policy, explain
from watchdog_train.core.policy import Limits, Policy

__all__ = [
    "ConfigError",
    "LoadedPolicy",
    "Problem",
    "dump_policy",
    "explain",
    "load",
    "parse_duration",
]

FOUND_FILE = "wtrain.yaml"


class LoadedPolicy(msgspec.Struct, frozen=True):
    policy: Policy
    sources: tuple[str, ...]
    """Sources besides the defaults, weakest first: "preset overnight", "wtrain.yaml"."""
    origin: dict[str, str]
    """For every changed setting: the preset, `file:line` or flag that set it."""


def load(
    file: Path | None = None,
    preset: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    directory: Path | None = None,
    limits: Limits | None = None,
) -> LoadedPolicy:
    """The settings in effect.

    Args:
        file: as given by --config; None: `wtrain.yaml` in the directory, if there is one.
        preset: name of a preset.
        overrides: from flags and variables, by key; a None is no override.
        directory: where to look for `wtrain.yaml`; None: the working directory.
        limits: of the run, where it has begun; None: the defaults.

    Raises:
        ConfigError: with every problem of the preset's name, the file and the overrides.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    problems: list[Problem] = []
    sources: list[str] = []
    if preset is not None:
        if preset in PRESETS:
            values |= {key: value for key, (value, _) in PRESETS[preset].changes.items()}
            origin |= dict.fromkeys(values, f"preset {preset}")
            sources.append(f"preset {preset}")
        else:
            problems.append(_unknown_preset(preset))
    named = file is not None
    if file is None and (found := (directory or Path()) / FOUND_FILE).exists():
        file = found
    if file is not None:
        reading = read_config_file(file, named=named)
        values |= reading.values
        origin |= reading.places
        problems += reading.problems
        sources.append(f"{file} ({reading.foreign})" if reading.foreign else str(file))
    for key, value in (overrides or {}).items():
        if value is None:
            continue
        setting = schema.settings()[key]
        place = setting.flag or key
        try:
            values[key] = setting.check(value)
            origin[key] = place
        except schema.BadValueError as error:
            problems.append(Problem(place, "", f"{error}.", error.hint))
    if not problems:
        if preset is not None:
            _keep_remedies_of(preset, values)
        return LoadedPolicy(schema.build(values, limits), tuple(sources), origin)
    raise ConfigError(problems, str(file) if file else "settings")


def _keep_remedies_of(preset: str, values: dict[str, Any]) -> None:
    """Remedies named with a preset are added to its own, which may be forbidden."""
    key = "recovery.with_remedies"
    own, _ = PRESETS[preset].changes.get(key, ((), ""))
    forbidden = values.get("recovery.without_remedies", ())
    kept = [name for name in own if name not in forbidden]
    values[key] = tuple(dict.fromkeys([*kept, *(n for n in values.get(key, ()) if n not in own)]))


def _unknown_preset(preset: str) -> Problem:
    near = schema.closest(preset, PRESETS)
    return Problem(
        "--preset",
        "",
        f"'{preset[:60]}' is not a preset.",
        f"did you mean '{near}'?" if near else "there are: " + ", ".join(PRESETS),
        "config-unknown-preset",
    )
