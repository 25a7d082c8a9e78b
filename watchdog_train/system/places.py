"""Private directories and kinds of file systems, the same on every system; makes nothing."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import platformdirs

ROOM_BYTES = 16 * 1024 * 1024
"""Left on a tmpfs by whoever uses it: a page that cannot be had kills its writer with SIGBUS."""
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
