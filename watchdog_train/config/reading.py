"""Read a config file strictly: every problem at once, each with its line, key and hint.

Must not accept what it does not understand, and must not run anything that a file names.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from watchdog_train.config import schema
from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import ForeignError, distrusted, open_read

if TYPE_CHECKING:
    import yaml

MAX_CONFIG_BYTES = 256 * 1024
_MAX_PROBLEMS = 50
_DEEPEST = 20
_HINTS = {
    "mapping": "a value that holds ': ' belongs in quotes",
    "found": "indent with spaces; a value with special characters belongs in quotes",
}
"""Hints for a syntax error, by the first word of the parser's message."""
_NULL = "tag:yaml.org,2002:null"
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}


class Problem(msgspec.Struct, frozen=True):
    place: str
    """`file:line`, a flag or a preset."""
    key: str
    message: str
    hint: str | None = None
    reference: str = "config-bad-value"


class ConfigError(WtrainError):
    def __init__(self, problems: list[Problem], source: str) -> None:
        self.problems = tuple(problems[:_MAX_PROBLEMS])
        first = problems[0]
        if len(problems) == 1:
            super().__init__(
                first.message,
                context=f"{first.place}  {first.key}".rstrip(),
                hint=first.hint,
                reference=first.reference,
            )
            return
        lines = []
        for problem in self.problems:
            lines.append(f"{problem.place}  {problem.key}".rstrip())
            lines.append(f"  {problem.message}")
            if problem.hint:
                lines.append(f"  hint: {problem.hint}")
        if len(problems) > _MAX_PROBLEMS:
            lines.append(f"and {len(problems) - _MAX_PROBLEMS} more")
        super().__init__(
            "\n".join(lines),
            context=f"{source}: {len(problems)} problems",
            reference="config-invalid",
        )


class FileReading(msgspec.Struct):
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    """`file:line` of every value."""
    problems: list[Problem] = []
    foreign: str | None = None
    """Why only a caller who named it may use it."""


def read_config_file(path: Path, *, named: bool = True) -> FileReading:
    """The settings of a YAML file; nothing in it is evaluated.

    `named`: whether the caller named it; one that was only found must be trusted.
    """
    reading = FileReading()
    try:
        text, reading.foreign = _text_of(path, named=named)
        root = _compose(text)
    except _UnreadableError as error:
        reference, message, line, hint = error.args
        place = f"{path}:{line}" if line else str(path)
        reading.problems.append(Problem(place, "", message, hint, reference))
        return reading
    if root is not None:
        _read_mapping(root, "", str(path), reading)
    return reading


class _UnreadableError(Exception):
    """The file is unusable. Arguments: reference, message, line or 0, hint or None."""


def _text_of(path: Path, *, named: bool) -> tuple[str, str | None]:
    try:
        with open_read(path, follow=True, trusted=not named) as file:
            foreign = distrusted(os.fstat(file.fileno()))
            content = file.read(MAX_CONFIG_BYTES + 1)
    except ForeignError as error:
        message = f"{error.strerror}: it may name commands, so nothing of it is used"
        hint = None if named else f"to use it all the same, name it: --config {path}"
        raise _UnreadableError("config-foreign", message, 0, hint) from error
    except FileNotFoundError:
        raise _UnreadableError("config-unreadable", "there is no such file", 0, None) from None
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise _UnreadableError("config-unreadable", message, 0, None) from error
    if len(content) > MAX_CONFIG_BYTES:
        message = f"the file has more than {MAX_CONFIG_BYTES // 1024} KiB"
        hint = "is this the training's own configuration?"
        raise _UnreadableError("config-too-large", message, 0, hint)
    try:
        return content.decode("utf-8-sig"), foreign
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _UnreadableError("config-not-utf8", "the file is not UTF-8", line, None) from error


def _compose(text: str) -> yaml.Node | None:
    import yaml  # 20 ms that a run without a config file does not need

    try:
        depth = 0
        # Counted before composing: nesting of thousands would end in a RecursionError.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else 0
                message = f"nested more than {_DEEPEST} deep"
                raise _UnreadableError("config-not-yaml", message, line, None)
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = [part for part in (error.context, error.problem) if part]
        hint = _HINTS.get((error.problem or "").partition(" ")[0])
        line = mark.line + 1 if mark else 0
        message = "not YAML: " + ", ".join(words)
        raise _UnreadableError("config-not-yaml", message, line, hint) from error
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())[:200]
        raise _UnreadableError("config-not-yaml", f"not YAML: {what}", 0, None) from error
    return node


def _read_mapping(node: yaml.Node, section: str, file: str, reading: FileReading) -> None:
    import yaml

    if node.tag == _NULL:
        return  # a section whose every line is a comment
    place = f"{file}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        what = f"'{section}' is a section" if section else "the file must hold settings"
        reading.problems.append(
            Problem(
                place, section, f"{what}: write 'key: value' lines.", None, "config-not-mapping"
            )
        )
        return
    known = schema.children(section)
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        place, full = f"{file}:{line}", f"{section}.{name}" if section else name
        if name in seen:
            message = f"'{name}' was set in line {seen[name]} already."
            reading.problems.append(Problem(place, full, message, None, "config-duplicate-key"))
            continue
        seen[name] = line
        if name not in known:
            reading.problems.append(_unknown(place, full, name, section))
        elif full in schema.settings():
            _read_value(value_node, full, place, reading)
        else:
            _read_mapping(value_node, full, file, reading)


def _read_value(node: yaml.Node, key: str, place: str, reading: FileReading) -> None:
    setting = schema.settings()[key]
    try:
        reading.values[key] = setting.check(_plain(node))
        reading.places[key] = place
    except schema.BadValueError as error:
        reading.problems.append(Problem(place, key, f"{error}.", error.hint))


def _plain(node: yaml.Node) -> Any:
    """The value of a node, made of texts, numbers, truth values and null only."""
    import yaml

    if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
        raise schema.BadValueError(f"the tag {node.tag[:60]} has no place here")
    if isinstance(node, yaml.SequenceNode):
        if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise schema.BadValueError("a list may hold texts only")
        return [_plain(item) for item in itertools.islice(node.value, 1000)]
    if not isinstance(node, yaml.ScalarNode):
        raise schema.BadValueError("this takes a single value, not a section")
    if ":" in node.value and node.tag.endswith((":int", ":float")):
        raise schema.BadValueError(
            f"YAML reads {node.value[:40]} as a number in base 60; write a time as 90s, 10m or 2h"
        )
    if node.tag not in _PLAIN_TAGS:
        raise schema.BadValueError(f"'{node.value[:40]}' is not a text; put it in quotes")
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, OverflowError, yaml.YAMLError) as error:
        raise schema.BadValueError(f"'{node.value[:40]}' cannot be read as a value") from error


def _unknown(place: str, full: str, name: str, section: str) -> Problem:
    where = f"of '{section}'" if section else "of a run"
    elsewhere = [key for key in schema.settings() if key.rpartition(".")[2] == name]
    near = schema.closest(name, schema.children(section))
    hint = f"did you mean '{near}'?" if near else "wtrain config explain lists all settings"
    if len(elsewhere) == 1:
        hint = f"it belongs to '{elsewhere[0].rpartition('.')[0]}'"
    return Problem(
        place, full, f"'{name[:60]}' is not a setting {where}.", hint, "config-unknown-key"
    )
