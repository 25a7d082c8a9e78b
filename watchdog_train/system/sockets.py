"""Linux: TCP sockets of any process's network namespace, by inode. Only reads."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from watchdog_train.system import proc

_STATES = {
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
                state = _STATES.get(int(fields[3], 16), "?")
                here, there = _address(fields[1]), _address(fields[2])
                rows[int(fields[9])] = TcpRow(here, there, state)
    return rows


def _address(text: str) -> str:
    """`0100007F:1F90` as /proc writes it: words of the machine's own byte order."""
    host, _, port = text.partition(":")
    data = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, data).removeprefix("::ffff:")
    return f"[{shown}]:{int(port, 16)}" if ":" in shown else f"{shown}:{int(port, 16)}"
