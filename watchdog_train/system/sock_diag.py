"""Bytes of TCP sockets by inode, asked from the kernel through NETLINK_SOCK_DIAG.

/proc/PID/io does not count what arrives by recv(), so a slow download looks idle without this.
It must not block: the kernel answers a dump at once or not at all.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

if sys.platform != "linux":
    raise ImportError("only Linux answers")

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR = 2
NLMSG_DONE = 3
INET_DIAG_INFO = 2
STATES_WITH_DATA = 0xFFF & ~(1 << 10) & ~(1 << 6)  # neither LISTEN nor TIME_WAIT
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=QQ")
MESSAGE_BYTES = 72
COOKIE_OFFSET = 44
INODE_OFFSET = 68
COUNTERS_OFFSET = 120  # tcpi_bytes_acked, then tcpi_bytes_received
TIMEOUT_S = 1.0
MAX_REPLIES = 4096


class TcpCounter:
    """Bytes that the sockets of a tree have moved; a closed socket's bytes stay counted."""

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}
        self._closed_bytes = 0

    def total(self, pids: Iterable[int]) -> int | None:
        """So far, never less than before; None when the system does not tell."""
        inodes = _socket_inodes(pids)
        if inodes is None:
            return None
        try:
            # Asked after the inodes: a number that was given away meanwhile would be a foreigner's,
            # and only bytes that it moves while it has that number would be counted.
            sockets = tcp_sockets() if inodes else {}
        except OSError:
            return None
        now = {cookie: moved for cookie, (inode, moved) in sockets.items() if inode in inodes}
        for cookie, moved in self._open.items():
            if cookie in now:
                now[cookie] = max(now[cookie], moved)
            else:
                self._closed_bytes += moved
        self._open = now
        return self._closed_bytes + sum(now.values())


def tcp_sockets() -> dict[bytes, tuple[int, int]]:
    """Inode and bytes (acknowledged plus received) of every TCP socket here, by its cookie.

    Raises:
        OSError: the kernel does not answer.
    """
    found: dict[bytes, tuple[int, int]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(TIMEOUT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            extension = 1 << (INET_DIAG_INFO - 1)
            wanted = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, extension, STATES_WITH_DATA
            )
            header = _HEADER.pack(
                _HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, family, 0
            )
            link.sendall(header + wanted)
            for message in _dump(link):
                counted = parse_message(message)
                if counted is not None:
                    cookie, inode, moved = counted
                    found[cookie] = (inode, moved)
    return found


def parse_message(message: bytes) -> tuple[bytes, int, int] | None:
    """Cookie, inode and bytes of one inet_diag_msg; None when it carries no counters."""
    if len(message) < MESSAGE_BYTES:
        return None
    (inode,) = struct.unpack_from("=I", message, INODE_OFFSET)
    offset = MESSAGE_BYTES
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            return None
        counters = offset + _ATTRIBUTE.size + COUNTERS_OFFSET
        if kind == INET_DIAG_INFO and counters + _COUNTERS.size <= offset + length:
            acknowledged, received = _COUNTERS.unpack_from(message, counters)
            return message[COOKIE_OFFSET : COOKIE_OFFSET + 8], inode, acknowledged + received
        offset += (length + 3) & ~3
    return None


def _dump(link: socket.socket) -> Iterator[bytes]:
    for _ in range(MAX_REPLIES):
        reply = link.recv(65536)
        offset = 0
        while offset + _HEADER.size <= len(reply):
            length, kind, _, _, _ = _HEADER.unpack_from(reply, offset)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR or length < _HEADER.size:
                raise OSError("sock_diag refused")
            yield reply[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3
    raise OSError("sock_diag never ends")


def _socket_inodes(pids: Iterable[int]) -> set[int] | None:
    """Inodes of all sockets of these processes; None when one of them is out of our sight."""
    inodes = set()
    here = _network(os.getpid())
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
        if names and _network(pid) not in (here, None):
            return None
        for name in names:
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    inodes.add(int(target[8:-1]))
    return inodes


def _network(pid: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None
