"""Encode and decode lines of the event log; read a log that a supervisor has left.

Must not change a file: readers run next to the writer, and with the supervisor dead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from watchdog_train.core import events
from watchdog_train.core.events import AnyEvent, RunFinished
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.errors import WtrainError
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.trusted_files import open_read

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
    """Another version of wtrain wrote the event, whose meaning is unknown."""

    def __init__(self, version: int) -> None:
        age = "a newer" if version > events.SCHEMA_VERSION else "another"
        super().__init__(
            f"{age} wtrain wrote this event: it has schema version {version}, "
            f"and this wtrain reads version {events.SCHEMA_VERSION}"
        )


class _Version(msgspec.Struct):
    v: int


def decode_line(line: bytes) -> events.AnyEvent:
    """The event of one line without its newline.

    OtherVersionError: it is of another version. ValueError: it is no event; its text says why.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line has {len(line)} bytes, more than {MAX_LINE_BYTES}")
    try:
        event = events.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            version = msgspec.json.decode(line, type=_Version).v
            if version != events.SCHEMA_VERSION:
                raise OtherVersionError(version) from error
        raise ValueError(str(error)) from error
    if event.v != events.SCHEMA_VERSION:
        raise OtherVersionError(event.v)
    return event


MAX_LOG_BYTES = 1024 * 1024 * 1024
SPILL_FILE = "events.spill.jsonl"


class LogReading(msgspec.Struct, frozen=True):
    events: tuple[AnyEvent, ...]
    torn_tail: bytes | None
    """Bytes after the last newline, at most MAX_LINE_BYTES: a supervisor was killed in a write, or
    is writing just now.
    """
    spilled: int
    """How many of the events, the newest, are in the local spill file and not yet in the log."""
    problem: str | None
    """Only when not strict: what was skipped, in words."""


def read_events(path: Path, *, strict: bool = True, spill_dir: Path | None = None) -> LogReading:
    """All events of a log, in order, with those that were spilled when its disk failed.

    Unless `strict`, corrupt lines and gaps are skipped and named in `problem`, for status.
    WtrainError: there is no log, it is too large, of another version, or (strict) corrupt.
    """
    try:
        with open_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_LOG_BYTES:
                raise too_large(path, size)
            reading = _parse(path, _lines(file), strict=strict)
    except FileNotFoundError as error:
        raise WtrainError(
            "there is no event log here", context=str(path), reference="event-log-missing"
        ) from error
    except OSError as error:
        raise WtrainError(
            f"the event log cannot be read: {error.strerror}",
            context=str(path),
            reference="event-log-unreadable",
        ) from error
    if spill_dir is None:
        return reading
    last = reading.events[-1].seq if reading.events else 0
    spilled = tuple(event for event, _ in read_spill(spill_dir, after=last))
    return LogReading(reading.events + spilled, reading.torn_tail, len(spilled), reading.problem)


def read_state(run: RunDirectory, *, strict: bool = True) -> State:
    """The state by the log of a run; raises as read_events() does."""
    return replay(read_events(run.events, strict=strict, spill_dir=run.spill_dir).events)


def read_spill(spill_dir: Path, *, after: int) -> tuple[tuple[AnyEvent, bytes], ...]:
    """The spilled events that follow `after` without a gap, each with its line."""
    path = spill_dir / SPILL_FILE
    found: list[tuple[AnyEvent, bytes]] = []
    try:
        with open_read(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_LOG_BYTES:
                return ()
            for line in _lines(file):
                if not line.endswith(b"\n"):
                    break
                event = decode_line(line[:-1])
                if event.seq == after + 1:
                    found.append((event, line))
                    after = event.seq
                elif event.seq > after:
                    break
    except (OSError, ValueError):
        # A spill file is a second copy: what cannot be read of it ends the reading, not the run.
        return tuple(found)
    return tuple(found)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their newlines; the last may have none; a too long one is cut."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            line += b"\n" if rest else b""
        yield line


def _parse(path: Path, lines: Iterable[bytes], *, strict: bool) -> LogReading:
    found: list[AnyEvent] = []
    problems: list[str] = []
    last = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return LogReading(tuple(found), line[:MAX_LINE_BYTES], 0, _summary(path, problems))
        try:
            event = decode_line(line[:-1])
            if event.seq <= last:
                raise ValueError(f"seq {event.seq} comes after {last}")  # noqa: TRY301
        except OtherVersionError as error:
            # Also when not strict: a state without it could be wrong, and nothing would show that.
            raise other_version(f"{path}:{number}", error) from error
        except ValueError as error:
            if strict:
                raise corrupt(path, number, str(error)) from error
            problems.append(f"line {number}: {error}")
            continue
        if event.seq != last + 1:
            gap = f"seq {last + 1} to {event.seq - 1} missing before this line"
            if strict:
                raise corrupt(path, number, gap)
            problems.append(f"line {number}: {gap}")
        last = event.seq
        found.append(event)
    return LogReading(tuple(found), None, 0, _summary(path, problems))


def _summary(path: Path, problems: list[str]) -> str | None:
    if not problems:
        return None
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{path}, {problems[0][:500]}{more}"


def too_large(path: Path, size: int) -> WtrainError:
    return WtrainError(
        f"the log has {size} bytes; more than {MAX_LOG_BYTES} are not read",
        context=str(path),
        hint="look at it with tail; a run does not write that much",
        reference="event-log-too-large",
    )


def other_version(place: str, error: OtherVersionError) -> WtrainError:
    return WtrainError(
        str(error),
        context=place,
        hint="use the wtrain that wrote it, or install the newest one",
        reference="event-log-version",
    )


def corrupt(path: Path, line_number: int | None, why: str) -> WtrainError:
    """The error for a log that is damaged elsewhere than at its very end."""
    place = str(path) if line_number is None else f"{path}:{line_number}"
    return WtrainError(
        f"the event log is damaged: {why[:500]}",
        context=place,
        hint="the lines around it are plain JSON; status shows what can be read",
        reference="event-log-corrupt",
    )


def last_word(run_dir: str) -> RunFinished | None:
    """The end of a run whose supervisor has died, if it had written that."""
    with suppress(WtrainError):
        events = read_events(RunDirectory(Path(run_dir)).events, strict=False).events
        return events[-1] if events and isinstance(events[-1], RunFinished) else None
    return None
