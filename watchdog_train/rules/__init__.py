"""Reads the rule files beside it: the families of hangs and crashes as data.

Judges nothing; `explain.because` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import yaml

from watchdog_train.core.diagnosis.stacks import EITHER
from watchdog_train.explain.families import FamilyRule, FrameSets, Rules, with_sets

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_rules() -> Rules:
    """All families, with their sets of frames filled in.

    Their words and regular expressions are checked by a test: to compile them takes 0.2 s.
    """
    entries = list(_entries())
    given = [msgspec.convert(entry, FrameSets) for entry in entries if "frames" in entry]
    sets = {key: EITHER.join(each) for one in given for key, each in one.frames.items()}
    rules = [msgspec.convert(entry, FamilyRule) for entry in entries if "frames" not in entry]
    return Rules(
        families=tuple(
            msgspec.structs.replace(rule, signs=tuple(with_sets(sign, sets) for sign in rule.signs))
            for rule in rules
        ),
        frames=sets,
    )


def _entries() -> Iterator[dict[str, Any]]:
    """The families and sets of frames of all files."""
    for file in sorted(files(__name__).iterdir(), key=lambda item: item.name):
        if file.name.endswith(".yaml"):
            found = yaml.load(file.read_text("utf-8"), _LOADER)  # noqa: S506 - a safe one
            yield from found if isinstance(found, list) else [found]
