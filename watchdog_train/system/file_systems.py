"""Private directories of this user, on local memory where there is some; kinds of file systems."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from watchdog_train.trusted_files import owner_name

ROOM_BYTES = 16 * 1024 * 1024
"""Left free on a tmpfs by every writer: without a free page SIGBUS kills the writer."""
_NETWORK_FILE_SYSTEMS_TEXT = """
    9p afs beegfs ceph cifs coda davfs fuse.ceph fuse.davfs fuse.gcsfuse fuse.glusterfs
    fuse.goofys fuse.juicefs fuse.mount.s3 fuse.mountpoint-s3 fuse.rclone fuse.s3fs
    fuse.sshfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 quobyte
    smb3 smbfs wekafs webdav
"""
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK_FILE_SYSTEMS_TEXT.split())


def private_directory(run_id: str, *preferred: Path) -> Path | None:
    """Where the slots of a run may lie on this machine, None when there is no such place."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    for parent in _candidates(preferred):
        if _usable(parent):
            return parent / f"wtrain-{user}-{run_id}"
    return None


def _candidates(preferred: tuple[Path, ...]) -> Iterator[Path]:
    yield from preferred
    if named := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(named)
    import platformdirs  # 8 ms that `wtrain --version` does not need

    with suppress(OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that XDG_RUNTIME_DIR is not set
        yield Path(platformdirs.user_runtime_dir())


def _usable(directory: Path) -> bool:
    with suppress(OSError):
        return (
            directory.is_dir()
            and os.access(directory, os.W_OK | os.X_OK)
            and shutil.disk_usage(directory).free >= ROOM_BYTES
        )
    return False


def state_directory() -> Path:
    """Where this user's list of live runs and crash reports are kept; not made."""
    import platformdirs  # 8 ms that `wtrain --version` does not need

    return Path(platformdirs.user_state_dir("wtrain", appauthor=False))


def private_runtime_directory(
    purpose: str, run_id: str, *, make: bool, bases: Iterable[Path] | None = None
) -> Path | None:
    """A directory that only this user can enter, on memory where there is some.

    The same purpose and run give the same place, so that readers and an adopting supervisor find
    it. None if it is missing and not to be made, or every candidate is full, read-only or foreign:
    all users share these places, so a directory of another user is never entered.
    """
    for top in _tops(purpose, bases):
        if _is_private(top, make=make) and _is_private(top / run_id, make=make):
            return top / run_id
    return None


def why_denied(purpose: str, bases: Iterable[Path] | None = None) -> str:
    """Why private_runtime_directory() cannot make one, at each place."""
    return "; ".join(map(_denied_by, _tops(purpose, bases))) or "no such place is known"


def _denied_by(top: Path) -> str:
    try:
        owner = top.lstat().st_uid
    except OSError:
        return f"{top.parent} takes no directory"
    if hasattr(os, "getuid") and owner != os.getuid():
        return f"{top} belongs to {owner_name(owner)}"
    return f"{top} is no directory for you alone, or takes nothing"


def _tops(purpose: str, bases: Iterable[Path] | None) -> Iterator[Path]:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    for base in runtime_bases() if bases is None else bases:
        yield base / f"wtrain-{user}-{purpose}"


def release_runtime_directory(path: Path, *, with_content: bool) -> None:
    """Remove a directory of private_runtime_directory(); a non-empty one only `with_content`."""
    with suppress(OSError):
        if with_content:
            shutil.rmtree(path)
        else:
            path.rmdir()
        # The last run of this user takes the folder above along.
        path.parent.rmdir()


def runtime_bases() -> tuple[Path, ...]:
    """Where private local memory may be: the runtime directory, then shared memory, then /tmp."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return ((Path(own),) if os.path.isabs(own) else ()) + shared_bases()


def shared_bases() -> tuple[Path, ...]:
    """Without the runtime directory, which a session by cron or ssh may have or not."""
    candidates = ("/dev/shm", tempfile.gettempdir())  # noqa: S108
    return tuple(Path(each) for each in candidates if os.path.isabs(each))


def _is_private(path: Path, *, make: bool) -> bool:
    try:
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or not os.access(path, os.W_OK | os.X_OK):
        return False
    return not hasattr(os, "getuid") or (
        found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    )
