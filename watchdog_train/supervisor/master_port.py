"""The port at which ranks meet that no launcher starts, and the one of launchers on several nodes.

The first is MASTER_PORT, as env:// reads it. Both are looked at between two attempts only: until
then they belong to the ranks.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Mapping

from watchdog_train.core.fold.state import State
from watchdog_train.core.job.rendezvous import across_of, first_port, port_of
from watchdog_train.core.starting.jobs import LOOPBACK, JobTask, is_part_of_more

PORT_VARIABLE, ADDRESS_VARIABLE = "MASTER_PORT", "MASTER_ADDR"


class NextPort:
    """The port of the next attempt, for any kind of rank that needs one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._of_ranks: MasterPort | None = None
        self._of_nodes = (0, 0)
        """An attempt, and the port found for it."""

    def port(self, state: State) -> int | None:
        """A port for the next attempt; None if the last one is usable, or not ours to choose."""
        across, attempt = across_of(state), state.attempt
        if state.finished:
            return None
        if across is not None:
            return self._port_of_nodes(first_port(across), state.next_attempt)
        if attempt is None or state.launcher is not None:
            return None
        if self._of_ranks is None:
            self._of_ranks = MasterPort(self._environment, state.task)
        return self._of_ranks.replacement()

    def _port_of_nodes(self, first: int | None, attempt: int) -> int | None:
        """For the torchruns of all nodes: `first` + attempt - 1, else any; free on this machine."""
        if self._of_nodes[0] != attempt or not _can_listen(self._of_nodes[1]):
            port = port_of(first, attempt) if first is not None else None
            if port is None or not _can_listen(port):
                port = _free_port()
            if port is None:
                return None
            self._of_nodes = (attempt, port)
        return self._of_nodes[1]


class MasterPort:
    """Whether the next attempt can meet where the last one did."""

    def __init__(self, environment: Mapping[str, str], task: JobTask | None) -> None:
        text = environment.get(PORT_VARIABLE, "")
        self.port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        address = environment.get(ADDRESS_VARIABLE, "")
        # Several machines would have to agree on another one, and cannot be asked.
        if task is not None:
            here = task.here == task.tasks and task.coordination is None
        else:
            here = address in LOOPBACK and not is_part_of_more(environment)
        self.is_ours = here and bool(address) and 0 < self.port < 1 << 16
        self._other: int | None = None

    def replacement(self) -> int | None:
        """A free port if the one that is set is taken; None while it is free, or not ours."""
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
    """Bound but not listening: no process can connect, not even for a moment.

    With SO_REUSEADDR, so that closing connections of the last attempt do not matter. OSError:
    it is taken, or the system has no such sockets.
    """
    both = socket.has_dualstack_ipv6()
    found = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        if sys.platform != "win32":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", port))
    except OSError:
        found.close()
        raise
    return found
