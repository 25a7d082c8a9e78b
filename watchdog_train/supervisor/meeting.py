"""The port at which ranks meet that no launcher starts: MASTER_PORT, as env:// reads it.

It is looked at between two attempts only: until then it belongs to the ranks.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from watchdog_train.core.jobs import LOOPBACK, JobTask, is_part_of_more

PORT_VARIABLE, ADDRESS_VARIABLE = "MASTER_PORT", "MASTER_ADDR"


class MeetingPort:
    """Whether the next attempt can meet where the last one did."""

    def __init__(self, environment: Mapping[str, str], task: JobTask | None) -> None:
        text = environment.get(PORT_VARIABLE, "")
        self.port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        address = environment.get(ADDRESS_VARIABLE, "")
        # On several machines all have to agree on another one, and nobody can ask them.
        if task is not None:
            here = task.here == task.tasks
        else:
            here = address in LOOPBACK and not is_part_of_more(environment)
        self.is_ours = here and bool(address) and 0 < self.port < 1 << 16
        self._other: int | None = None

    def replacement(self) -> int | None:
        """A free port when the one that is set is taken; None while it is free, or not ours."""
        if not self.is_ours or _can_listen(self.port):
            self._other = None
            return None
        if self._other is None or not _can_listen(self._other):
            self._other = _free_port()
        return self._other


def _can_listen(port: int) -> bool:
    """As torch's store would, on all addresses; unknown counts as free."""
    try:
        _bind(port).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _free_port() -> int | None:
    try:
        with _bind(0) as found:
            return int(found.getsockname()[1])
    except OSError:
        return None


def _bind(port: int) -> socket.socket:
    """With SO_REUSEADDR: connections of the last attempt that are only closing are in no way.

    Raises:
        OSError: it is taken, or the system has no such sockets.
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
