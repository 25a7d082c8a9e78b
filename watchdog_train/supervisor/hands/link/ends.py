"""The two ends of a link: names, versions, who is heard. Where bytes travel is not known here."""

from __future__ import annotations

import os
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from watchdog_train import __version__
from watchdog_train.errors import EXIT_REFUSED, WtrainError
from watchdog_train.supervisor.hands.link.channel import (
    BYE,
    LEADER,
    LOST_S,
    MESSAGE_CAP_BYTES,
    NOT_LET_IN,
    Channel,
    Dialler,
)
from watchdog_train.supervisor.hands.link.keys import VARIABLE
from watchdog_train.supervisor.hands.link.unix import Listener

MESSAGE, PING, HELLO, WELCOME, REFUSED, WHO = b"M", b"P", b"H", b"W", b"R", b"?"
"""The first byte of what travels; two more are in channel."""
PING_EVERY_S = 5.0
TURN_S = 1.0
LINGER_S = 3.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first that an agent says. A new version may add fields, and must keep these."""

    version: str
    name: str = ""
    job: str = ""
    instance: str = ""
    """By chance: tells an agent that comes again from another one of its name."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The leader does not take an agent, and will not later. Kept by new versions, too."""

    reason: Literal["version", "job", "name"]
    leaders: str
    """Its own version or job; the name that lives already."""


class Peer:
    """Somebody who was connected once."""

    def __init__(self, channel: Channel, number: bytes, hello: Hello, now: float) -> None:
        self.channel: Channel | None = channel
        self.number = number
        self.hello = hello
        self.heard_at = self.sent_at = now
        self.ended = False
        """It has said so, or its own socket was closed."""
        self.rival: Peer | None = None
        """Another one of its name, who is taken once this one is not heard any more."""

    def put(self, data: bytes, now: float) -> bool:
        """Send, or queue."""
        if self.channel is None or not self.channel.put(self.number, data):
            return False
        self.sent_at = now
        return True


class End(ABC):
    """What both ends do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.made = 0
        self.refusal: WtrainError | None = None
        self.trouble: WtrainError | None = None
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._peers: dict[str, Peer] = {}
        self._channels: dict[Channel, bool] = {}
        """Whether we wait until one can be written to."""
        self._turn_at = 0.0

    def send(self, to: str, message: bytes) -> bool:
        """See Link."""
        now, peer = self._clock(), self._peers.get(to)
        if peer is None or len(message) > MESSAGE_CAP_BYTES or now - peer.heard_at >= LOST_S:
            return False
        sent = peer.put(MESSAGE + message, now)
        if peer.channel is not None:
            self._watch(peer.channel)
        return sent

    def receive(self) -> list[tuple[str, bytes]]:
        """See Link."""
        now = self._clock()
        self._connect(now)
        messages: list[tuple[str, bytes]] = []
        for key, events in self._selector.select(0):
            channel = key.data
            if events & selectors.EVENT_WRITE:
                channel.flush()
            for number, data in channel.take() if events & selectors.EVENT_READ else ():
                name = self._take(channel, number, data[:1], data[1:], now)
                if name is not None:
                    messages.append((name, data[1:]))
        if now >= self._turn_at:
            self._turn_at = now + TURN_S
            self._turn(now)
        for channel in tuple(self._channels):
            self._watch(channel)
            if channel.broken:
                self._drop(channel, now)
        return messages

    def heard(self, now: float) -> Mapping[str, float]:
        """See Link."""
        return {name: max(0.0, now - peer.heard_at) for name, peer in self._peers.items()}

    def fileno(self) -> int:
        """See Link."""
        fileno: Callable[[], int] | None = getattr(self._selector, "fileno", None)
        return -1 if fileno is None else fileno()

    def close(self) -> None:
        """See Link."""
        heard = {peer.channel for peer in self._peers.values()}
        until = time.monotonic() + LINGER_S
        for channel in self._channels:
            channel.close(max(0.01, until - time.monotonic()) if channel in heard else 0.0)
        self._selector.close()

    @abstractmethod
    def _connect(self, now: float) -> None:
        """Take or make connections."""

    @abstractmethod
    def _take(
        self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float
    ) -> str | None:
        """Act on what has come; the name of who sent it, if it is a message."""

    def _turn(self, now: float) -> None:
        """Once a second."""
        for peer in self._peers.values():
            if now - peer.sent_at >= PING_EVERY_S:
                peer.put(PING, now)

    def _add(self, channel: Channel) -> None:
        self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        self._channels[channel] = False

    def _watch(self, channel: Channel) -> None:
        full = channel.waiting > 0 and not channel.broken
        if full != self._channels[channel]:
            self._channels[channel] = full
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            self._selector.modify(channel.socket, events, channel)

    def _drop(self, channel: Channel, now: float) -> None:  # noqa: ARG002 - one end needs it
        self._selector.unregister(channel.socket)
        channel.close()
        del self._channels[channel]
        for peer in self._peers.values():
            if peer.channel is channel:
                peer.channel = None
                peer.ended = not peer.number


class Leader(End):
    """The end that others come to."""

    def __init__(
        self,
        job: str,
        *,
        listener: Listener | None = None,
        dialler: Dialler | None = None,
        version: str = __version__,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`listener`: takes connections of this machine; `dialler`: starts what takes others."""
        super().__init__(clock)
        self._job = job
        self._version = version
        self._listener = listener
        self._dialler = dialler
        self._guests: dict[tuple[Channel, bytes], Peer] = {}

    def close(self) -> None:
        """See Link."""
        super().close()
        if self._listener is not None:
            self._listener.close()

    def _connect(self, now: float) -> None:
        if self._listener is not None:
            for channel in self._listener.accept():
                self._add(channel)
        if self._dialler is not None and not self._channels:
            made = self._dialler.poll(now)
            if made is not None:
                self._add(made)

    def _take(
        self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float
    ) -> str | None:
        guest = self._guests.get((channel, number))
        if kind == HELLO:
            self._greet(channel, number, body, now)
        elif guest is None:
            channel.put(number, WHO)
        elif kind == BYE:
            self._forget(guest)
            guest.ended = True
        elif guest is self._peers.get(guest.hello.name):
            guest.heard_at = now
            if guest.rival is not None:
                self._refuse(guest.rival, "name", guest.hello.name)
                guest.rival = None
            if kind == MESSAGE:
                return guest.hello.name
        return None

    def _greet(self, channel: Channel, number: bytes, body: bytes, now: float) -> None:
        try:
            hello = msgspec.msgpack.decode(body, type=Hello)
        except (msgspec.DecodeError, ValueError, RecursionError):
            hello = Hello(version="unknown")
        guest = Peer(channel, number, hello, now)
        before = self._peers.get(hello.name)
        if hello.version != self._version:
            self._refuse(guest, "version", self._version)
        elif hello.job != self._job:
            self._refuse(guest, "job", self._job)
        elif before is None or self._is_over(before, hello, now):
            self._welcome(guest, before, now)
        else:
            before.rival = guest

    @staticmethod
    def _is_over(before: Peer, hello: Hello, now: float) -> bool:
        lost = now - before.heard_at >= LOST_S
        return lost or before.ended or before.hello.instance == hello.instance

    def _welcome(self, guest: Peer, before: Peer | None, now: float) -> None:
        if before is not None:
            self._forget(before)
        self._peers[guest.hello.name] = guest
        if guest.channel is not None:
            self._guests[guest.channel, guest.number] = guest
            guest.put(WELCOME, now)

    @staticmethod
    def _refuse(guest: Peer, reason: Literal["version", "job", "name"], leaders: str) -> None:
        said = msgspec.msgpack.encode(Refused(reason=reason, leaders=leaders))
        guest.put(REFUSED + said, 0.0)

    def _forget(self, guest: Peer) -> None:
        if guest.channel is not None:
            self._guests.pop((guest.channel, guest.number), None)
            guest.channel = None

    def _turn(self, now: float) -> None:
        super()._turn(now)
        for peer in tuple(self._peers.values()):
            if peer.rival is not None and self._is_over(peer, peer.rival.hello, now):
                self._welcome(peer.rival, peer, now)

    def _drop(self, channel: Channel, now: float) -> None:
        super()._drop(channel, now)
        self._guests = {key: peer for key, peer in self._guests.items() if key[0] is not channel}
        for peer in self._peers.values():
            if peer.rival is not None and peer.rival.channel is channel:
                peer.rival = None
        if self._dialler is not None:
            self._dialler.lost(now)


class Agent(End):
    """The end that comes to a leader, again and again."""

    def __init__(
        self,
        name: str,
        job: str,
        dialler: Dialler,
        *,
        version: str = __version__,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._hello = Hello(version=version, name=name, job=job, instance=os.urandom(8).hex())
        self._dialler = dialler
        self._channel: Channel | None = None
        self._asked_at = 0.0
        self._began = 0.0

    def _connect(self, now: float) -> None:
        if self._channel is None and self.refusal is None:
            self._channel = self._dialler.poll(now)
            if self._channel is not None:
                self._add(self._channel)
                self._began = now
                self._ask(self._channel, now)

    def _ask(self, channel: Channel, now: float) -> None:
        self._asked_at = now
        channel.put(b"", HELLO + msgspec.msgpack.encode(self._hello))

    def _take(
        self,
        channel: Channel,
        number: bytes,  # noqa: ARG002 - there is one
        kind: bytes,
        body: bytes,
        now: float,
    ) -> str | None:
        leader = self._peers.get(LEADER)
        if kind == WELCOME and (leader is None or leader.channel is not channel):
            self._peers[LEADER] = Peer(channel, b"", self._hello, now)
            self.made += 1
            self.trouble = None
        elif kind == REFUSED:
            with suppress(msgspec.DecodeError, ValueError):
                said = msgspec.msgpack.decode(body, type=Refused)
                self.refusal = refusal(said, self._hello)
                channel.broken = True
        elif kind == NOT_LET_IN:
            self.trouble = _trouble(self._hello)
        elif leader is not None and leader.channel is channel:
            if kind == WHO:
                leader.channel = None
                self._ask(channel, now)
            leader.heard_at = now
            return LEADER if kind == MESSAGE else None
        return None

    def _turn(self, now: float) -> None:
        super()._turn(now)
        channel, leader = self._channel, self._peers.get(LEADER)
        if channel is None:
            return
        linked = leader is not None and leader.channel is channel
        heard_at = leader.heard_at if leader is not None and linked else self._began
        if now - heard_at >= LOST_S:
            channel.broken = True
        elif not linked and now - self._asked_at >= PING_EVERY_S and not channel.waiting:
            self._ask(channel, now)

    def _drop(self, channel: Channel, now: float) -> None:
        super()._drop(channel, now)
        self._channel = None
        self._dialler.lost(now)


def refusal(said: Refused, mine: Hello) -> WtrainError:
    """The leader's refusal, for the user of an agent."""
    words = {
        "version": (
            f"the leader has wtrain {said.leaders}, this machine has {mine.version}",
            "install the same version of wtrain on all machines of the job",
        ),
        "job": (
            f"the leader's job is {said.leaders}, this task's job is {mine.job}",
            "give each job a leader's address of its own",
        ),
        "name": (
            f"another task of the name {said.leaders} is connected already",
            "start each task of the job once",
        ),
    }
    message, hint = words[said.reason]
    return WtrainError(
        message,
        context=f"{mine.name} of job {mine.job}",
        hint=hint,
        reference=f"link-{said.reason}",
        exit_code=EXIT_REFUSED,
    )


def _trouble(mine: Hello) -> WtrainError:
    return WtrainError(
        "what listens at the leader's address does not take this machine's key",
        context=f"{mine.name} of job {mine.job}",
        hint=f"give {VARIABLE} the same value on all machines: export it once, before srun",
        reference="link-key",
    )
