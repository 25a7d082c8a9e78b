"""What a leader and its agents tell each other, as values.

Down go orders, each with a number, until the agent has written down that it carries them out; up go
reports of one machine, and parcels, each with a number, until the leader has them. Both are said
again until they are answered, so a lost connection loses nothing and does nothing twice.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TypeVar

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core.events import RequestRefused, RunFinished, SaveProven
from watchdog_train.core.fold.state import Machine
from watchdog_train.core.model import Plan, Value

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
    """Its bytes."""
    data = ENCODER.encode(message)
    return PLAIN + data if len(data) <= PLAIN_BYTES else PACKED + zlib.compress(data, 1)


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message | None:
    """The message; what is none says nothing."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, zlib.error):
        plain = data[:1] != PACKED
        body = data[1:] if plain else zlib.decompressobj().decompress(data[1:], MOST_BYTES)
        return decoder.decode(body)
    return None
