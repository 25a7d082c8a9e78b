"""Reads rule files: the families of hangs and crashes as data, and checked.

Judges nothing; `explain.because` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from watchdog_train.core.diagnosis.stacks import EITHER
from watchdog_train.errors import WtrainError
from watchdog_train.explain.families import (
    FamilyRule,
    FrameSets,
    Rules,
    Sign,
    family_problems,
    sign_problems,
    with_sets,
)
from watchdog_train.trusted_files import read_regular

_T = TypeVar("_T")
FILE_CAP_BYTES = 1 << 20
_ALIASES_CAP = 8
"""In a file: aliases of aliases double what is read with each."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


RuleProblem = tuple[str, str]
"""Where it is, by file, family and sign, and what is wrong."""


class RulesError(WtrainError):
    """All problems of all rule files, each with its place."""

    def __init__(self, problems: list[RuleProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{place}: {words}" for place, words in problems),
            context=f"{len(problems)} problem(s) in rule files",
            hint="docs/rules.md describes the format",
            reference="rules-invalid",
        )


def load_rules(extra_dirs: Iterable[str | Path] = ()) -> Rules:
    """Our families and those of the user's folders; a family of the same name replaces ours.

    Raises:
        RulesError: with every problem of every file.
    """
    problems: list[RuleProblem] = []
    entries = [(name, entry, True) for name, text in _ours() for entry in _entries(text)]
    for name, text in _theirs(extra_dirs, problems):
        entries += [(name, entry, False) for entry in _checked_entries(name, text, problems)]
    sets: dict[str, str] = {}
    for name, entry, _ in entries:
        if "frames" in entry and (given := _convert(entry, FrameSets, name, problems)):
            sets |= {key: EITHER.join(each) for key, each in given.frames.items()}
    families: dict[str, FamilyRule] = {}
    for name, entry, is_ours in entries:
        rule = _rule(entry, sets, name, problems, is_ours) if "frames" not in entry else None
        if rule is not None:
            families[rule.family] = rule
    if problems:
        raise RulesError(problems)
    return Rules(families=tuple(families.values()), frames=sets)


def _ours() -> Iterator[tuple[str, str]]:
    for entry in sorted(files(__name__).iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".yaml"):
            yield entry.name, entry.read_text("utf-8")


def _theirs(
    extra_dirs: Iterable[str | Path], problems: list[RuleProblem]
) -> Iterator[tuple[str, str]]:
    for folder in extra_dirs:
        place = Path(folder)
        if not place.exists():
            problems.append((str(folder), "there is no such folder"))
        for path in (place,) if place.is_file() else sorted(place.glob("*.yaml")):
            content = read_regular(path, FILE_CAP_BYTES + 1, follow=True)
            if content is None or content[1] > FILE_CAP_BYTES:
                words = "cannot be read" if content is None else f"over {FILE_CAP_BYTES} bytes"
                problems.append((str(path), words))
            else:
                yield str(path), content[0].decode("utf-8", "replace")


def _entries(text: str) -> list[dict[str, Any]]:
    """The families and sets of frames of a file."""
    found = yaml.load(text, _LOADER) or []  # noqa: S506 - a safe one
    entries = found if isinstance(found, list) else [found]
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("a family is a mapping: family, kind, signs, ...")
    return entries


def _checked_entries(name: str, text: str, problems: list[RuleProblem]) -> list[dict[str, Any]]:
    try:
        events = yaml.parse(text, _LOADER)
        if sum(isinstance(event, yaml.AliasEvent) for event in events) <= _ALIASES_CAP:
            return _entries(text)
        problems.append((name, f"over {_ALIASES_CAP} aliases: many stand for too many values"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problems.append((f"{name}{line}", str(getattr(error, "problem", None) or error)))
    return []


def _rule(
    entry: dict[str, Any],
    sets: dict[str, str],
    name: str,
    problems: list[RuleProblem],
    is_ours: bool,
) -> FamilyRule | None:
    place = f"{name}: family {str(entry.get('family'))[:80]}"
    signs = entry.get("signs")
    rule = _convert({**entry, "signs": []}, FamilyRule, place, problems)
    if not isinstance(signs, list) or not signs:
        problems.append((place, "`signs` is not a list of at least one"))
        return None
    found = []
    for at, each in enumerate(signs):
        where = f"{place}, signs[{at}]"
        sign = _convert(each, Sign, where, problems)
        if sign is not None:
            sign, unknown = with_sets(sign, sets)
            found.append(sign)
            # To compile all regular expressions takes 0.2 s: ours are checked by a test.
            words = [f"there is no set of frames called @{one}" for one in unknown]
            words += [] if is_ours else sign_problems(sign)
            problems += [(where, text) for text in words]
    if rule is None:
        return None
    problems += [(place, text) for text in ([] if is_ours else family_problems(rule))]
    return msgspec.structs.replace(rule, signs=tuple(found))


def _convert(data: Any, kind: type[_T], place: str, problems: list[RuleProblem]) -> _T | None:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        problems.append((place, str(error)))
        return None
