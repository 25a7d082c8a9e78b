"""An agent's mail: orders, each carried out once, and parcels, none of which is lost.

One parcel is on its way at a time, so samples and orders pass between them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from watchdog_train.core.actions import Request
from watchdog_train.core.fold.state import Crew
from watchdog_train.supervisor.hands.wire import PARCEL_BYTES, Chunk, Order, Orders, Parcel
from watchdog_train.trusted_files import open_read

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


class Outbox:
    """Of one agent."""

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
        """Pass a person's request on."""
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
