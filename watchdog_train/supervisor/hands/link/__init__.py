"""Moves messages between a leader and its agents: bytes, which mean nothing here.

On one machine over a unix socket; between machines over ZeroMQ, in a process of its own that talks
to us over a socket in the same frames. Nothing waits, and nothing is raised but at the start. A
message comes once or, when a connection is lost, never; messages between two ends keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchdog_train.supervisor.hands.link.channel import MESSAGE_CAP_BYTES, Dialler
from watchdog_train.supervisor.hands.link.ends import LEADER, LOST_S, Agent, Leader, Link

if TYPE_CHECKING:
    from watchdog_train.supervisor.children import ChildTable

__all__ = ("LEADER", "LOST_S", "MESSAGE_CAP_BYTES", "Link", "join", "lead")


def lead(address: str | None, *, job: str, machines: int, children: ChildTable) -> Link:
    """Let so many agents of this job come: to an address of this machine; None: only from here.

    Raises:
        WtrainError: it cannot be done, with 78.
    """
    from watchdog_train.supervisor.hands.link import start

    start.make_room(machines)
    if address is not None:
        return Leader(job, Dialler(start.relay(address, children, leads=True)))
    return Leader(job, listener=start.Listener(job))


def join(address: str | None, name: str, *, job: str, children: ChildTable) -> Link:
    """Come to a leader, whenever there is one."""
    from watchdog_train.supervisor.hands.link import start

    if address is not None:
        return Agent(name, job, Dialler(start.relay(address, children, leads=False)))
    return Agent(name, job, Dialler(lambda: start.dial(job)))
