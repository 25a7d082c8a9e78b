"""TCP connections of processes, by the inodes of their open sockets. Only reads /proc."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from watchdog_train.system import proc

_SHOWN = 16
_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2",
    6: "TIME_WAIT", 7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip


class Connections:
    """The tables of each network namespace, read once."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}

    def of(self, pid: int, inodes: list[str]) -> tuple[str, ...]:
        """`10.0.0.1:4242 -> 10.0.0.2:29500 ESTABLISHED, 512 bytes to send`, listening ones last."""
        namespace = proc.link(pid, "ns/net")
        if namespace is None:
            return ()
        if namespace not in self._tables:
            self._tables[namespace] = _table(pid)
        rows = self._tables[namespace]
        found = sorted({rows[inode] for inode in inodes if inode in rows})
        return tuple(sorted(found, key=lambda row: row.endswith("LISTEN"))[:_SHOWN])


def _table(pid: int) -> dict[str, str]:
    rows: dict[str, str] = {}
    for name in ("tcp", "tcp6"):
        text = proc.text(f"/proc/{pid}/net/{name}") or ""
        for line in text.splitlines()[1:]:
            with suppress(ValueError, IndexError, OSError, struct.error):
                fields = line.split()
                rows[fields[9]] = _row(fields)
    return rows


def _row(fields: list[str]) -> str:
    state = _STATES.get(int(fields[3], 16), "?")
    if state == "LISTEN":
        return f"{_address(fields[1])} LISTEN"
    sending, received = (int(part, 16) for part in fields[4].split(":"))
    words = [f"{_address(fields[1])} -> {_address(fields[2])} {state}"]
    words += [f"{sending} bytes to send"] if sending else []
    words += [f"{received} bytes not read"] if received else []
    return ", ".join(words)


def _address(text: str) -> str:
    """`0100007F:1F90` as /proc writes it: words of the machine's own byte order."""
    host, _, port = text.partition(":")
    data = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    shown = socket.inet_ntop(family, data).removeprefix("::ffff:")
    return f"[{shown}]:{int(port, 16)}" if ":" in shown else f"{shown}:{int(port, 16)}"
