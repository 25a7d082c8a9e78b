"""The two ends of a link: key of the job, names, versions, peers. Transport is elsewhere."""

from __future__ import annotations

import itertools
import os
import re
import selectors
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from watchdog_train import __version__
from watchdog_train.core.model import Value
from watchdog_train.errors import WtrainError
from watchdog_train.supervisor.hands.link.channel import MESSAGE_CAP_BYTES, Channel, Dialler
from watchdog_train.trusted_files import open_read

if TYPE_CHECKING:
    from watchdog_train.supervisor.hands.link.start import Listener


LEADER = "leader"
"""What agents call the other end."""
LOST_S = 20.0
"""Silence after which an end counts as disconnected."""
HELLO_EVERY_S = 5.0
"""How often an agent sends its name, so that one with nothing else to send is heard, too."""
LINGER_S = 3.0
FULL_BYTES = 1 << 17  # Linux gives a unix socket 208 KiB, and counts more than the bytes
SURE_S = 60.0
"""How long a refusal must last to be final: a dead agent may have our name, a leader may start."""
SURE_OF_KEY_S = 30.0
"""The same for another key: maybe of an earlier job, whose leader is about to exit."""
MESSAGE, HELLO, WELCOME, REFUSED = b"M", b"H", b"W", b"R"
"""First byte of each message. A leader answers each hello; messages before a hello are dropped."""
_REFUSALS = {
    "version": ("the leader has wtrain {}, this machine has {}", "install the same on both"),
    "job": ("the leader's job is {}, this task's job is {}", "give each job its own address"),
    "name": ("another task {} is connected already", "start each task of the job once"),
    "key": (
        "what listens at the leader's address does not take this key",
        "export WTRAIN_JOB_KEY once, before srun: all machines need the same",
    ),
}


class Hello(Value):
    """An agent's identity; later versions must keep these fields. `instance` is random."""

    version: str
    name: str = ""
    job: str = ""
    instance: str = ""


@dataclass(eq=False)
class Peer:
    channel: Channel
    number: bytes
    instance: str
    heard_at: float


class Link:
    """One end. Its work is done inside receive(): call it several times a second."""

    def __init__(self, job: str, source: Listener | Dialler) -> None:
        self.refusal: WtrainError | None = None
        """Why the leader refuses us: another version, job or key; a name in use."""
        self._job, self._source, self._clock = job, source, time.monotonic
        self._selector = selectors.DefaultSelector()
        self._channels: list[Channel] = []
        self._peers: dict[str, Peer] = {}
        self._linked: dict[tuple[Channel, bytes], str] = {}
        self._came: list[tuple[str, bytes]] = []

    def send(self, to: str, message: bytes) -> bool:
        """Send, or queue; False for an unknown or silent name, a full queue or too large a message.

        True does not mean that the message arrives.
        """
        now, peer = self._clock(), self._peers.get(to)
        if peer is None or len(message) > MESSAGE_CAP_BYTES or now - peer.heard_at >= LOST_S:
            return False
        sent = peer.channel.put(peer.number, MESSAGE + message)
        if not peer.channel.broken:
            self._watch(peer.channel)
        return sent

    def receive(self) -> list[tuple[str, bytes]]:
        """Messages since the last call, with the name of the sender."""
        self.gather()
        messages, self._came = self._came, []
        return messages

    def gather(self) -> bool:
        """Read messages for the next receive(); whether a socket was full: then there is more."""
        now, got = self._clock(), 0
        self._connect(now)
        for key, _ in self._selector.select(0):
            channel = key.data
            channel.flush()
            for number, data in channel.take():
                got += len(data)
                if data[:1] != MESSAGE:
                    self._heed(channel, number, data[:1], data[1:], now)
                elif (name := self._linked.get((channel, number))) is not None:
                    self._peers[name].heard_at = now
                    self._came.append((name, data[1:]))
        for channel in tuple(self._channels):
            self._watch(channel)
            if channel.broken:
                self._drop(channel)
        return got >= FULL_BYTES

    def fileno(self) -> int:
        """Readable when a message has come; -1 where there is no such descriptor."""
        return int(getattr(self._selector, "fileno", lambda: -1)())

    def close(self) -> None:
        """Send what is queued, for LINGER_S at most, and close."""
        heard, until = {channel for channel, _ in self._linked}, time.monotonic() + LINGER_S
        for channel in self._channels:
            channel.close(max(0.01, until - time.monotonic()) if channel in heard else 0.0)
        self._selector.close()
        self._source.close()

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        raise NotImplementedError

    def _connect(self, now: float) -> list[Channel]:
        new = self._source.accept(now) if self.refusal is None else []
        for channel in new:
            self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        self._channels += new
        return new

    def _link(self, name: str, peer: Peer) -> None:
        before = self._peers.get(name)
        if before is not None:
            self._linked.pop((before.channel, before.number), None)
        self._peers[name] = peer
        self._linked[peer.channel, peer.number] = name

    def _watch(self, channel: Channel) -> None:
        full = channel.waiting > 0 and not channel.broken
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
        if events != self._selector.get_key(channel.socket).events:
            self._selector.modify(channel.socket, events, channel)

    def _drop(self, channel: Channel) -> None:
        self._selector.unregister(channel.socket)
        channel.close()
        self._channels.remove(channel)
        self._linked = {key: name for key, name in self._linked.items() if key[0] is not channel}


class Leader(Link):
    """Listens on a socket of this machine, or through the process we start."""

    other_key = False
    """A peer with another key was refused."""

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        self.other_key = self.other_key or (kind == REFUSED and not number)
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
        elif before is not None and not before.channel.broken and now - before.heard_at < LOST_S:
            # The newest connection of a name wins only if the old one is dead, and asks until then.
            said = ("name", hello.name) if before.instance != hello.instance else None
        if said is not None:
            channel.put(number, REFUSED + msgspec.msgpack.encode(said))
        else:
            self._link(hello.name, Peer(channel, number, hello.instance, now))
            channel.put(number, WELCOME)


class Agent(Link):
    """The end that connects to a leader, again and again."""

    def __init__(self, name: str, job: str, source: Dialler) -> None:
        super().__init__(job, source)
        self._hello = Hello(version=__version__, name=name, job=job, instance=os.urandom(8).hex())
        self._began = self._said_at = 0.0
        self._refused_at: float | None = None
        self.was_welcome = False

    def _connect(self, now: float) -> list[Channel]:
        if new := super()._connect(now):
            self._began, self._said_at = now, 0.0
        for channel in self._channels:
            heard_at = max(self._began, *(peer.heard_at for peer in self._peers.values()), 0.0)
            if now - heard_at >= LOST_S:
                channel.broken = True
            elif now - self._said_at >= HELLO_EVERY_S and not channel.waiting:
                self._said_at = now
                channel.put(b"", HELLO + msgspec.msgpack.encode(self._hello))
        return new

    def _heed(self, channel: Channel, number: bytes, kind: bytes, body: bytes, now: float) -> None:
        if kind == WELCOME:
            self._link(LEADER, Peer(channel, number, "", now))
            self.was_welcome, self._refused_at = True, None
        elif kind == REFUSED:
            with suppress(msgspec.DecodeError, ValueError, LookupError):
                self._refuse(channel, *msgspec.msgpack.decode(body, type=tuple[str, str]), now)

    def _refuse(self, channel: Channel, reason: str, leaders: str, now: float) -> None:
        message, hint = _REFUSALS[reason]
        if reason == "key" and self.was_welcome:
            return  # a leader that ends just now
        self._peers.clear()
        self._linked.clear()
        self._refused_at = now if self._refused_at is None else self._refused_at
        sure_s = {"version": 0.0, "job": 0.0, "key": SURE_OF_KEY_S}.get(reason, SURE_S)
        if now - self._refused_at >= sure_s:
            mine, channel.broken = self._hello, True
            self.refusal = WtrainError(
                message.format(leaders, mine.version if reason == "version" else mine.job),
                context=f"{mine.name} of job {mine.job}",
                hint=hint,
                reference=f"link-{reason}",
            )


VARIABLE = "WTRAIN_JOB_KEY"
_PASTE = f"""put this into the job's script, before the first task starts:
    export {VARIABLE}=$(wtrain key)
or name a file there that only you can read, by its whole path"""


def job_key(environment: Mapping[str, str]) -> str:
    """The key of a job, given directly or as a file. Its holder may join the job or pose as leader.

    Raises:
        WtrainError: no key or a bad one, or others can read its file.
    """
    given = environment.get(VARIABLE, "").strip()
    why = "a key has 64 digits of 0-9a-f" if given else "several machines need a key"
    if os.path.isabs(given):
        try:
            with open_read(given, follow=True, trusted=True) as file:
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    why = f"others can read the key: chmod 600 {given}"
                else:
                    given = file.read(1024).decode("ascii", "replace").strip()
        except OSError as error:
            why = f"the key cannot be read: {error.strerror}: {given}"
    is_key = re.fullmatch(r"[0-9a-f]{64}", given) is not None
    if is_key and _is_guessable(given):
        is_key, why = False, "anybody could guess this key: take a random one"
    if not is_key:
        raise WtrainError(why, context=VARIABLE, hint=_PASTE, reference="job-key")
    return given


def _is_guessable(key: str) -> bool:
    """Few digits, a repeated text, or numbers in a row: a random key is never like that."""
    steps = {(b - a) % 256 for a, b in itertools.pairwise(bytes.fromhex(key))}
    return len(set(key)) < 8 or key in (key + key)[1:-1] or len(steps) < 8


def secret_of(key: str, whose: str) -> bytes:
    """The secret half of the leader's key pair, or of the pair that all agents share."""
    return blake2b(whose.encode(), key=bytes.fromhex(key), digest_size=32).digest()
