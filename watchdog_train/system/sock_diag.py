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
from typing import NamedTuple

from watchdog_train.system import proc
from watchdog_train.system.protocol import Connections, UnixSocket

if sys.platform != "linux":
    raise ImportError("only Linux answers")

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST_DUMP = 0x301
NLMSG_ERROR = 2
NLMSG_DONE = 3
INET_DIAG_INFO = 2
TCP_ESTABLISHED, TCP_LISTEN = 1, 10
ALL_STATES = 0xFFFFFFFF
UNIX_DIAG_NAME, UNIX_DIAG_PEER = 0, 2
UNIX_SHOW = 1 | 4  # its name, its peer
UNIX_MESSAGE_BYTES = 16
STATES_WITH_DATA = 0xFFF & ~(1 << 10) & ~(1 << 6)  # neither LISTEN nor TIME_WAIT
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=QQ")
MESSAGE_BYTES = 72
PORTS_OFFSET = 4
ADDRESSES_OFFSET = 8
COOKIE_OFFSET = 44
INODE_OFFSET = 68
COUNTERS_OFFSET = 120  # tcpi_bytes_acked, then tcpi_bytes_received
MAPPED = bytes(10) + b"\xff\xff"
TIMEOUT_S = 1.0
MAX_REPLIES = 4096


Endpoint = tuple[bytes, int]
"""Address in its IPv6 form, and port."""


class TcpSocket(NamedTuple):
    inode: int
    moved_bytes: int
    here: Endpoint
    there: Endpoint


class TcpCounter:
    """Bytes that the sockets of a tree have moved; a closed socket's bytes stay counted.

    Traffic to a launcher or rank of the same tree does not count: a rank that waits in a rendezvous
    asks the store there over and over (7 to 9 kB/s), its own store if it is rank 0, and would never
    be idle. Traffic between other members counts: a download may come through a helper.
    """

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}
        self._closed_bytes = 0

    def total(
        self, pids: Iterable[int], others: Iterable[int] = (), ports: Iterable[int] = ()
    ) -> int | None:
        """So far, never less than before; None if unknown.

        Connections to `others`, launchers and ranks of the tree, do not count, nor those to the
        `ports` where the store of the job listens, maybe on another machine.
        """
        ours = proc.link("self", "ns/net")
        by_pid = {pid: _socket_inodes(pid, ours) for pid in pids}
        inodes: set[int] = set()
        for found in by_pid.values():
            if found is None:
                return None
            inodes |= found
        stores: set[int] = set()
        sockets: dict[bytes, TcpSocket] = {}
        if inodes:
            for pid in others:
                stores |= (by_pid[pid] if pid in by_pid else _socket_inodes(pid, ours)) or set()
            try:
                # Asked after the inodes: a number that was given away meanwhile would be a
                # foreigner's, and only bytes that it moves while it has that number would be
                # counted.
                sockets = tcp_sockets()
            except OSError:
                return None
        listening = frozenset(ports)
        theirs = {each.here for each in sockets.values() if each.inode in stores}
        now = {
            cookie: each.moved_bytes
            for cookie, each in sockets.items()
            if each.inode in inodes and each.there not in theirs and each.there[1] not in listening
        }
        for cookie, moved in self._open.items():
            if cookie in now:
                now[cookie] = max(now[cookie], moved)
            else:
                self._closed_bytes += moved
        self._open = now
        return self._closed_bytes + sum(now.values())


def tcp_sockets() -> dict[bytes, TcpSocket]:
    """TCP connections of this network namespace by cookie; OSError: no answer of the kernel.

    `moved_bytes` is acknowledged plus received.
    """
    found: dict[bytes, TcpSocket] = {}
    for message in _tcp_messages(1 << (INET_DIAG_INFO - 1), STATES_WITH_DATA):
        counted = parse_message(message)
        if counted is not None:
            found[counted[0]] = counted[1]
    return found


def connections() -> Connections:
    """Listeners and connections; OSError: no answer of the kernel."""
    ports: dict[int, int] = {}
    tcp: dict[int, tuple[Endpoint, Endpoint]] = {}
    unix: dict[int, UnixSocket] = {}
    for message in _tcp_messages(0, 1 << TCP_LISTEN | 1 << TCP_ESTABLISHED):
        if len(message) >= MESSAGE_BYTES:
            (inode,) = struct.unpack_from("=I", message, INODE_OFFSET)
            here, there = _endpoint(message, 0), _endpoint(message, 1)
            if message[1] == TCP_LISTEN:
                ports[inode] = here[1]
            else:
                tcp[inode] = here, there
    wanted = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, ALL_STATES, 0, UNIX_SHOW, 0, 0)
    for message in _ask(socket.AF_UNIX, wanted):
        if len(message) >= UNIX_MESSAGE_BYTES:
            (inode,) = struct.unpack_from("=I", message, 4)
            about = dict(_attributes(message, UNIX_MESSAGE_BYTES))
            peer = about.get(UNIX_DIAG_PEER, bytes(4))[:4]
            (peer_inode,) = struct.unpack("=I", peer)
            listens = message[2] == TCP_LISTEN
            unix[inode] = UnixSocket(about.get(UNIX_DIAG_NAME, b""), peer_inode, listens)
    return Connections(ports, tcp, unix)


def _tcp_messages(extension: int, states: int) -> Iterator[bytes]:
    for family in (socket.AF_INET, socket.AF_INET6):
        wanted = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, extension, states)
        yield from _ask(family, wanted)


def _ask(family: int, wanted: bytes) -> Iterator[bytes]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(TIMEOUT_S)
        header = _HEADER.pack(
            _HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, family, 0
        )
        link.sendall(header + wanted)
        yield from _dump(link)


def _attributes(message: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, message[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def parse_message(message: bytes) -> tuple[bytes, TcpSocket] | None:
    """Cookie and socket of one inet_diag_msg; None if it has no counters."""
    if len(message) < MESSAGE_BYTES:
        return None
    (inode,) = struct.unpack_from("=I", message, INODE_OFFSET)
    info = dict(_attributes(message, MESSAGE_BYTES)).get(INET_DIAG_INFO, b"")
    if len(info) < COUNTERS_OFFSET + _COUNTERS.size:
        return None
    acknowledged, received = _COUNTERS.unpack_from(info, COUNTERS_OFFSET)
    cookie = message[COOKIE_OFFSET : COOKIE_OFFSET + 8]
    here, there = _endpoint(message, 0), _endpoint(message, 1)
    return cookie, TcpSocket(inode, acknowledged + received, here, there)


def _endpoint(message: bytes, which: int) -> Endpoint:
    """The local (0) or the remote (1) end; an IPv4 address as IPv6 sockets show it."""
    (port,) = struct.unpack_from(">H", message, PORTS_OFFSET + 2 * which)
    start = ADDRESSES_OFFSET + 16 * which
    if message[0] == socket.AF_INET:
        return MAPPED + message[start : start + 4], port
    return message[start : start + 16], port


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


def _socket_inodes(pid: int, network: str | None) -> set[int] | None:
    """Inodes of all sockets of a process; None if it is unreadable, or not in `network`."""
    folder = f"/proc/{pid}/fd"
    inodes: set[int] = set()
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return inodes
    except OSError:
        return None
    for name in names:
        with suppress(OSError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    if inodes and proc.link(pid, "ns/net") not in (network, None):
        return None
    return inodes


_TCP_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2",
    6: "TIME_WAIT", 7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip


class TcpRow(NamedTuple):
    """One line of /proc/net/tcp; addresses as `10.0.0.1:29500` and `[::1]:29500`."""

    here: str
    there: str
    state: str


def tcp_rows(pid: int) -> dict[int, TcpRow]:
    """All TCP sockets of the network namespace of a process, by inode."""
    rows: dict[int, TcpRow] = {}
    for name in ("tcp", "tcp6"):
        text = proc.text(f"/proc/{pid}/net/{name}") or ""
        for line in text.splitlines()[1:]:
            with suppress(ValueError, IndexError, OSError, struct.error):
                fields = line.split()
                state = _TCP_STATES.get(int(fields[3], 16), "?")
                here, there = _shown_address(fields[1]), _shown_address(fields[2])
                rows[int(fields[9])] = TcpRow(here, there, state)
    return rows


def _shown_address(text: str) -> str:
    """`0100007F:1F90` as /proc writes it: words of the machine's own byte order."""
    host, _, port = text.partition(":")
    data = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, data).removeprefix("::ffff:")
    return f"[{shown}]:{int(port, 16)}" if ":" in shown else f"{shown}:{int(port, 16)}"
