"""TCP connections of processes, by the inodes of their open sockets."""

from __future__ import annotations

from watchdog_train.system import proc
from watchdog_train.system.sockets import TcpRow, tcp_rows

_SHOWN = 16


class Connections:
    """The tables of each network namespace, read once."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[int, TcpRow]] = {}

    def of(self, pid: int, inodes: list[str]) -> tuple[str, ...]:
        """`10.0.0.1:4242 -> 10.0.0.2:29500 ESTABLISHED, 512 bytes to send`, listening ones last."""
        namespace = proc.link(pid, "ns/net")
        if namespace is None:
            return ()
        if namespace not in self._tables:
            self._tables[namespace] = tcp_rows(pid)
        rows = self._tables[namespace]
        found = sorted({_words(rows[int(inode)]) for inode in inodes if int(inode) in rows})
        return tuple(sorted(found, key=lambda row: row.endswith("LISTEN"))[:_SHOWN])


def _words(row: TcpRow) -> str:
    if row.state == "LISTEN":
        return f"{row.here} LISTEN"
    words = [f"{row.here} -> {row.there} {row.state}"]
    words += [f"{row.to_send_bytes} bytes to send"] if row.to_send_bytes else []
    words += [f"{row.unread_bytes} bytes not read"] if row.unread_bytes else []
    return ", ".join(words)
