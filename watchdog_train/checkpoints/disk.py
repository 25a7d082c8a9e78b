"""Bounded reads of what training wrote. Must never block on a FIFO, nor believe a claimed size."""

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import nlargest
from itertools import islice
from math import inf
from typing import Any, BinaryIO

from msgspec.structs import replace

from watchdog_train.core.model import SaveRecord, Value
from watchdog_train.core.model.recovery import SUFFIXES
from watchdog_train.trusted_files import open_read

JSON_CAP_BYTES = 64 * 1024 * 1024
"""trainer_state.json keeps the complete log history: megabytes are normal."""
DIRECTORY_CAP = 10_000
"""Entries read of one directory, and by one search for checkpoints in all."""
_OF_CHECKPOINTS = (*SUFFIXES, ".tar", ".pkl", ".model", ".safetensors", ".distcp")
SKIP = frozenset(("wandb", "wtrain-runs", "__pycache__", "node_modules", "site-packages", "mlruns"))
_PRESENT_CAP = 20_000
"""Entries read when a run begins, or for saves that were moved to another file system."""
_PRESENT_DEPTH = 5
_MOVED_EACH = 2_000
"""Of these entries in one directory: a larger one is a data set."""
_MOVED_S = 2.0
_NAMES_CAP = 100_000
DEPTH = 2
"""Levels of directories below a checkpoint whose files belong to it."""

Sizes = dict[str, tuple[int, int]]
"""Name to size in bytes and mtime in nanoseconds."""


class UnreadableError(Exception):
    """A file cannot be read; the text has the reason, in words for a person."""


class DamagedError(Exception):
    """The file was read and is not valid; the text has the reason."""


@contextmanager
def _in_words() -> Iterator[None]:
    """Errors of the file system as UnreadableError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UnreadableError(getattr(error, "strerror", None) or str(error)) from error


class Entry(Value):
    """One name in a directory, symbolic links followed."""

    name: str
    is_file: bool
    is_directory: bool
    size: int
    mtime_ns: int
    link: bool


class Listing(Value):
    path: str
    entries: tuple[Entry, ...]
    cut: bool
    """There were more entries than were read."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.entries)

    def sizes(self, belongs: Callable[[str], object]) -> Sizes:
        """Of the files whose names match."""
        files = (entry for entry in self.entries if entry.is_file and belongs(entry.name))
        return {entry.name: (entry.size, entry.mtime_ns) for entry in files}


def list_directory(path: str, limit: int) -> Listing:
    """The entries of a directory, sorted by name; of more than `limit` the newest.

    Names that are not UTF-8 are left out: no event and no answer in JSON could hold them.
    """
    entries = []
    with _in_words(), os.scandir(path) as scan:
        found = list(islice(scan, 10 * limit + 1))
    for item in found:
        with suppress(OSError, UnicodeEncodeError):  # a dangling link, removed, or not UTF-8
            item.name.encode()
            entries.append(_entry(item.name, item.stat(), item.is_symlink()))
    if cut := len(entries) > limit:
        entries = nlargest(limit, entries, key=lambda entry: entry.mtime_ns)
    entries.sort(key=lambda entry: entry.name)
    return Listing(path=path, entries=tuple(entries), cut=cut or len(found) > 10 * limit)


def list_one(path: str) -> Listing:
    """The folder of a file as if nothing else were in it, or a directory that is a checkpoint."""
    with _in_words():
        status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return list_directory(path, DIRECTORY_CAP)
    folder, name = os.path.split(path)
    return Listing(path=folder, entries=(_entry(name, status, os.path.islink(path)),), cut=False)


def _entry(name: str, status: os.stat_result, link: bool) -> Entry:
    return Entry(
        name=name,
        is_file=stat.S_ISREG(status.st_mode),
        is_directory=stat.S_ISDIR(status.st_mode),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        link=link,
    )


def open_regular(path: str) -> BinaryIO:
    """Open for reading; UnreadableError for anything but a regular file."""
    with _in_words():
        return open_read(path, follow=True)


def read_capped(path: str, cap_bytes: int) -> bytes:
    """The complete file; UnreadableError if it is larger."""
    with open_regular(path) as file, _in_words():
        data = file.read(cap_bytes + 1)
    if len(data) > cap_bytes:
        raise UnreadableError(f"it is larger than the {cap_bytes} bytes that are read of it")
    return data


def is_plain_name(name: object) -> bool:
    """Whether a name that a file contains is that of a neighbour of this file."""
    return isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".", "..")


def parse_json(data: bytes) -> Any:
    """The value; DamagedError if it does not parse or nests too deeply for the parser."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its JSON does not parse ({type(error).__name__})") from error


def read_json(path: str) -> Any:
    return parse_json(read_capped(path, JSON_CAP_BYTES))


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
        with suppress(UnreadableError):
            listing = list_directory(os.path.join(path, prefix), DIRECTORY_CAP - len(sizes))
            sizes |= {f"{prefix}{name}": size for name, size in listing.sizes(bool).items()}
            if level < DEPTH:
                found = (one for one in listing.entries if one.is_directory and not one.link)
                pending += [(f"{prefix}{one.name}/", level + 1) for one in found]
    return sizes


class Following:
    """The present paths of noted saves: they, or their folders, may have been renamed since.

    After a move to another file system they are copies, searched `below` by size and time.
    """

    def __init__(self, below: Iterable[str] = ()) -> None:
        self._below = tuple(below)
        self._names: dict[str, dict[int, str]] = {}
        self._moved: dict[tuple[int, int], list[str]] | None = None

    def now(self, save: SaveRecord) -> SaveRecord | None:
        """The record with its present path; None if the save is gone, or was overwritten."""
        if _is_as_noted(save, save.path):
            return save
        path = self._find(save.path, save.inodes) if save.inodes else None
        if path is None or not _is_as_noted(save, path):
            path = self._find_copy(save) if save.files else None
        if path is None:
            return None
        files = save.files
        if tuple(files) == (os.path.basename(save.path),):
            files = {os.path.basename(path): next(iter(files.values()))}
        return replace(save, path=path, files=files)

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

    def _find_copy(self, save: SaveRecord) -> str | None:
        """The same name goes before another one."""
        if self._moved is None:
            self._moved = {}
            files, _ = _files_below(self._below, bool, _MOVED_EACH, _MOVED_S, links=True)
            for path, size in files.items():
                self._moved.setdefault(size, []).append(path)
        name, noted = max(save.files.items(), key=lambda item: item[1])
        paths = sorted(self._moved.get(noted, ()), key=lambda path: not path.endswith(f"/{name}"))
        if name == os.path.basename(save.path):
            return next(iter(paths), None)
        return next((path[: -len(name) - 1] for path in paths if path.endswith(f"/{name}")), None)

    def _listed(self, folder: str) -> dict[int, str]:
        if folder not in self._names:
            self._names[folder] = {}
            with suppress(OSError), os.scandir(folder) as scan:
                self._names[folder] = {item.inode(): item.name for item in islice(scan, _NAMES_CAP)}
        return self._names[folder]


def _is_as_noted(save: SaveRecord, path: str) -> bool:
    """Whether its main file has the noted size and time: an inode may be used again."""
    if not save.files:
        return os.path.exists(path)
    name, noted = max(save.files.items(), key=lambda item: item[1])
    file = path if name == os.path.basename(save.path) else os.path.join(path, name)
    with suppress(OSError):
        status = os.stat(file)
        return noted == (status.st_size, status.st_mtime_ns)
    return False


class Present(Value):
    """What was there when a run began, if it may be of a checkpoint."""

    roots: tuple[str, ...]
    files: dict[str, tuple[int, int]]
    """Size and mtime by real path."""
    complete: bool = False
    """Nothing below the roots was left out."""

    def held(self, path: str, sizes: Sizes) -> bool | None:
        """Whether a checkpoint was there unchanged; None if that was not recorded."""
        path = os.path.realpath(path)
        single = len(sizes) == 1 and os.path.basename(path) in sizes
        files = {path if single else os.path.join(path, name): sizes[name] for name in sizes}
        known = {name: size for name, size in files.items() if _is_of_checkpoint(name)}
        if known and all(self.files.get(name) == size for name, size in known.items()):
            return True
        roots = [root for root in self.roots if path.startswith(os.path.join(root, ""))]
        above = [path[len(root) :].split(os.sep)[1:-1] for root in roots]
        looked = self.complete and any(all(map(is_entered, names)) for names in above)
        return False if looked else None


def is_entered(name: str) -> bool:
    return not name.startswith(".") and name not in SKIP


def _is_of_checkpoint(path: str) -> bool:
    return path.endswith(_OF_CHECKPOINTS) or "." not in os.path.basename(path)


def named_directories(argv: Iterable[str], cwd: str, named: Iterable[str] = ()) -> tuple[str, ...]:
    """Existing directories: the named ones, those in a command, and the one it runs in."""
    values = (word.rpartition("=")[2] for word in argv)
    places = (os.path.join(cwd, each) for each in (*named, *values, cwd))
    return tuple(path for path in places if os.path.isabs(path) and os.path.isdir(path))


def list_present(directories: Iterable[str]) -> Present:
    """The files of checkpoints below some directories; links are not followed."""
    roots = tuple(dict.fromkeys(map(os.path.realpath, directories)))
    files, complete = _files_below(roots, _is_of_checkpoint, _PRESENT_CAP, inf, links=False)
    return Present(roots=roots, files=files, complete=complete)


def _files_below(
    roots: Iterable[str], fits: Callable[[str], bool], each: int, for_s: float, *, links: bool
) -> tuple[Sizes, bool]:
    """Files by path and whether that is all, `each` of a directory; none of wtrain's own."""
    pending = deque((root, 0) for root in dict.fromkeys(map(os.path.realpath, roots)))
    seen: set[str] = set()
    files: Sizes = {}
    left, deep, until = _PRESENT_CAP, False, time.monotonic() + for_s
    while pending and left > 0 and time.monotonic() < until:
        folder, depth = pending.popleft()
        with suppress(OSError), os.scandir(folder) as scan:
            items = list(islice(scan, min(left, each)))
            left -= len(items)
            if {"events.jsonl", "attempts"}.issubset(item.name for item in items):
                continue
            for item in items:
                if item.is_dir(follow_symlinks=links):
                    deep = deep or depth >= _PRESENT_DEPTH
                    path = os.path.realpath(item.path) if item.is_symlink() else item.path
                    if depth < _PRESENT_DEPTH and is_entered(item.name) and path not in seen:
                        seen.add(path)
                        pending.append((path, depth + 1))
                elif fits(item.path) and item.is_file(follow_symlinks=False):
                    status = item.stat()
                    files[item.path] = (status.st_size, status.st_mtime_ns)
    return files, left > 0 and not deep
