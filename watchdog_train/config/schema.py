"""Every setting as one row, read off the described fields of core.policy.Policy.

Must not know where values come from.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import msgspec.inspect

from watchdog_train.core.policy import Limits, Policy

Kind = Literal["time", "whole number", "true or false", "text", "choice", "list of texts"]

_DURATION = re.compile(r"\s*(?P<number>\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})\s*(?P<unit>s|m|h|d)?\s*")
_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_TEXT = 4096


class BadValueError(ValueError):
    """A value that a setting cannot have; the text says why."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def parse_duration(text: str) -> float:
    """Seconds of `90`, `90s`, `1.5m`, `2h` or `1d`; BadValueError: none of these."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadValueError(f"'{text[:40]}' is not a time; write 90, 90s, 10m or 2h")
    return float(match["number"]) * _SECONDS[match["unit"]]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: Kind
    optional: bool
    default: Any
    text: str
    """What it is and why the default is what it is."""
    above: float | None = None
    """Values must be larger; `least` and `most` are allowed values."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    flag: str = ""
    """Of `wtrain run`; empty: none."""
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable with the same effect as the flag."""
        return "WTRAIN_" + self.flag[2:].replace("-", "_").upper()

    @property
    def unit(self) -> str | None:
        units = {"_s": "seconds", "_bytes": "bytes"}
        return next((unit for end, unit in units.items() if self.name.endswith(end)), None)

    @property
    def wanted(self) -> str:
        words = {
            "time": "a time (90, 90s, 10m, 2h)",
            "choice": "one of " + ", ".join(self.choices),
            "list of texts": "a list of texts",
        }.get(self.kind, self.kind if self.kind == "true or false" else f"a {self.kind}")
        bounds = {"more than": self.above, "at least": self.least, "at most": self.most}
        words += "".join(f", {how} {bound:g}" for how, bound in bounds.items() if bound is not None)
        return f"{words}, or null" if self.optional else words

    def check(self, value: Any) -> Any:
        """The value in the setting's own type; BadValueError says what is wrong."""
        if value is None:
            if self.optional:
                return None
            raise BadValueError(f"null is not {self.wanted}")
        if self.kind in {"time", "whole number"}:
            return self._number(value)
        if self.kind == "list of texts":
            if not isinstance(value, list | tuple):
                raise BadValueError(f"{_shown(value)} is not a list; write [{value}]"[:200])
            texts = tuple(_text(each) for each in value)
            if self.key == "notify.commands":
                _check_commands(texts)
            return texts
        if self.kind == "true or false":
            if not isinstance(value, bool):
                raise BadValueError(f"{_shown(value)} is neither true nor false")
            return value
        text = _text(value)
        if self.kind == "choice" and text not in self.choices:
            near = closest(text, self.choices)
            meant = f" (did you mean '{near}'?)" if near else ""
            raise BadValueError(f"'{text[:40]}' is not {self.wanted}{meant}")
        if self.key == "recovery.resume_arg":
            _check_resume_arg(text)
        return text

    def _number(self, value: Any) -> float | int:
        if isinstance(value, str) and self.kind == "time":
            value = parse_duration(value)
        allowed = int if self.kind == "whole number" else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise BadValueError(f"{_shown(value)} is not {self.wanted}")
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        in_range = least <= value <= most and (self.above is None or value > self.above)
        if not in_range or abs(value) > 1e18 or not math.isfinite(value):
            raise BadValueError(f"{_shown(value)} is out of range: {self.wanted}")
        return value if self.kind == "whole number" else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadValueError(f"{_shown(value)} is not a text; put it in quotes")
    if len(value) > _LONGEST_TEXT or "\0" in value:
        raise BadValueError("the text is too long or holds a NUL")
    return value


def _check_resume_arg(text: str) -> None:
    """Found only at the first restart, hours later, a mistake would cost the training."""
    from watchdog_train.core.recovery.plans import AUTO_RESUME, PLACEHOLDERS, names_path

    if text == AUTO_RESUME:
        return
    hint = (
        '--resume-arg "--resume {checkpoint}", or --resume-arg=--resume for a script that finds '
        "its checkpoint itself"
    )
    try:
        words = [word for word in shlex.split(text) if word.strip("-")]
    except ValueError as error:
        message = f"'{text[:40]}' cannot be split into arguments: {error}".rstrip(".")
        raise BadValueError(message, hint=hint) from error
    unknown = set(re.findall(r"\{\w*\}", text)) - set(PLACEHOLDERS)
    if unknown:
        raise BadValueError(f"nothing is known that {min(unknown)[:40]} could stand for", hint=hint)
    if not names_path(text) and not any(word.startswith("-") or "=" in word for word in words):
        raise BadValueError(
            f"'{text[:40]}' is no option and does not say where {{checkpoint}}, the path, belongs",
            hint=hint,
        )


def _check_commands(texts: tuple[str, ...]) -> None:
    from watchdog_train.core.commands import MOST_COMMANDS, parse

    if len(texts) > MOST_COMMANDS:
        raise BadValueError(f"{len(texts)} commands; at most {MOST_COMMANDS} are run")
    try:
        for text in texts:
            parse(text)
    except ValueError as error:
        raise BadValueError(str(error), hint="--on 'stall_declared=notify-send hung'") from error


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value[:40]}'" if isinstance(value, str) else str(value)[:40]


def closest(word: str, candidates: Mapping[str, Any] | tuple[str, ...] | list[str]) -> str | None:
    import difflib

    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


def settings() -> dict[str, Setting]:
    """All settings by key, in the order of the file."""
    return _read_off()[0]


def flags() -> tuple[Setting, ...]:
    return tuple(setting for setting in settings().values() if setting.flag)


def sections() -> dict[str, str]:
    """Sections by key ("" is the file itself), each with what it is about."""
    return _read_off()[1]


@functools.cache
def _read_off() -> tuple[dict[str, Setting], dict[str, str]]:
    """settings() and sections(), in one pass over the types of the policy."""
    found: dict[str, Setting] = {}
    about: dict[str, str] = {}

    def collect(kind: msgspec.inspect.Type, default: Any, key: str) -> None:
        if not isinstance(kind, msgspec.inspect.StructType):
            if isinstance(kind, msgspec.inspect.Metadata):
                found[key] = _setting(key, kind, default)
            return
        known = len(found)
        for field in kind.fields:
            name = f"{key}.{field.name}" if key else field.name
            collect(field.type, getattr(default, field.name), name)
        if len(found) > known:
            about[key] = " ".join((kind.cls.__doc__ or "").split())

    collect(msgspec.inspect.type_info(Policy), Policy(), "")
    return found, about


def children(section: str) -> dict[str, str]:
    """The names directly under a section, each with its full key."""
    keys = [*settings(), *filter(None, sections())]
    return {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == section}


def build(values: Mapping[str, Any], limits: Limits | None = None) -> Policy:
    """The policy with these checked values; all else is as in `limits`, or has its default."""
    nested: dict[str, Any] = msgspec.to_builtins(limits or Limits())
    for key, value in values.items():
        *path, last = key.split(".")
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return msgspec.convert(nested, type=Policy)


def flatten(policy: Policy) -> dict[str, Any]:
    return {key: operator.attrgetter(key)(policy) for key in settings()}


def _setting(key: str, described: msgspec.inspect.Metadata, default: Any) -> Setting:
    kind, optional = described.type, False
    flag, _, metavar = (described.extra or {})["flag"].partition(" ")
    if isinstance(kind, msgspec.inspect.UnionType):
        optional = True
        kind = next(t for t in kind.types if not isinstance(t, msgspec.inspect.NoneType))
    row: dict[str, Any] = {"key": key, "optional": optional, "default": default}
    row |= {"text": (described.extra_json_schema or {})["description"]}
    row |= {"flag": flag, "metavar": metavar or None}
    match kind:
        case msgspec.inspect.BoolType():
            return Setting(kind="true or false", **row)
        case msgspec.inspect.IntType(ge=least, le=most):
            return Setting(kind="whole number", least=least, most=most, **row)
        case msgspec.inspect.FloatType(gt=above, ge=least, le=most):
            if optional:
                above = 0.0  # Meta cannot bound a union; null, not zero, turns a limit off
            return Setting(kind="time", above=above, least=least, most=most, **row)
        case msgspec.inspect.LiteralType(values=values):
            return Setting(kind="choice", choices=tuple(str(value) for value in values), **row)
        case msgspec.inspect.VarTupleType():
            return Setting(kind="list of texts", **row)
        case msgspec.inspect.StrType():
            return Setting(kind="text", **row)
    raise TypeError(f"{key}: a setting of type {kind} has no place in a config file")
