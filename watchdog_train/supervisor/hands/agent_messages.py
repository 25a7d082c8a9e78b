"""The messages between a leader and its agents, as values.

Down go numbered orders, until the agent has recorded that it carries them out; up go reports of one
machine, and numbered parcels, until the leader has them. Both are sent again until they are
answered, so a lost connection loses nothing and does nothing twice.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core.actions import Request
from watchdog_train.core.events import RequestRefused, RunFinished, SaveProven
from watchdog_train.core.fold.state import Crew, Machine
from watchdog_train.core.model import Plan, Value
from watchdog_train.trusted_files import open_read

PARCEL_BYTES = 448 << 10
PLAIN_BYTES = 1 << 10
"""Larger messages are compressed: a report of 8 ranks falls from 5.5 KB to 1 KB."""
MOST_BYTES = 32 << 20
PLAIN, PACKED = b"m", b"z"


class StartAttempt(Value, tag=True):
    """Launch: the leader's command in the plan is the one in `base` with what a resume adds."""

    plan: Plan
    base: tuple[str, ...]


class Discard(Value, tag=True):
    """Forget a stack sample, or evidence, that has been used."""

    name: a.TaskName


class Known(Value, tag=True):
    """Record what became of a request, for the clients that wait for it there."""

    event: SaveProven | RequestRefused


Deed = a.StartLook | a.StartEvidence | a.Signal | a.AskStop | a.AskSave | a.CleanUp
"""Actions that an agent performs exactly as ordered."""
Work = Deed | StartAttempt | Discard | Known


class Order(Value):
    """One deed; numbers of one leader grow by one."""

    number: int
    work: Work


class Orders(Value, tag=True):
    """A message of the leader; without an order it only shows that the leader lives."""

    epoch: int
    leader: Machine
    orders: tuple[Order, ...] = ()
    taken: int = 0
    """The newest parcel that the leader has."""
    checkpoint: str = ""
    """Of the next plan: the agent checks whether it is visible."""
    over: RunFinished | None = None
    """The run has ended for all; an agent answers with its last report."""


class Chunk(Value):
    path: str
    """Relative to the run directory."""
    offset: int
    data: bytes


class Parcel(Value, tag=True):
    """Data that must reach the leader."""

    number: int
    requests: tuple[a.Request, ...]
    chunks: tuple[Chunk, ...]


class Report(Value, tag=True):
    """The present state of one machine."""

    agent: Machine
    epoch: int
    """Of the newest leader that was heard; 0: none was."""
    done: int
    """The newest order of that leader that was begun."""
    attempt: int
    lives: bool = False
    """Something of that attempt may still run."""
    now: float = 0.0
    """By the clock of its machine, as all times in it."""
    sight: a.TreeSight
    checkpoint: str = ""
    """The checkpoint of `sight.sees`."""
    over: bool = False
    """The last message of this agent."""


Message = TypeVar("Message")
ENCODER = msgspec.msgpack.Encoder()
DOWN = msgspec.msgpack.Decoder(Orders)
UP = msgspec.msgpack.Decoder(Report | Parcel)


def encode(message: Orders | Report | Parcel) -> bytes:
    data = ENCODER.encode(message)
    return PLAIN + data if len(data) <= PLAIN_BYTES else PACKED + zlib.compress(data, 1)


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message | None:
    """The message; None if it is not valid."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, zlib.error):
        plain = data[:1] != PACKED
        body = data[1:] if plain else zlib.decompressobj().decompress(data[1:], MOST_BYTES)
        return decoder.decode(body)
    return None


AGAIN_S = 3.0
"""A parcel without an answer is sent again after this time."""
FILE_BYTES = 1024
"""Minimum size counted for a file: opening it costs time, too."""
MOST_FILES = 4096
BUNDLE_BYTES = 64 << 20
"""Maximum total size sent of one bundle: the largest files stay on their machine."""


class Inbox:
    """Orders of the newest leader that have not been begun, in their order."""

    def __init__(self) -> None:
        self.epoch = 0
        self._orders: deque[Order] = deque()

    def __bool__(self) -> bool:
        return bool(self._orders)

    def take(self, word: Orders, crew: Crew) -> bool:
        """Take new orders of a leader; False for a leader that another one has replaced."""
        if word.epoch < max(crew.epoch, self.epoch):
            return False
        if word.epoch != self.epoch:
            self.epoch = word.epoch
            self._orders.clear()
        done = crew.done if crew.epoch == word.epoch else 0
        newest = self._orders[-1].number if self._orders else done
        for order in word.orders:
            if order.number == newest + 1:
                newest = order.number
                self._orders.append(order)
        return True

    def next(self) -> Order:
        """The next order, which is recorded before it is carried out."""
        return self._orders.popleft()


class Parcels:
    """The parcels of one agent; none is lost.

    One is on its way at a time, so samples and orders pass between them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._requests: list[Request] = []
        self._sent: dict[str, int] = {}
        """Bytes of each file that were put into parcels."""
        self._until: dict[str, int] = {}
        """Bytes of each file to send, as known now; in the order of asking."""
        self._parcel: Parcel | None = None
        self._number = 0
        self._said_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether the leader has everything."""
        return not (self._requests or self._until or self._parcel)

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def send_file(self, path: Path, cap_bytes: int) -> None:
        """Send what the file has grown by, up to `cap_bytes` in all; a missing file is skipped."""
        name = path.relative_to(self._directory).as_posix()
        size = min(_size(path), cap_bytes)
        if size > self._sent.get(name, 0):
            self._until[name] = size

    def send_folder(self, folder: Path) -> None:
        """Send all files in it, the small ones first."""
        files = [Path(top, name) for top, _, names in os.walk(folder) for name in names]
        left = BUNDLE_BYTES
        for size, path in sorted((_size(path), path) for path in files[:MOST_FILES]):
            left -= size
            if left >= 0:
                self.send_file(path, size)

    def taken(self, number: int) -> None:
        """The leader has all parcels up to `number`."""
        if self._parcel is not None and self._parcel.number <= number:
            self._parcel = None

    def due(self, now: float) -> Parcel | None:
        """The parcel to send now: the next one if the last one has arrived, else that again."""
        if self.is_empty or (self._parcel is not None and now - self._said_at < AGAIN_S):
            return None
        if self._parcel is None:
            self._number += 1
            requests, chunks = tuple(self._requests), tuple(self._chunks())
            self._parcel = Parcel(number=self._number, requests=requests, chunks=chunks)
            self._requests.clear()
        self._said_at = now
        return self._parcel

    def _chunks(self) -> Iterator[Chunk]:
        left = PARCEL_BYTES
        while self._until and left > 0:
            name, until = next(iter(self._until.items()))
            offset, data = self._sent.get(name, 0), b""
            with suppress(OSError), open_read(self._directory / name) as file:
                file.seek(offset)
                data = file.read(min(left, until - offset))
            left -= max(len(data), FILE_BYTES)
            self._sent[name] = offset + len(data)
            if not data or self._sent[name] >= until:
                del self._until[name]
            if data:
                yield Chunk(path=name, offset=offset, data=data)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat(follow_symlinks=False).st_size
    return 0
