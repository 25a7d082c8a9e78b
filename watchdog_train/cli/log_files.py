"""The captured output of attempts: which files there are, and their last lines.

Must not interpret the output; control sequences are removed for a terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from watchdog_train.report import words
from watchdog_train.store.run_paths import TIMES_SUFFIX, RunDirectory
from watchdog_train.trusted_files import open_read

BLOCK_BYTES = 1 << 16
MAX_TAIL_BYTES = 64 << 20
TIMES_BYTES = 16 << 20
ATTEMPTS_LISTED = 100_000
_ATTEMPT = re.compile(r"[0-9]{4,9}")

StreamName = Literal["output", "stdout", "stderr"]


class LogStream(msgspec.Struct, frozen=True):
    name: StreamName
    path: Path
    of_rank: bool = False
    """Of one rank alone."""


def streams_of(attempt_dir: Path) -> tuple[LogStream, ...]:
    names: tuple[StreamName, ...] = ("output", "stdout", "stderr")
    streams = (LogStream(name, attempt_dir / f"{name}.log") for name in names)
    return tuple(stream for stream in streams if any(_parts(stream.path)))


def rank_streams_of(attempt_dir: Path, rank: int) -> tuple[LogStream, ...]:
    """The streams of one rank, where its launcher separates the output of ranks."""
    streams = streams_of(attempt_dir / "ranks" / str(rank))
    return tuple(LogStream(stream.name, stream.path, of_rank=True) for stream in streams)


def has_rank_files(attempt_dir: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(attempt_dir / "ranks") as entries:
        return next(entries, None) is not None
    return False


def attempts_in(run: RunDirectory) -> tuple[int, ...]:
    try:
        with os.scandir(run.attempts) as entries:
            names = [entry.name for _, entry in zip(range(ATTEMPTS_LISTED), entries, strict=False)]
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if _ATTEMPT.fullmatch(name)))


def modified_at(path: Path) -> float:
    """When a file was last written, 0 if it is missing."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _parts(path: Path) -> tuple[Path, ...]:
    """The files of one stream that exist, oldest first: the keeper renames a full one to .1."""
    both = (path.with_name(f"{path.name}.1"), path)
    return tuple(part for part in both if part.is_file() and not part.is_symlink())


def since_moment(path: Path, at: float) -> Iterator[bytes]:
    """The output since a time (Unix seconds), beginning up to ten seconds before it; 0: all."""
    for part in _parts(path):
        if modified_at(part) < at:
            continue
        with contextlib.suppress(OSError), open_read(part) as file:
            file.seek(_offset_at(part, at))
            while block := file.read(BLOCK_BYTES):
                yield block


def _offset_at(part: Path, at: float) -> int:
    """The size of the file at that time, by the keeper's list; 0 if that is missing."""
    offset = 0
    if at <= 0.0:
        return offset
    with (
        contextlib.suppress(OSError),
        open_read(part.with_name(f"{part.name}{TIMES_SUFFIX}")) as file,
    ):
        for line in file.read(TIMES_BYTES).splitlines():
            when, _, size = line.partition(b" ")
            if not when.replace(b".", b"").isdigit() or not size.isdigit() or float(when) > at:
                break
            offset = int(size)
    return offset


def tail(path: Path, lines: int) -> bytes:
    """The last lines of a stream, its older file included."""
    found = b""
    for part in reversed(_parts(path)):
        missing = lines - found.count(b"\n")
        if missing <= 0:
            break
        found = _tail_of_file(part, missing) + found
    return found


def _tail_of_file(path: Path, lines: int) -> bytes:
    if lines <= 0:
        return b""
    try:
        with open_read(path) as file:
            at = size = file.seek(0, os.SEEK_END)
            data = b""
            # The newline that ends the file does not begin another line.
            while at > 0 and data[:-1].count(b"\n") < lines and size - at < MAX_TAIL_BYTES:
                step = min(at, max(BLOCK_BYTES, size - at))
                at -= step
                file.seek(at)
                data = file.read(step) + data
    except OSError:
        return b""
    parts = data.split(b"\n")
    ended = 1 if data.endswith(b"\n") else 0
    return b"\n".join(parts[-(lines + ended) :])


def last_lines(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines as text that is safe to show, of each progress bar only its last state."""
    shown = []
    for line in tail(path, 4 * lines).split(b"\n"):
        bar = [part for part in line.split(b"\r") if part.strip()]
        text = words.clean(bar[-1].decode("utf-8", "replace"), 400) if bar else ""
        if text:
            shown.append(text)
    return tuple(shown[-lines:])
