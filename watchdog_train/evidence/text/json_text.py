"""JSON that somebody brings: py-spy's, our stacks, Flight Recorder dumps; the rest as text."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core.diagnosis.facts import CollectiveFact
from watchdog_train.core.diagnosis.recorder import looks_like_recorder, read_recorder
from watchdog_train.core.diagnosis.stacks import ThreadStack
from watchdog_train.core.model import Value
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.text.reader import Dump
from watchdog_train.evidence.text.roles import Who

_LINES_CAP = 2000
_DEPTH_CAP = 12
_VALUE_CAP = 20_000


class JsonText(Value, frozen=True, kw_only=True):
    """What a file is, JSON or not."""

    dumps: tuple[Dump, ...] = ()
    collectives: tuple[CollectiveFact, ...] = ()
    text: str | None = None
    """To be read as text; None: nothing is left to read."""


def read_json(name: str, text: str, who: Who) -> JsonText:
    """Takes JSON apart; anything else comes back as it is. Never raises."""
    stripped = text.lstrip("\ufeff \t\r\n")
    if not name.lower().endswith(".json") and stripped[:1] not in ("[", "{"):
        return JsonText(text=text)
    try:
        data = msgspec.json.decode(stripped)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return JsonText(text=text)
    if isinstance(data, list):
        dumps = _dumps(stripped, data, who)
        if dumps:
            return JsonText(dumps=dumps)
    if looks_like_recorder(data):
        return JsonText(collectives=read_recorder(data, who.rank))
    return JsonText(text="\n".join(_flat(data)))


def _dumps(text: str, data: list[Any], who: Who) -> tuple[Dump, ...]:
    if not data or not all(isinstance(entry, dict) and "frames" in entry for entry in data):
        return ()
    try:
        threads = msgspec.json.decode(text, type=tuple[ThreadStack, ...])
        return (Dump(tool="wtrain", threads=threads, pid=who.pid),)
    except msgspec.DecodeError:
        pass
    pids = {entry.get("pid") for entry in data if isinstance(entry.get("pid"), int)}
    found = []
    for pid in sorted(pids) or [who.pid]:
        threads_of = pyspy.threads_of(data, pid)
        if threads_of is not None:
            found.append(Dump(tool="py-spy", threads=threads_of, pid=pid))
    return tuple(found)


def _flat(data: Any) -> list[str]:
    """Unknown JSON as lines of `key: value`; strings with their own line breaks."""
    lines: list[str] = []
    stack: list[tuple[str, Any, int]] = [("", data, 0)]
    while stack and len(lines) < _LINES_CAP:
        key, value, depth = stack.pop()
        if isinstance(value, dict) and depth < _DEPTH_CAP:
            stack += [(str(k)[:100], v, depth + 1) for k, v in reversed(list(value.items())[:500])]
        elif isinstance(value, list) and depth < _DEPTH_CAP:
            stack += [(key, entry, depth + 1) for entry in reversed(value[:500])]
        elif isinstance(value, str) and "\n" in value:
            lines += value[:_VALUE_CAP].split("\n")
        elif value is not None:
            lines.append(f"{key}: {value}"[:_VALUE_CAP] if key else str(value)[:_VALUE_CAP])
    return lines
