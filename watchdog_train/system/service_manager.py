"""The socket by which systemd hears that a service is ready, alive and ending (sd_notify(3)).

Must not block, and costs nothing where no such socket is named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

SOCKET_VARIABLE = "NOTIFY_SOCKET"
VARIABLES = (SOCKET_VARIABLE, "WATCHDOG_USEC", "WATCHDOG_PID")
"""What systemd sets for us; a training that had them would speak in our name."""
_STATUS_CAP = 200


class ServiceManager:
    """Whoever started us as a service, if somebody did."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get(SOCKET_VARIABLE, "")
        self._every_s = _watchdog_s(environ) / 2
        self._alive_at: float | None = None
        self._ready = False
        self._said = ""

    def is_there(self) -> bool:
        """Whether anybody listens."""
        return bool(self._path)

    def alive(self, now: float, status: str | None) -> None:
        """Say that we are ready, once, and that we are alive, as often as is asked for.

        Args:
            now: monotonic seconds.
            status: one line for a person.
        """
        words = [] if self._ready else ["READY=1"]
        self._ready = True
        if self._every_s and (self._alive_at is None or now - self._alive_at >= self._every_s):
            self._alive_at = now
            words.append("WATCHDOG=1")
        if status and status != self._said:
            self._said = status
            words.append(_status(status))
        self._send(words)

    def ending(self, status: str) -> None:
        """Say that the end has begun: the watchdog waits no more."""
        self._send(["STOPPING=1", _status(status)])

    def _send(self, words: list[str]) -> None:
        if not words or not self._path or sys.platform == "win32":
            return
        import socket  # 5 ms that only a service pays

        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        # A manager that does not listen ends us in the end: there is nobody else to tell it.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link,
        ):
            link.setblocking(False)
            link.sendto("\n".join(words).encode(), address)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:_STATUS_CAP]}"


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """0: nobody waits for a sign of life of this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() else 0.0
