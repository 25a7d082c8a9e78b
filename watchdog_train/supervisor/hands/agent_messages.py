"""What a leader and its agents tell each other, as values.

Down go orders, each with a number, until the agent has written down that it carries them out; up go
reports of one machine, and parcels, each with a number, until the leader has them. Both are said
again until they are answered, so a lost connection loses nothing and does nothing twice.
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
"""Larger ones are packed: a report of 8 ranks has 5.5 KB, 1 KB when it is."""
MOST_BYTES = 32 << 20
PLAIN, PACKED = b"m", b"z"


class StartAttempt(Value, tag=True):
    """Launch: the leader's command in the plan is the one in `base` with what a resume adds."""

    plan: Plan
    base: tuple[str, ...]


class Discard(Value, tag=True):
    """Forget a look, or evidence, that has been used."""

    name: a.TaskName


class Known(Value, tag=True):
    """Write down what became of a request, for those who wait for it there."""

    event: SaveProven | RequestRefused


Deed = a.StartLook | a.StartEvidence | a.Signal | a.AskStop | a.AskSave | a.CleanUp
"""What an agent does as it is said."""
Work = Deed | StartAttempt | Discard | Known


class Order(Value):
    """One deed; numbers of one leader grow by one."""

    number: int
    work: Work


class Orders(Value, tag=True):
    """A leader's word; without an order it says that the leader lives."""

    epoch: int
    leader: Machine
    orders: tuple[Order, ...] = ()
    taken: int = 0
    """The newest parcel that the leader has."""
    checkpoint: str = ""
    """Of the next plan: is it to be seen there?"""
    over: RunFinished | None = None
    """The run has ended for all; an agent answers with its last report."""


class Chunk(Value):
    """A part of a file."""

    path: str
    """Relative to the run directory."""
    offset: int
    data: bytes


class Parcel(Value, tag=True):
    """What must not be lost on its way to the leader."""

    number: int
    requests: tuple[a.Request, ...]
    chunks: tuple[Chunk, ...]


class Report(Value, tag=True):
    """All that is known of one machine now."""

    agent: Machine
    epoch: int
    """Of the newest leader that was heard; 0: none was."""
    done: int
    """The newest order of that leader that is being carried out, or has been."""
    attempt: int
    lives: bool = False
    """That attempt: something may be left of it."""
    now: float = 0.0
    """By the clock of its machine, as all times in it."""
    sight: a.TreeSight
    checkpoint: str = ""
    """About which `sight.sees` says something."""
    over: bool = False
    """The last word of this agent."""


Message = TypeVar("Message")
ENCODER = msgspec.msgpack.Encoder()
DOWN = msgspec.msgpack.Decoder(Orders)
UP = msgspec.msgpack.Decoder(Report | Parcel)


def encode(message: Orders | Report | Parcel) -> bytes:
    data = ENCODER.encode(message)
    return PLAIN + data if len(data) <= PLAIN_BYTES else PACKED + zlib.compress(data, 1)


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message | None:
    """The message; what is none says nothing."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, zlib.error):
        plain = data[:1] != PACKED
        body = data[1:] if plain else zlib.decompressobj().decompress(data[1:], MOST_BYTES)
        return decoder.decode(body)
    return None


AGAIN_S = 3.0
"""After so long without an answer a parcel is sent again."""
FILE_BYTES = 1024
"""A file counts for at least so many: opening it costs time, too."""
MOST_FILES = 4096
BUNDLE_BYTES = 64 << 20
"""Of one bundle: what is larger stays on its machine."""


class Inbox:
    """The orders of the newest leader that have not been begun, in their order."""

    def __init__(self) -> None:
        self.epoch = 0
        self._orders: deque[Order] = deque()

    def __bool__(self) -> bool:
        return bool(self._orders)

    def take(self, word: Orders, crew: Crew) -> bool:
        """Take what is new in a leader's word; False for a leader that another one has replaced."""
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
        """The next one, which is written down before it is carried out."""
        return self._orders.popleft()


class Parcels:
    """The parcels of one agent, none of which is lost.

    One is on its way at a time, so samples and orders pass between them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._requests: list[Request] = []
        self._sent: dict[str, int] = {}
        """How much of each file has been put into parcels."""
        self._until: dict[str, int] = {}
        """How much of each will be, as far as it is known now; in the order of asking."""
        self._parcel: Parcel | None = None
        """On its way."""
        self._number = 0
        self._said_at = 0.0

    @property
    def is_empty(self) -> bool:
        """All that was asked for has arrived."""
        return not (self._requests or self._until or self._parcel)

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def send_file(self, path: Path, cap_bytes: int) -> None:
        """Send what it has grown by; a file that is gone or no file is left out."""
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
        """The leader has all up to this one."""
        if self._parcel is not None and self._parcel.number <= number:
            self._parcel = None

    def due(self, now: float) -> Parcel | None:
        """What is to be sent now: another parcel once the last one has arrived, else that again."""
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
