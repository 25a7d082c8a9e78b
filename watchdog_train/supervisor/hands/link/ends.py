"""The two ends of a link: names, versions, who is heard. Where bytes travel is not known here."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from watchdog_train import __version__
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.hands.link.channel import MESSAGE_CAP_BYTES, Channel, Dialler

LEADER = "leader"
"""What agents call the other end."""
LOST_S = 20.0
"""An end that was not heard for so long has no connection any more."""
PING_EVERY_S = 5.0
LINGER_S = 3.0
SURE_S = 60.0
"""A refusal that may pass must last for so long: a dead one of our name, a leader that starts."""
MESSAGE, PING, HELLO, WELCOME, WHO, REFUSED = b"M", b"P", b"H", b"W", b"?", b"R"
"""The first byte of what travels."""
_REFUSALS = {
    "version": ("the leader has wtrain {}, this machine has {}", "install the same on both"),
    "job": ("the leader's job is {}, this task's job is {}", "give each job its own address"),
    "name": ("another task {} is connected already", "start each task of the job once"),
    "key": (
        "what listens at the leader's address does not take this key",
        "export WTRAIN_JOB_KEY once, before srun: all machines need the same",
    ),
}


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first that an agent says; later versions must keep these. `instance` is by chance."""

    version: str
    name: str = ""
    job: str = ""
    instance: str = ""


@dataclass(eq=False)
class Peer:
    """Somebody who was connected once."""

    channel: Channel | None
    number: bytes
    instance: str
    heard_at: float

    def put(self, data: bytes) -> bool:
        """Send, or queue."""
        return self.channel is not None and self.channel.put(self.number, data)


class Link:
    """One end. Its work is done inside receive(): call it several times a second."""

    def __init__(self, dialler: Dialler | None) -> None:
        self.made = 0
        """How often an agent was linked; what was sent over the link before may be lost."""
        self.refusal: WtrainError | None = None
        """Why the leader does not take us: another version, job or key; a name that lives."""
        self._dialler, self._clock = dialler, time.monotonic
        self._selector = selectors.DefaultSelector()
        self._channels: dict[Channel, bool] = {}
        """Whether we wait until one can be written to."""
        self._peers: dict[str, Peer] = {}
        self._linked: dict[tuple[Channel, bytes], str] = {}
        self._turn_at = 0.0

    def send(self, to: str, message: bytes) -> bool:
        """Send, or queue for a moment.

        Returns:
            Whether it was queued: False for a name that is unknown or not heard, for a full queue,
            and for more than MESSAGE_CAP_BYTES. True is no word of its arrival.
        """
        now, peer = self._clock(), self._peers.get(to)
        if peer is None or len(message) > MESSAGE_CAP_BYTES or now - peer.heard_at >= LOST_S:
            return False
        sent = peer.put(MESSAGE + message)
        if peer.channel is not None:
            self._watch(peer.channel)
        return sent

    def receive(self) -> list[tuple[str, bytes]]:
        """What has come since the last call, with the name of who sent it; some MiB at most."""
        now, messages = self._clock(), []
        self._connect(now)
        for key, events in self._selector.select(0):
            channel = key.data
            if events & selectors.EVENT_WRITE:
                channel.flush()
            for number, data in channel.take() if events & selectors.EVENT_READ else ():
                name = self._linked.get((channel, number))
                if data[:1] not in (MESSAGE, PING):
                    self._heed(channel, number, data[:1], data[1:], now)
                elif name is None:
                    channel.put(number, WHO)
                else:
                    self._peers[name].heard_at = now
                    messages += [(name, data[1:])] if data[:1] == MESSAGE else []
        if now >= self._turn_at:
            self._turn_at = now + PING_EVERY_S
            self._turn(now)
        for channel in tuple(self._channels):
            self._watch(channel)
            if channel.broken:
                self._drop(channel, now)
        return messages

    def heard(self, now: float) -> Mapping[str, float]:
        """Of everybody who was ever linked: seconds since they were last heard."""
        return {name: max(0.0, now - peer.heard_at) for name, peer in self._peers.items()}

    def fileno(self) -> int:
        """Readable when something has come; -1 where there is no such descriptor."""
        return int(getattr(self._selector, "fileno", lambda: -1)())

    def close(self) -> None:
        """Let the other ends have what is queued, for LINGER_S at most, and end."""
        heard, until = {channel for channel, _ in self._linked}, time.monotonic() + LINGER_S
        for channel in self._channels:
            channel.close(max(0.01, until - time.monotonic()) if channel in heard else 0.0)
        self._selector.close()

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        raise NotImplementedError

    def _connect(self, now: float) -> None:
        if self._dialler is not None and not self._channels and self.refusal is None:
            channel = self._dialler.poll(now)
            if channel is not None:
                self._add(channel, now)

    def _add(self, channel: Channel, now: float) -> None:  # noqa: ARG002 - an agent needs it
        self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        self._channels[channel] = False

    def _link(self, name: str, peer: Peer) -> None:
        before = self._peers.get(name)
        if before is not None and before.channel is not None:
            self._linked.pop((before.channel, before.number), None)
        self._peers[name] = peer
        if peer.channel is not None:
            self._linked[peer.channel, peer.number] = name

    def _turn(self, now: float) -> None:  # noqa: ARG002 - as _add
        for peer in self._peers.values():
            peer.put(PING)

    def _watch(self, channel: Channel) -> None:
        full = channel.waiting > 0 and not channel.broken
        if full != self._channels[channel]:
            self._channels[channel] = full
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            self._selector.modify(channel.socket, events, channel)

    def _drop(self, channel: Channel, now: float) -> None:
        self._selector.unregister(channel.socket)
        channel.close()
        del self._channels[channel]
        for key in [key for key in self._linked if key[0] is channel]:
            self._peers[self._linked.pop(key)].channel = None
        if self._dialler is not None:
            self._dialler.lost(now)


class Leader(Link):
    """The end that others come to, over a socket of this machine or over the process we start."""

    def __init__(
        self,
        job: str,
        dialler: Dialler | None = None,
        accept: Callable[[], list[Channel]] = list,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(dialler)
        self._job, self._accept, self._ended = job, accept, ended

    def close(self) -> None:
        """As of both ends."""
        super().close()
        self._ended()

    def _connect(self, now: float) -> None:
        super()._connect(now)
        for channel in self._accept():
            self._add(channel, now)

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        if kind != HELLO:
            return
        try:
            hello = msgspec.msgpack.decode(body, type=Hello)
        except (msgspec.DecodeError, ValueError, RecursionError):
            hello = Hello(version="unknown")
        before, said = self._peers.get(hello.name), None
        if hello.version != __version__:
            said = ("version", __version__)
        elif hello.job != self._job:
            said = ("job", self._job)
        elif before is not None and before.channel is not None and now - before.heard_at < LOST_S:
            # The newest connection of a name wins only if the old one is dead, and asks until then.
            said = ("name", hello.name) if before.instance != hello.instance else None
        if said is not None:
            channel.put(number, REFUSED + msgspec.msgpack.encode(said))
        else:
            self._link(hello.name, Peer(channel, number, hello.instance, now))
            channel.put(number, WELCOME)


class Agent(Link):
    """The end that comes to a leader, again and again."""

    def __init__(self, name: str, job: str, dialler: Dialler) -> None:
        super().__init__(dialler)
        self._hello = Hello(version=__version__, name=name, job=job, instance=os.urandom(8).hex())
        self._began = 0.0
        self._refused_at: float | None = None

    def _add(self, channel: Channel, now: float) -> None:
        super()._add(channel, now)
        self._began = now
        self._ask(channel)

    def _ask(self, channel: Channel) -> None:
        channel.put(b"", HELLO + msgspec.msgpack.encode(self._hello))

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        linked = (channel, number) in self._linked
        if kind == WELCOME and not linked:
            self._link(LEADER, Peer(channel, number, "", now))
            self.made += 1
            self._refused_at = None
        elif kind == WHO and linked:
            del self._linked[channel, number]
            self._peers[LEADER].channel = None
            self._ask(channel)
        elif kind == REFUSED and not linked:
            with suppress(msgspec.DecodeError, ValueError, LookupError):
                self._refuse(channel, *msgspec.msgpack.decode(body, type=tuple[str, str]), now)

    def _refuse(self, channel: Channel, reason: str, leaders: str, now: float) -> None:
        message, hint = _REFUSALS[reason]
        if reason == "key" and self.made:
            return  # a leader that ends just now
        self._refused_at = now if self._refused_at is None else self._refused_at
        if reason in ("version", "job") or now - self._refused_at >= SURE_S:
            mine, channel.broken = self._hello, True
            self.refusal = WtrainError(
                message.format(leaders, mine.version if reason == "version" else mine.job),
                context=f"{mine.name} of job {mine.job}",
                hint=hint,
                reference=f"link-{reason}",
            )

    def _turn(self, now: float) -> None:
        super()._turn(now)
        for channel in self._channels:
            linked = (channel, b"") in self._linked
            if now - (self._peers[LEADER].heard_at if linked else self._began) >= LOST_S:
                channel.broken = True
            elif not linked and not channel.waiting:
                self._ask(channel)
