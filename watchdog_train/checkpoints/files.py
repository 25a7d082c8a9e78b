"""Bounded reads of what training wrote. Must never block on a FIFO, nor believe a claimed size."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO, Literal

import msgspec

from watchdog_train.core.model import SaveRecord, Value
from watchdog_train.trusted_files import open_read

JSON_CAP_BYTES = 64 * 1024 * 1024
"""trainer_state.json keeps the whole log history: megabytes are normal."""
DIRECTORY_CAP = 10_000
"""Entries looked at in one directory."""
_NAMES_CAP = 100_000
"""Names read of one directory."""
_DEPTH = 2
"""Levels of directories below a checkpoint whose files belong to it."""

Sizes = dict[str, tuple[int, int]]
"""Name to size in bytes and mtime in nanoseconds."""


class UnreadableError(Exception):
    """The file cannot be had; the text says why, in words for a person."""


class DamagedError(Exception):
    """The file was read and is not whole; the text says why."""


class Entry(Value):
    """One name in a directory, symbolic links followed."""

    name: str
    kind: Literal["file", "directory", "other"]
    size: int
    mtime_ns: int
    link: bool


class Listing(Value):
    """What a directory holds."""

    path: str
    entries: tuple[Entry, ...]
    cut: bool
    """There was more than was looked at."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the entries."""
        return frozenset(entry.name for entry in self.entries)

    def sizes(self, belongs: Callable[[str], object]) -> Sizes:
        """Of the files whose names fit."""
        return {
            entry.name: (entry.size, entry.mtime_ns)
            for entry in self.entries
            if entry.kind == "file" and belongs(entry.name)
        }


def list_directory(path: str, limit: int) -> Listing:
    """The entries of a directory, sorted by name, at most `limit` of them.

    Names that are not UTF-8 are left out: no event and no answer in JSON could hold them.

    Raises:
        UnreadableError: not a directory, or no permission.
    """
    entries = []
    try:
        with os.scandir(path) as scan:
            found = list(islice(scan, limit + 1))
    except (OSError, ValueError) as error:
        raise UnreadableError(_words(error)) from error
    for item in found[:limit]:
        try:
            item.name.encode()
            link = item.is_symlink()
            status = item.stat()
        except (OSError, UnicodeEncodeError):  # a dangling link, removed meanwhile, or not UTF-8
            continue
        entries.append(
            Entry(
                name=item.name,
                kind=_kind(status.st_mode),
                size=status.st_size,
                mtime_ns=status.st_mtime_ns,
                link=link,
            )
        )
    return Listing(
        path=path,
        entries=tuple(sorted(entries, key=lambda entry: entry.name)),
        cut=len(found) > limit,
    )


def _kind(mode: int) -> Literal["file", "directory", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        UnreadableError: missing, not a regular file, or no permission.
    """
    try:
        return open_read(path, follow=True)
    except (OSError, ValueError) as error:
        raise UnreadableError(_words(error)) from error


def read_capped(path: str, cap_bytes: int) -> bytes:
    """The whole file.

    Raises:
        UnreadableError: as open_regular, or larger than the cap.
    """
    with open_regular(path) as file:
        try:
            data = file.read(cap_bytes + 1)
        except OSError as error:
            raise UnreadableError(_words(error)) from error
    if len(data) > cap_bytes:
        raise UnreadableError(f"it is larger than the {cap_bytes} bytes that are read of it")
    return data


def is_plain_name(name: object) -> bool:
    """Whether what a file names lies in the directory of that file."""
    return isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".", "..")


def parse_json(data: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        DamagedError: it does not parse, or nests deeper than the parser goes.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its JSON does not parse ({type(error).__name__})") from error


def sizes_of(path: str) -> Sizes:
    """Size and mtime of a file, or of every regular file of a directory by relative name."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return {}
    if not stat.S_ISDIR(status.st_mode):
        return {os.path.basename(path): (status.st_size, status.st_mtime_ns)}
    sizes: Sizes = {}
    pending = [("", 0)]
    while pending and len(sizes) < DIRECTORY_CAP:
        prefix, level = pending.pop()
        try:
            listing = list_directory(os.path.join(path, prefix), DIRECTORY_CAP - len(sizes))
        except UnreadableError:
            continue
        for entry in listing.entries:
            name = f"{prefix}{entry.name}"
            if entry.kind == "file":
                sizes[name] = (entry.size, entry.mtime_ns)
            elif entry.kind == "directory" and level < _DEPTH and not entry.link:
                pending.append((f"{name}/", level + 1))
    return sizes


class Following:
    """Where noted saves are now: they, or the folders they are in, may have been renamed since."""

    def __init__(self) -> None:
        self._names: dict[str, dict[int, str]] = {}

    def now(self, save: SaveRecord) -> SaveRecord | None:
        """The record with its present path; None where the save is gone, or was written over."""
        if _is_as_noted(save, save.path):
            return save
        path = self._find(save.path, save.inodes)
        if path is None or not save.inodes or not _is_as_noted(save, path):
            return None
        files = save.files
        if tuple(files) == (os.path.basename(save.path),):
            files = {os.path.basename(path): next(iter(files.values()))}
        return msgspec.structs.replace(save, path=path, files=files)

    def _find(self, path: str, inodes: Sequence[int]) -> str | None:
        with suppress(OSError):
            if not inodes or os.stat(path).st_ino == inodes[0]:
                return path
        above = self._find(os.path.dirname(path), inodes[1:]) if inodes else None
        for folder in (above, os.path.dirname(above)) if above is not None else ():
            name = self._listed(folder).get(inodes[0])
            if name is not None:
                return os.path.join(folder, name)
        return None

    def _listed(self, folder: str) -> dict[int, str]:
        if folder not in self._names:
            self._names[folder] = {}
            with suppress(OSError), os.scandir(folder) as scan:
                self._names[folder] = {item.inode(): item.name for item in islice(scan, _NAMES_CAP)}
        return self._names[folder]


def _is_as_noted(save: SaveRecord, path: str) -> bool:
    """Whether its main file has the noted size and time: an inode may be used again."""
    name, noted = max(save.files.items(), key=lambda item: item[1], default=("", None))
    file = path if name == os.path.basename(save.path) else os.path.join(path, name)
    try:
        status = os.stat(file)
    except OSError:
        return False
    return noted is None or tuple(noted) == (status.st_size, status.st_mtime_ns)
