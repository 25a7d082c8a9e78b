"""Pumps the output of a training into capped files.

It must never stop draining: a full, stuck or vanished disk is no reason for a training to wait. The
one exception is a reader of the output whom the supervisor serves, and who must get all of it: the
file waits for them before it rotates, and the training waits in write as it would without us.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque

from watchdog_train.keeper.capped import CappedFile, Gate
from watchdog_train.keeper.messages import Wake, ready

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BUFFER_BYTES = 8 * 1024 * 1024  # of output that no file takes yet; then the oldest is dropped
BLOCK_BYTES = 65536
WRITE_BYTES = 1024 * 1024
GATHER_S = 0.02  # small writes of a training are gathered this long: fewer wake-ups for everyone
STUCK_S = 1.0  # a disk that takes nothing for this long no longer slows the training down


class Stream:
    """One stream of the training: a reader that never waits for long, and a writer.

    `fed` leaves the reading to somebody else.
    """

    def __init__(
        self, path: str, fd: int, cap_bytes: int, wake: Wake, gate: Gate, *, fed: bool = False
    ) -> None:
        self.fd = fd
        self.wake = wake
        self.changed = threading.Condition()
        self.blocks: deque[bytes] = deque()
        self.held_bytes = 0
        self.dropped_bytes = 0
        self.stuck = False
        self.ended = False
        self.file = CappedFile(path, cap_bytes, gate)
        self.file.open()
        self.reader = None if fed else start_thread(self._read)
        self.writer = start_thread(self._write)

    def settled(self) -> bool:
        """Whether everything that was written until now is in the file."""
        with self.changed:
            if self.ended or self.held_bytes:
                return not self.held_bytes
        return sys.platform == "win32" or not ready((self.fd,), (), 0)

    def lost_bytes(self) -> int:
        """What no file has, should we end now."""
        with self.changed:
            return self.dropped_bytes + self.held_bytes

    def take(self, block: bytes) -> None:
        """Output for the file. A fast training is slowed by a pipe that fills, as without us."""
        with self.changed:
            # A stuck or full disk must not stop it; a reader who is behind may.
            while self.held_bytes + len(block) > BUFFER_BYTES and not self.stuck:
                took = self.changed.wait(STUCK_S)
                self.stuck = not (took or self.file.gate.is_waiting)
            self.blocks.append(block)
            self.held_bytes += len(block)
            while self.held_bytes > BUFFER_BYTES and self.blocks:
                oldest = self.blocks.popleft()
                self.held_bytes -= len(oldest)
                self.dropped_bytes += len(oldest)
            self.changed.notify()

    def end(self) -> None:
        """Nothing more will come."""
        with self.changed:
            self.ended = True
            self.changed.notify()

    def wait_read(self) -> None:
        """Until the last writer is gone; at once where somebody else reads."""
        if self.reader is not None:
            self.reader.join()

    def _read(self) -> None:
        while block := read_block(self.fd):
            self.take(block)
        self.end()

    def _write(self) -> None:
        while True:
            with self.changed:
                while not self.blocks and not self.ended:
                    self.changed.wait()
                if not self.blocks:
                    return
                blocks = [self.blocks.popleft()]
                size = len(blocks[0])
                while self.blocks and size + len(self.blocks[0]) <= WRITE_BYTES:
                    blocks.append(self.blocks.popleft())
                    size += len(blocks[-1])
            data = b"".join(blocks)
            written = self.file.append(data)
            with self.changed:
                self.held_bytes -= max(written, 0)
                if written < len(data):
                    self.blocks.appendleft(data[max(written, 0) :])
                self.stuck = written < 0
                self.changed.notify()
                busy = self.held_bytes > WRITE_BYTES or self.ended
            self.wake.ring()
            if written < 0:
                time.sleep(STUCK_S)
            elif not busy:
                time.sleep(GATHER_S)


def start_thread(target: Callable[[], None]) -> threading.Thread:
    """A daemon thread; where the limit of processes is used up, once there is room again."""
    while True:
        thread = threading.Thread(target=target, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            time.sleep(STUCK_S)
        else:
            return thread


def read_block(fd: int) -> bytes:
    """What is there, waiting for it; nothing at the end."""
    try:
        return os.read(fd, BLOCK_BYTES)
    except OSError:  # EIO: the last writer of a pseudo-terminal is gone
        return b""


def open_streams(orders: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """The ends we read and the ends the training writes; pipes of our own where none were given."""
    if orders["fds"]:
        return orders["fds"], orders["child_fds"]
    reads, writes = {}, {}
    for name in orders["streams"]:
        reads[name], writes[name] = os.pipe()
    both = writes.get("output", -1)
    child_fds = {"stdin": 0, "stdout": writes.get("stdout", both)}
    return reads, {**child_fds, "stderr": writes.get("stderr", both)}


def start_pump(orders: dict[str, Any], reads: dict[str, int], wake: Wake) -> dict[str, Stream]:
    """Begin to drain every stream into its file; RankStreams does the reading where it exists."""
    fed = bool(orders.get("ranks"))
    gates = orders.get("gates", {})
    return {
        name: Stream(path, reads[name], orders["cap_bytes"], wake, Gate(gates.get(name)), fed=fed)
        for name, path in orders["streams"].items()
    }
