"""Moves messages between a leader and its agents: bytes, which mean nothing here.

On one machine over a unix socket; between machines over ZeroMQ, in a process of its own, which
talks to us over a socket in the same frames. A supervisor's loop never waits for a link, and a
link never raises but at its start. A message comes once or, when a connection is lost, never;
messages between two ends keep their order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.hands.link.channel import (
    LEADER,
    LOST_S,
    MESSAGE_CAP_BYTES,
    Dialler,
)

if TYPE_CHECKING:
    from watchdog_train.supervisor.children import ChildTable

__all__ = ("LEADER", "LOST_S", "MESSAGE_CAP_BYTES", "Link", "join", "lead")


class Link(Protocol):
    """One end. Its work is done inside receive(): call it several times a second."""

    made: int
    """How often a connection to the leader was made; what was sent over the one before may be
    lost. A leader's own end does not count."""
    refusal: WtrainError | None
    """Why the leader does not take us: another version, another job, a name that lives already."""

    trouble: WtrainError | None
    """What keeps us from the leader at present, when that is known: another key."""

    def send(self, to: str, message: bytes) -> bool:
        """Send, or queue for a moment.

        Returns:
            Whether it was queued: False for a name that is unknown or not connected, for a full
            queue, and for more than MESSAGE_CAP_BYTES. True is no word of its arrival.
        """

    def receive(self) -> list[tuple[str, bytes]]:
        """What has come since the last call, with the name of who sent it; some MiB at most."""

    def heard(self, now: float) -> Mapping[str, float]:
        """Of everybody who was ever connected: seconds since they were last heard."""

    def fileno(self) -> int:
        """Readable when receive() has something to do; -1 where there is no such descriptor."""

    def close(self) -> None:
        """Let the other ends have what is queued, for some seconds at most, and end."""


def lead(address: str | None, *, job: str, machines: int, children: ChildTable) -> Link:
    """Let agents come.

    Args:
        address: `tcp://HOST:PORT` of this machine, which needs a key in the environment; None:
            only agents of this machine come.
        job: agents of another job are refused.
        machines: how many will come.
        children: takes the process that talks to other machines.

    Raises:
        WtrainError: it cannot be done, with 78.
    """
    _refuse_platform()
    from watchdog_train.supervisor.hands.link.ends import Leader
    from watchdog_train.supervisor.hands.link.remote import make_room, relay
    from watchdog_train.supervisor.hands.link.unix import Listener

    make_room(machines)
    if address is None:
        return Leader(job, listener=Listener(job))
    return Leader(job, dialler=Dialler(relay(address, children, machines=machines)))


def join(address: str | None, name: str, *, job: str, children: ChildTable) -> Link:
    """Come to a leader, whenever there is one. The arguments are as those of lead().

    Raises:
        WtrainError: it cannot be done, with 78.
    """
    _refuse_platform()
    from watchdog_train.supervisor.hands.link.ends import Agent
    from watchdog_train.supervisor.hands.link.remote import relay
    from watchdog_train.supervisor.hands.link.unix import dial

    if address is None:
        return Agent(name, job, Dialler(lambda: dial(job)))
    return Agent(name, job, Dialler(relay(address, children)))


def _refuse_platform() -> None:
    if sys.platform == "win32":
        raise WtrainError(
            "Windows has no link between the tasks or machines of a job",
            hint="start each task by itself",
            reference="link-platform",
        )
