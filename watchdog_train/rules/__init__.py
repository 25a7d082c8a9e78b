"""Reads rule files: the families of hangs and crashes as data, checked with file and line.

Judges nothing; `explain.because` does.
"""

from __future__ import annotations

import re
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

_T = TypeVar("_T")
FILE_CAP_BYTES = 1 << 20
_DEPTH_CAP = 32
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PATH = re.compile(r"\A(?P<text>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\[\.\.\.\]")


RuleProblem = tuple[str, str]
"""Where it is, `file:line`, and what is wrong."""


class RulesError(WtrainError):
    """All problems of all rule files, each as `file:line: what is wrong`."""

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
        RulesError: with every problem of every file, each with its line.
    """
    problems: list[RuleProblem] = []
    ours = [_RuleFile(name, text, problems, checked=True) for name, text in _ours()]
    theirs = [_RuleFile(name, text, problems) for name, text in _theirs(extra_dirs, problems)]
    files = [*ours, *theirs]
    sets: dict[str, str] = {}
    for file in files:
        sets |= {name: EITHER.join(each) for name, each in file.frame_sets().items()}
    families = {rule.family: rule for file in files for rule in file.rules(sets)}
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
            text = _read(path, problems)
            if text is not None:
                yield str(path), text


def _read(path: Path, problems: list[RuleProblem]) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_CAP_BYTES + 1)
    except OSError as error:
        problems.append((str(path), f"cannot be read: {error.strerror}"))
        return None
    if len(content) > FILE_CAP_BYTES:
        problems.append((str(path), f"larger than {FILE_CAP_BYTES} bytes"))
        return None
    return content.decode("utf-8", "replace")


class _RuleFile:
    """One file; what is wrong with it goes to `problems` with its line."""

    def __init__(
        self, name: str, text: str, problems: list[RuleProblem], *, checked: bool = False
    ) -> None:
        self._name = name
        self._checked = checked
        self._problems = problems
        self._seen: set[int] = set()
        self._sets: dict[str, str] = {}
        self._root = self._compose(text)

    def _compose(self, text: str) -> Any:
        try:
            return yaml.compose(text, Loader=_LOADER)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark is not None else ""
            words = getattr(error, "problem", None) or error
            self._problems.append((f"{self._name}{line}", str(words)))
            return None

    def _entries(self, *, sets: bool) -> list[Any]:
        root = self._root
        if root is None:
            return []
        entries = root.value if isinstance(root, yaml.SequenceNode) else [root]
        return [entry for entry in entries if _names_frames(entry) == sets]

    def frame_sets(self) -> dict[str, tuple[str, ...]]:
        """The sets of frames that it defines."""
        found: dict[str, tuple[str, ...]] = {}
        for entry in self._entries(sets=True):
            given = self._convert(entry, self._plain(entry, 0), FrameSets)
            found |= given.frames if given else {}
        return found

    def rules(self, sets: dict[str, str]) -> list[FamilyRule]:
        """The families of the file that are right."""
        self._sets = sets
        rules = (self._rule(entry) for entry in self._entries(sets=False))
        return [rule for rule in rules if rule is not None]

    def _complain(self, node: Any, text: str) -> None:
        self._problems.append((f"{self._name}:{node.start_mark.line + 1}", text))

    def _rule(self, node: Any) -> FamilyRule | None:
        before = len(self._problems)
        data = self._plain(node, 0)
        if len(self._problems) > before:
            return None
        if not isinstance(data, dict):
            self._complain(node, "a family is a mapping: family, kind, signs, ...")
            return None
        signs = data.pop("signs", None)
        rule = self._convert(node, {**data, "signs": []}, FamilyRule)
        if not isinstance(signs, list) or not signs:
            self._complain(node, "`signs` is not a list of at least one")
            return None
        found = [self._sign(node, at, entry) for at, entry in enumerate(signs)]
        for text in [] if self._checked or rule is None else family_problems(rule):
            self._complain(node, text)
        if rule is None or len(self._problems) > before:
            return None
        return msgspec.structs.replace(rule, signs=tuple(filter(None, found)))

    def _sign(self, node: Any, at: int, data: Any) -> Sign | None:
        path = f".signs[{at}]"
        sign = self._convert(node, data, Sign, path)
        if sign is None:
            return None
        sign, unknown = with_sets(sign, self._sets)
        # To compile all regular expressions takes 0.2 s: ours are checked by a test.
        for text in [] if self._checked else sign_problems(sign):
            self._complain(_follow(node, path), text)
        for name in unknown:
            self._complain(_follow(node, path), f"there is no set of frames called @{name}")
        return sign

    def _convert(self, node: Any, data: Any, kind: type[_T], prefix: str = "") -> _T | None:
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            match = _PATH.match(str(error))
            path = prefix + ((match["path"] or "") if match else "")
            words = match["text"] if match else str(error)
            field = _UNKNOWN.search(words)
            if field:
                path += f".{field[1]}"
            self._complain(_follow(node, path), f"{path.lstrip('.')}: {words}")
            return None

    def _plain(self, node: Any, depth: int) -> Any:
        """Plain values of a node.

        A key given twice is a problem (yaml would keep the last silently), and so is an alias: a
        few lines of them stand for more values than there is memory.
        """
        if depth > _DEPTH_CAP or id(node) in self._seen:
            self._complain(node, "nested too deeply" if depth > _DEPTH_CAP else "no aliases here")
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                if key in result:
                    self._complain(key_node, f"`{key}` is given twice")
                result[key] = self._plain(value_node, depth + 1)
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(entry, depth + 1) for entry in node.value]
        return _scalar(node)


def _names_frames(node: Any) -> bool:
    """Whether an entry defines sets of frames instead of a family."""
    return isinstance(node, yaml.MappingNode) and any(
        key.value == "frames" for key, _ in node.value
    )


def _scalar(node: Any) -> Any:
    text: str = node.value
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind in ("int", "float"):
        try:
            return int(text, 0) if kind == "int" else float(text)
        except ValueError:
            return text
    return text


def _follow(node: Any, path: str) -> Any:
    """The node that a path of msgspec points at, as far as it can be followed."""
    for key, index in _STEP.findall(path):
        child = None
        if key and isinstance(node, yaml.MappingNode):
            child = next((value for name, value in node.value if name.value == key), None)
        elif index and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            child = node.value[int(index)]
        if child is None:
            return node
        node = child
    return node
