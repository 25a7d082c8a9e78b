"""A leader's unix socket on one machine: in a private directory, for processes of the same user."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from watchdog_train.errors import WtrainError
from watchdog_train.store.places import (
    private_runtime_directory,
    release_runtime_directory,
    shared_bases,
)
from watchdog_train.supervisor.hands.link.channel import Channel

_BASE_CHARS = 60
"""A socket's path has 107 bytes on Linux, 103 on macOS; ours adds 43 at most."""
_MAC_PEER_CREDENTIALS = 1
"""LOCAL_PEERCRED of sys/un.h."""
_BACKLOG = 128


def _folder(job: str, *, make: bool) -> Path | None:
    # Not the runtime directory of a login, which one task of a job may have and another not.
    bases = [base for base in shared_bases() if len(os.fsencode(base)) <= _BASE_CHARS]
    name = blake2b(job.encode(), digest_size=8).hexdigest()
    return private_runtime_directory("link", name, make=make, bases=bases)


class Listener:
    """The leader's socket; there is one leader a job and machine."""

    def __init__(self, job: str) -> None:
        """Listen.

        Raises:
            WtrainError: another leader lives, or there is no place for a socket.
        """
        folder = _folder(job, make=True)
        if folder is None:
            raise _refusal("there is no private directory for the leader's socket", job)
        self._path = folder / "leader"
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            self._take_lock()
            with suppress(FileNotFoundError):
                self._path.unlink()  # of a leader that was killed
            self.socket = _unix_socket()
            self.socket.bind(str(self._path))
            self.socket.listen(_BACKLOG)
        except BlockingIOError as error:
            os.close(self._lock)
            raise _refusal("another leader of this job lives on this machine", job) from error
        except OSError as error:
            os.close(self._lock)
            raise _refusal(f"{error.strerror}: {self._path}", job) from error

    def _take_lock(self) -> None:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def accept(self) -> list[Channel]:
        """New connections of our own user."""
        found = []
        with suppress(OSError):  # nobody waits, or no descriptor is left
            while True:
                link, _ = self.socket.accept()
                if _is_ours(link):
                    found.append(Channel(link))
                else:
                    link.close()
        return found

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()
        release_runtime_directory(self._path.parent, with_content=True)
        os.close(self._lock)


def dial(job: str) -> socket.socket:
    """Connect to the leader of a job on this machine.

    Raises:
        OSError: there is none now.
    """
    folder = _folder(job, make=False)
    if folder is None:
        raise FileNotFoundError(job)
    link = _unix_socket()
    try:
        link.connect(str(folder / "leader"))
        if not _is_ours(link):
            raise PermissionError(job)
    except OSError:
        link.close()
        raise
    return link


def _unix_socket() -> socket.socket:
    if sys.platform == "win32":
        raise AssertionError  # refused before
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    return found


def _is_ours(link: socket.socket) -> bool:
    """Whether our own user is at the other end; the directory says so on other systems."""
    if sys.platform == "linux":
        found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return bool(struct.unpack("3i", found)[1] == os.geteuid())
    if sys.platform == "darwin":
        found = link.getsockopt(0, _MAC_PEER_CREDENTIALS, 76)
        return bool(struct.unpack_from("2I", found)[1] == os.geteuid())
    return sys.platform != "win32"


def _refusal(message: str, job: str) -> WtrainError:
    return WtrainError(
        message,
        context=f"job {job}",
        hint="wtrain status shows who leads it; wtrain stop ends it",
        reference="link-local",
    )
