"""One line of the event log: encoded within a bound, decoded from bytes that nobody vouches for.

Must not touch a file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core import events

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is not ours; a reader refuses it, so a writer never writes one."""

_CUTS = ((65_536, 4096), (4096, 512), (256, 64))
"""Characters of a text and items of a list kept, tried in turn until the line fits."""


def encode_line(event: events.Event) -> bytes:
    """The event as one line with its newline, never longer than MAX_LINE_BYTES.

    Training chooses some of these texts (arguments, error messages, frames), so a text may hold
    lone surrogates, which JSON cannot carry, or megabytes. Such an event is cut rather than lost.
    """
    try:
        line = events.encode(event)
    except UnicodeEncodeError:
        line = events.encode(_cut(event, *_CUTS[0]))
    for characters, items in _CUTS:
        if len(line) < MAX_LINE_BYTES:
            break
        line = events.encode(_cut(event, characters, items))
    return line + b"\n"


def _cut(event: events.Event, characters: int, items: int) -> events.Event:
    shorter = _shorten(events.to_builtins(event), characters, items)
    return msgspec.convert(shorter, type=type(event))


def _shorten(value: Any, characters: int, items: int) -> Any:
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        left_out = len(text) - characters
        return text if left_out <= 0 else f"{text[:characters]}... ({left_out} characters left out)"
    if isinstance(value, dict):
        pairs = list(value.items())[:items]
        return {
            _shorten(key, characters, items): _shorten(each, characters, items)
            for key, each in pairs
        }
    if isinstance(value, list | tuple):
        return [_shorten(each, characters, items) for each in value[:items]]
    return value


class OtherVersionError(ValueError):
    """Another version of wtrain wrote the event; what it means is unknown."""

    def __init__(self, version: int) -> None:
        age = "a newer" if version > events.SCHEMA_VERSION else "another"
        super().__init__(
            f"{age} wtrain wrote this event: it has schema version {version}, "
            f"and this wtrain reads version {events.SCHEMA_VERSION}"
        )


def decode_line(line: bytes) -> events.AnyEvent:
    """The event of one line without its newline.

    Raises:
        OtherVersionError: it is of another version.
        ValueError: it is not an event; the text says why, in words.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line has {len(line)} bytes, more than {MAX_LINE_BYTES}")
    try:
        event = events.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        version = _version_of(line)
        if version not in (None, events.SCHEMA_VERSION):
            raise OtherVersionError(version) from error
        raise ValueError(str(error)) from error
    if event.v != events.SCHEMA_VERSION:
        raise OtherVersionError(event.v)
    return event


def _version_of(line: bytes) -> int | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    version = found.get("v") if isinstance(found, dict) else None
    return version if isinstance(version, int) else None
