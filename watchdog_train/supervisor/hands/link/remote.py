"""Starts the process that carries a link between machines, and refuses what cannot work."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.hands.link.channel import Channel
from watchdog_train.supervisor.hands.link.keys import VARIABLE, LinkOrder, job_key
from watchdog_train.supervisor.helper import module

SPARE_DESCRIPTORS = 256


def relay(address: str, children: ChildTable, *, machines: int = 0) -> Callable[[], socket.socket]:
    """What starts the process; as often as one has ended.

    Args:
        address: tcp://HOST:PORT.
        children: of the supervisor.
        machines: how many come to it; 0: it comes to a leader itself.

    Raises:
        WtrainError: it could never work.
    """
    if find_spec("zmq") is None:
        raise _refusal(address, "pyzmq is not installed", "pip install 'watchdog-train[nodes]'")
    host, port = _host_and_port(address)
    if machines:
        host = _own_address(address, host, port)
    shown = f"[{host}]" if ":" in host else host
    order = LinkOrder(address=f"tcp://{shown}:{port}", key=job_key(os.environ), leads=machines > 0)

    def start() -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
        argv = module("watchdog_train.supervisor.hands.link.zeromq")
        try:
            children.spawn(
                argv, name="link", deadline_s=None, env=environment, stdin=theirs.fileno()
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        Channel(ours).put(b"", msgspec.msgpack.encode(order))
        return ours

    return start


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise _refusal(address, "this is no address of a leader", "write tcp://HOST:PORT")


def make_room(machines: int) -> None:
    """Let this process open a file for each of them.

    Raises:
        WtrainError: it may not.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = machines + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise _refusal(
            f"{machines} machines",
            f"wtrain needs {needed} open files for them, the limit is {hard}",
            f"ulimit -Hn {needed} (by root), or LimitNOFILE={needed} of the service",
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _own_address(address: str, host: str, port: int) -> str:
    """Where to listen: at the host's address if this machine has it, else everywhere."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = f"{host} is not known: {error.strerror}"
        raise _refusal(address, why, "name this machine") from error
    for family, _, _, _, where in found:
        if str(where[0]) == "127.0.1.1":  # Debian's name for itself: others cannot come there
            continue
        try:
            with socket.socket(family) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = "another process listens there"
                raise _refusal(address, why, "choose another port") from error
            continue
        return str(where[0])
    return "*"


def _refusal(address: str, message: str, hint: str) -> WtrainError:
    return WtrainError(message, context=address, hint=hint, reference="link")
