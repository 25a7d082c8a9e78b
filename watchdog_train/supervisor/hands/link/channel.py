"""Frames over a stream socket that never blocks: a peer's number, and some bytes.

A number identifies a connection on a shared socket; it is empty for a socket with one peer.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

MESSAGE_CAP_BYTES = 1 << 20
QUEUE_CAP_BYTES = 16 << 20
"""Maximum number of bytes that wait for one socket; more is refused."""
READ_BYTES = 1 << 18
READS = 16
"""Maximum number of reads in a row from one socket: others get their turn."""
_HEADER = struct.Struct("!IB")
AGAIN_S = 0.5
AT_MOST_AGAIN_S = 30.0
SETTLED_S = 10.0
"""After a connection of at least this length the next wait is a short one again."""


class Channel:
    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.socket = link
        self.broken = False
        self._read = bytearray()
        self._unsent = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._unsent)

    def put(self, peer: bytes, data: bytes) -> bool:
        """Send, or queue; whether there was room."""
        if self.broken or len(self._unsent) + len(data) > QUEUE_CAP_BYTES:
            return False
        self.queue(peer, data)
        self.flush()
        return not self.broken

    def queue(self, peer: bytes, data: bytes) -> None:
        self._unsent += _HEADER.pack(len(data), len(peer)) + peer + data

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent[:READ_BYTES])
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.broken = True

    def take(self) -> list[tuple[bytes, bytes]]:
        """Received pairs of peer and bytes; `broken` is set once the other end has closed."""
        try:
            for _ in range(READS):
                data = self.socket.recv(READ_BYTES)
                self._read += data
                if len(data) < READ_BYTES:
                    self.broken = self.broken or not data
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.broken = True
        frames, start = [], 0
        while len(self._read) - start >= _HEADER.size:
            size, name = _HEADER.unpack_from(self._read, start)
            if size > MESSAGE_CAP_BYTES + 1:
                self.broken = True
                break
            begin = start + _HEADER.size + name
            if len(self._read) < begin + size:
                break
            start = begin + size
            frames.append((bytes(self._read[begin - name : begin]), bytes(self._read[begin:start])))
        del self._read[:start]
        return frames

    def close(self, linger_s: float = 0.0) -> None:
        """Close; wait up to `linger_s` until all is sent and the other end closes."""
        self.broken = True
        try:
            if linger_s:
                self.socket.settimeout(linger_s)
                self.socket.sendall(self._unsent)
                self.socket.shutdown(socket.SHUT_WR)
                while self.socket.recv(READ_BYTES):
                    pass
        except OSError:
            pass
        self.socket.close()


class Dialler:
    """Reconnects: at once after a good connection, else after growing, half random waits."""

    def __init__(
        self, dial: Callable[[], socket.socket], close: Callable[[], None] = lambda: None
    ) -> None:
        """`close` is called once nothing is dialled any more."""
        self._dial, self.close = dial, close
        self._channel: Channel | None = None
        self._began = self._at = self._wait_s = 0.0

    def accept(self, now: float) -> list[Channel]:
        """A new connection, if none is open, the wait is over, and dialling succeeds."""
        last = self._channel
        if (last is not None and not last.broken) or now < self._at:
            return []
        settled = last is not None and now - self._began >= SETTLED_S
        self._wait_s = AGAIN_S if settled else min(2 * self._wait_s or AGAIN_S, AT_MOST_AGAIN_S)
        self._began = now
        self._at = now + self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._channel = None
        with suppress(OSError):
            self._channel = Channel(self._dial())
        return [self._channel] if self._channel is not None else []
