"""Opens files so that no other user decides what wtrain reads, writes or waits for.

A run directory in which wtrain acts is held open. What lies in it is opened relative to that
descriptor, without links, and must belong to the caller or to root. Renaming its parents changes
nothing. Any other file is opened by its path. Either way only regular files are opened, and no
FIFO can block. The owner is read from the open descriptor, never from the path.

Windows opens no directories: there every file is opened by its path, and owners are not compared.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

ENVIRONMENT = "WTRAIN_HELD"
"""Gives a child the held directories and their descriptors; removed from its environment."""
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
if sys.platform != "win32":
    _SAFE |= os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | _NOFOLLOW
PRIVATE = 0o700


class ForeignError(PermissionError):
    """The file or directory belongs to another user, or others may write to it."""

    def __init__(self, why: str, path: object) -> None:
        super().__init__(errno.EPERM, why, str(path))


class _Held(NamedTuple):
    descriptor: int
    owners: frozenset[int]
    """Whose files are used: root's, the caller's, and the caller's name on a squashing server."""


def distrusted(about: os.stat_result) -> str | None:
    """Why wtrain must not obey a file, in words; None where it belongs to the caller or root."""
    why = distrusted_owner(about)
    return "others may write to it" if why is None and _others_write(about) else why


def distrusted_owner(about: os.stat_result) -> str | None:
    """distrusted() without its mode: others may write to it, but it is the caller's or root's."""
    if sys.platform == "win32" or about.st_uid in (0, os.geteuid()):
        return None
    return f"it belongs to {owner_name(about.st_uid)}"


def owner_name(uid: int) -> str:
    if sys.platform != "win32":
        import pwd

        with suppress(KeyError):
            return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def _others_write(about: os.stat_result) -> bool:
    if sys.platform == "win32":
        return False
    # A group of the same number as the user is that user's private group.
    group = about.st_mode & stat.S_IWGRP and about.st_gid != about.st_uid
    return bool(about.st_mode & stat.S_IWOTH or group)


def hold(folder: str | os.PathLike[str]) -> None:
    """Open a run directory to act in it, and close it to others; again if it was removed.

    ForeignError: it belongs to another user. OSError: it cannot be opened, or is a link.
    """
    root = os.path.abspath(folder)
    if not _is_there(root) and (held := _open_own(root)) is not None:
        _HELD[root] = held  # the old descriptor stays open: a thread may be using it
        if sys.platform != "win32" and _others_write(os.fstat(held.descriptor)):
            with suppress(OSError):  # a file system without modes
                os.fchmod(held.descriptor, PRIVATE)


def _is_there(root: str) -> bool:
    with suppress(OSError):  # ESTALE
        return root in _HELD and os.fstat(_HELD[root].descriptor).st_nlink > 0
    return False


def release(folder: str | os.PathLike[str]) -> None:
    """Close a directory that hold() has opened."""
    if (held := _HELD.pop(os.path.abspath(folder), None)) is not None:
        os.close(held.descriptor)


def is_own(folder: str | os.PathLike[str]) -> bool:
    """Whether hold() would take a directory."""
    try:
        held = _open_own(os.path.abspath(folder))
    except OSError:
        return False
    if held is not None:
        os.close(held.descriptor)
    return True


def _open_own(root: str) -> _Held | None:
    if sys.platform == "win32":
        return None
    descriptor = os.open(root, _FOLDER)
    owner = os.fstat(descriptor).st_uid
    owners = frozenset((0, os.geteuid(), owner))
    if owner in (0, os.geteuid()) or owner == _owner_of_ours(descriptor):
        return _Held(descriptor, owners)
    os.close(descriptor)
    raise ForeignError(f"it belongs to {owner_name(owner)}", root)


def _owner_of_ours(folder: int) -> int | None:
    """The owner of a file that we make there: a server with root squash gives root another name."""
    name = f".owner-{os.urandom(8).hex()}"
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            return os.fstat(descriptor).st_uid
        finally:
            os.close(descriptor)
            os.unlink(name, dir_fd=folder)
    return None


def for_child() -> tuple[dict[str, str], tuple[int, ...]]:
    """Variables and descriptors with which our child works in the held directories."""
    if not _HELD:
        return {}, ()
    import json  # not needed by who only reads

    numbers = {root: held.descriptor for root, held in _HELD.items()}
    return {ENVIRONMENT: json.dumps(numbers)}, tuple(numbers.values())


def _inherited() -> dict[str, _Held]:
    found: dict[str, _Held] = {}
    text = os.environ.pop(ENVIRONMENT, None)
    if sys.platform == "win32" or not text:
        return found
    import json

    with suppress(OSError, ValueError, AttributeError, TypeError):
        for root, number in json.loads(text).items():
            os.set_inheritable(number, False)
            owners = frozenset((0, os.geteuid(), os.fstat(number).st_uid))
            found[root] = _Held(number, owners)
    return found


_HELD = _inherited()


class _Place:
    """Where a file is opened: a name, the folder it is relative to, and its permitted owners.

    Both are None outside of held directories. No generator: it is entered for every slot.
    """

    __slots__ = ("_opened", "folder", "name", "owners")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.path.abspath(path)
        self.folder: int | None = None
        self.owners: frozenset[int] | None = None
        self._opened: list[int] = []

    def __enter__(self) -> tuple[str, int | None, frozenset[int] | None]:
        for root, held in tuple(_HELD.items()):
            if self.name.startswith(root + os.sep):
                *folders, self.name = self.name[len(root) + 1 :].split(os.sep)
                self.folder, self.owners = held
                try:
                    for each in folders:
                        self.folder = os.open(each, _FOLDER, dir_fd=self.folder)
                        self._opened.append(self.folder)
                except OSError:
                    self.__exit__()
                    raise
                break
        return self.name, self.folder, self.owners

    def __exit__(self, *_: object) -> None:
        for descriptor in self._opened:
            os.close(descriptor)


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    mode: int = 0o600,
    follow: bool = False,
    trusted: bool = False,
) -> int:
    """A descriptor of a regular file.

    `flags`: not O_TRUNC, which would come before the checks. `mode`: of a file that is made.
    `follow`: whether the file may be a link; never in a held directory. `trusted`: refuse what
    distrusted() names. ForeignError: it belongs to another user. OSError: it cannot be opened, is a
    link, or is no regular file.
    """
    with _Place(path) as (name, folder, owners):
        flags |= _SAFE | (_NOFOLLOW if folder is not None or not follow else 0)
        try:
            descriptor = os.open(name, flags, mode, dir_fd=folder)
        except OSError as error:
            words = {errno.ELOOP: "it is a link", errno.ENXIO: "it is not a regular file"}
            if error.errno in words:
                raise OSError(error.errno, words[error.errno], str(path)) from error
            raise
    about = os.fstat(descriptor)
    problem: OSError | None = None
    if not stat.S_ISREG(about.st_mode):
        problem = OSError(errno.EINVAL, "it is not a regular file", str(path))
    elif owners is not None and about.st_uid not in owners:
        problem = ForeignError(f"it belongs to {owner_name(about.st_uid)}", path)
    elif trusted and (why := distrusted(about)) is not None:
        problem = ForeignError(why, path)
    if problem is not None:
        os.close(descriptor)
        raise problem
    return descriptor


def refuse_foreign_links(path: str | os.PathLike[str]) -> None:
    """Raise ForeignError for a path through a link of another user, maybe to our own file."""
    if sys.platform == "win32":
        return
    place = Path(os.path.abspath(path))
    for each in (*reversed(place.parents), place):
        with suppress(FileNotFoundError, NotADirectoryError):
            about = os.lstat(each)
            if stat.S_ISLNK(about.st_mode) and about.st_uid not in (0, os.geteuid()):
                raise ForeignError(f"{each} is a link of {owner_name(about.st_uid)}", path)


def open_read(
    path: str | os.PathLike[str], *, follow: bool = False, trusted: bool = False
) -> BinaryIO:
    """open_regular() to read, as a file."""
    return os.fdopen(open_regular(path, follow=follow, trusted=trusted), "rb")


def read_regular(
    path: str | os.PathLike[str], cap_bytes: int, *, from_end: bool = False, follow: bool = False
) -> tuple[bytes, int] | None:
    """The first (or last) bytes and the size of a regular file; None for anything else."""
    # By descriptor: hundreds of slots are read every second.
    try:
        descriptor = open_regular(path, follow=follow)
    except OSError:
        return None
    parts = []
    try:
        size = os.fstat(descriptor).st_size
        if from_end and size > cap_bytes:
            os.lseek(descriptor, size - cap_bytes, os.SEEK_SET)
        while cap_bytes > 0 and (part := os.read(descriptor, cap_bytes)):
            parts.append(part)
            cap_bytes -= len(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts), size


@contextmanager
def entries(folder: str | os.PathLike[str]) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a folder, to be used while it is open; OSError: it cannot be listed."""
    with _Place(folder) as (name, above, _), ExitStack() as opened:
        place: str | int = name
        if above is not None:
            place = os.open(name, _FOLDER, dir_fd=above)
            opened.callback(os.close, place)
        yield opened.enter_context(os.scandir(place))


def names(folder: str | os.PathLike[str]) -> list[str]:
    """entries() by name, in any order."""
    with entries(folder) as found:
        return [entry.name for entry in found]


def make_folder(folder: Path) -> None:
    """Make a private folder and its parents, unless it is there; OSError: it cannot be made."""
    try:
        _make_one(folder)
    except FileNotFoundError:
        make_folder(folder.parent)
        _make_one(folder)
    if os.path.abspath(folder) in _HELD:  # it had been removed
        hold(folder)


def _make_one(folder: Path) -> None:
    with _Place(folder) as (name, above, _), suppress(FileExistsError):
        os.mkdir(name, PRIVATE, dir_fd=above)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file if it is there; OSError: it stays."""
    with suppress(FileNotFoundError), _Place(path) as (name, folder, _):
        os.unlink(name, dir_fd=folder)


def rename(source: Path, target: Path) -> None:
    """Rename our file in its folder, replacing a file of that name.

    ForeignError: that one belongs to another user. OSError: the file keeps its name.
    """
    with _Place(target) as (name, folder, _):
        before = source.name if folder is not None else source
        with suppress(FileNotFoundError):
            # Compared with our own file there: a server may give all files one owner.
            ours = os.lstat(before, dir_fd=folder).st_uid if sys.platform != "win32" else 0
            owner = os.lstat(name, dir_fd=folder).st_uid
            if owner not in (0, ours):
                raise ForeignError(f"it belongs to {owner_name(owner)}", target)
        os.replace(before, name, src_dir_fd=folder, dst_dir_fd=folder)
