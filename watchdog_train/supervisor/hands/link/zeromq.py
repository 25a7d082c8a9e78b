"""Carries a link between machines: ZeroMQ on one side, our supervisor's socket on the other.

This process knows no message and keeps nothing: it may be killed, and another one is started.
ZeroMQ's own encryption (CURVE) admits only holders of the job's key.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import sys
import time
from contextlib import suppress

import msgspec
import zmq
from zmq.utils import z85

from watchdog_train.keeper.messages import ready
from watchdog_train.supervisor.hands.link.channel import MESSAGE_CAP_BYTES, QUEUE_CAP_BYTES, Channel
from watchdog_train.supervisor.hands.link.peers import REFUSED, secret_of

assert sys.platform != "win32"  # noqa: S101 - which has no link
TURN_S = 0.02
"""Minimum time between two rounds: the supervisor wakes once for all messages of a round."""
MOST = 1024
"""Messages of one round."""
ORDER_WITHIN_S = 30.0
LOOK_MS = 250
"""How often a leader checks that a descriptor is left."""
TURN_AWAY_S = 1.0
"""No connection is accepted for this long after a check found no descriptor."""
OPTIONS = {
    zmq.IPV6: 1,
    zmq.LINGER: 2000,
    zmq.MAXMSGSIZE: MESSAGE_CAP_BYTES + 1024,  # of a message as it is encrypted
    zmq.RCVHWM: 4,  # messages of a peer that wait; each may have MESSAGE_CAP_BYTES
    # How long a peer without the key keeps a descriptor, ms. With 10 s it once took 144 s until
    # 1,024 agents were back at a machine at load 40; with 30 s it took 16 to 29 s.
    zmq.HANDSHAKE_IVL: 30_000,
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,
    zmq.HEARTBEAT_TTL: 15_000,
    zmq.CONNECT_TIMEOUT: 10_000,
    zmq.RECONNECT_IVL: 500,  # ms; ZeroMQ adds as much again by chance
    zmq.RECONNECT_IVL_MAX: 15_000,
    zmq.IMMEDIATE: 1,  # nothing is queued for a connection that does not stand
}


class Relay:
    def __init__(self, channel: Channel, host: str, port: int, key: str, door: int = -1) -> None:
        """`door` is the socket where a leader listens."""
        self._channel = channel
        self._leads = leads = door >= 0
        self._doorman = _doorman(channel, door) if leads else None
        context = zmq.Context()
        self._socket = context.socket(zmq.ROUTER if leads else zmq.DEALER)
        for option, value in OPTIONS.items():
            self._socket.set(option, value)
        # An agent waits while its queue is full. A leader never waits, and sends little.
        self._socket.set(zmq.SNDHWM, 256 if leads else 4)
        leader, agent = (z85.encode(secret_of(key, whose)) for whose in ("leader", "agent"))
        self._agents = z85.decode(zmq.curve_public(agent))
        self._socket.set(zmq.CURVE_SECRETKEY, leader if leads else agent)
        if leads:
            self._aside = context.socket(zmq.REP)  # ZeroMQ asks here whom to admit
            self._aside.bind("inproc://zeromq.zap.01")
            self._socket.set(zmq.CURVE_SERVER, 1)
            self._socket.set(zmq.ZAP_DOMAIN, b"wtrain")
            self._failures = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
            self._told = False
            self._socket.set(zmq.USE_FD, door)
            self._socket.bind(f"tcp://*:{port}")
        else:
            self._socket.set(zmq.CURVE_PUBLICKEY, zmq.curve_public(agent))
            self._socket.set(zmq.CURVE_SERVERKEY, zmq.curve_public(leader))
            events = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            self._aside = self._socket.get_monitor_socket(events)
            self._socket.connect(
                f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
            )

    def run(self, outgoing: list[tuple[bytes, bytes]]) -> None:
        poller, link = zmq.Poller(), self._channel.socket.fileno()
        poller.register(self._aside, zmq.POLLIN)
        while outgoing or not self._channel.broken:
            room = self._channel.waiting < QUEUE_CAP_BYTES - 2 * MESSAGE_CAP_BYTES
            reads = 0 if outgoing else zmq.POLLIN
            writes = zmq.POLLOUT if self._channel.waiting else 0
            poller.register(link, zmq.POLLERR | reads | writes)
            poller.register(
                self._socket, (zmq.POLLIN if room else 0) | (zmq.POLLOUT if outgoing else 0)
            )
            found = dict(poller.poll(LOOK_MS if self._leads else None))
            if outgoing and found.get(link, 0) & zmq.POLLERR:
                break  # for a leader that does not come, of a supervisor that is gone
            self._ask_doorman()
            self._look_aside()
            self._bring(MOST if room else 0)
            outgoing = self._carry(outgoing or self._channel.take())
            self._channel.flush()
            time.sleep(TURN_S)
        self._socket.context.destroy()

    def _ask_doorman(self) -> None:
        if self._doorman is None:
            return
        try:
            os.close(os.dup(0))
        except OSError:
            with suppress(OSError):
                self._doorman.send(b"!")

    def _look_aside(self) -> None:
        """Admit holders of the key, by RFC 27; report another key to both ends."""
        while self._leads and not self._told and self._failures.poll(0):
            found = int.from_bytes(self._failures.recv_multipart()[0][2:6], sys.byteorder)
            self._told = found == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
            if self._told:  # once: they come again twice a second
                self._socket.disable_monitor()
                self._channel.queue(b"", REFUSED)
        while self._aside.poll(0):
            first, second, *parts = self._aside.recv_multipart()
            if not self._leads:
                if int.from_bytes(first[2:6], sys.byteorder) == errno.EPIPE:
                    self._channel.queue(b"", REFUSED + msgspec.msgpack.encode(("key", "")))
                continue
            good = parts[-2:] == [b"CURVE", self._agents]
            status = (b"200", b"OK") if good else (b"400", b"no")
            self._aside.send_multipart([first, second, *status, b"", b""])

    def _bring(self, most: int) -> None:
        with suppress(zmq.Again):
            for _ in range(most):
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
                if len(parts) == 1 + self._leads and len(parts[-1]) <= MESSAGE_CAP_BYTES + 1:
                    self._channel.queue(parts[0] if self._leads else b"", parts[-1])

    def _carry(self, frames: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """From the supervisor to ZeroMQ; returns what does not fit now.

        A leader does not wait: for a peer whose queue is full a message is left out.
        """
        sent = 0
        with suppress(zmq.Again):
            for peer, data in frames:
                self._socket.send_multipart([peer, data] if self._leads else [data], zmq.NOBLOCK)
                sent += 1
        return frames[sent:]


def _doorman(channel: Channel, door: int) -> socket.socket:
    """A process that closes waiting connections, for TURN_AWAY_S after each byte sent to it.

    Without a free descriptor libzmq would retry accept() without a pause: one core, as long as
    a peer without the key holds so many connections.
    """
    ask, asked = socket.socketpair()
    if os.fork():
        asked.close()
        ask.setblocking(False)
        return ask
    with suppress(BaseException):
        ask.close()
        for each in (0, channel.socket.detach()):
            os.close(each)
        listener = socket.socket(fileno=door)
        while asked.recv(1):
            until = time.monotonic() + TURN_AWAY_S
            while (left_s := until - time.monotonic()) > 0:
                if ready([door, asked.fileno()], (), left_s) != [door]:
                    break  # asked again, or our supervisor is gone
                with suppress(OSError):
                    listener.accept()[0].close()
    os._exit(0)


def main() -> None:
    """Started by a supervisor, with its socket as stdin."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # macOS has a limit below an infinite one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = Channel(socket.socket(fileno=os.dup(0)))
    ready([channel.socket.fileno()], (), ORDER_WITHIN_S)
    frames = channel.take()
    if frames:
        Relay(channel, *json.loads(frames[0][1])).run(frames[1:])


if __name__ == "__main__":
    main()
