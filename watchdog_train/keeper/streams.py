"""Pumps the output of a training into capped files.

It must never stop draining: a training must not wait for a full, stuck or missing disk. The only
exception is a reader that the supervisor serves and that must get all output: the file waits for it
before it rotates, and the training waits in write as it would without us.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress

from watchdog_train.keeper.messages import Wake, ready

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
for _name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"):  # a FIFO in place of the file must not block
    _FLAGS |= getattr(os, _name, 0)
TIMES = ".times"
TIMES_EVERY_S = 10.0
TRACEBACKS_EVERY_S = 0.2
TRACEBACK = b"Traceback (most recent call last)"
TIMES_CAP_BYTES = 8 * 1024 * 1024  # a month of output without a pause of ten seconds


GATE_LOOK_S = 0.2


class Gate:
    """Lets a file rotate as fast as it is read: each rotation takes a byte of the reader.

    When the reader has closed the pipe, nothing is held back.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self.is_waiting = False
        self.is_over = False  # no writer is left: the rest goes into the same file

    def wait(self) -> bool:
        """Whether the file may rotate, as soon as that is known."""
        while self._fd is not None:
            self.is_waiting = not self.is_over
            opened = ready((self._fd,), (), GATE_LOOK_S if self.is_waiting else 0)
            if opened or not self.is_waiting:
                self.is_waiting = False
                return bool(opened)
        return True

    def rotated(self) -> None:
        """Take the byte, after all went well."""
        if self._fd is not None and not os.read(self._fd, 1):
            self._fd = None


class CappedFile:
    """Keeps the newest of what is appended: when half of its cap is full it is renamed to `.1`.

    It must never raise: a disk that refuses is an answer. The file `.times` records when output was
    written: lines of Unix seconds and the size until then, every ten seconds and at each traceback.
    """

    def __init__(self, path: str, cap_bytes: int, gate: Gate | None = None) -> None:
        self.path = path
        self.gate = gate or Gate()
        self.half_bytes = max(cap_bytes // 2, 1)
        self._fd = -1
        self._size_bytes = 0
        self._timed_at = -TIMES_EVERY_S

    def append(self, data: bytes) -> int:
        """How many bytes the file took; -1 when it refused."""
        try:
            is_full = self._size_bytes > 0 and self._size_bytes + len(data) > self.half_bytes
            if is_full and self.gate.wait():
                self.close()
                os.replace(self.path, self.path + ".1")
                self.gate.rotated()
                self._rotate_times()
            if self._fd < 0:
                self._open()
            self._note_time(TRACEBACK in data)
            written = os.write(self._fd, data[: self.half_bytes])
        except OSError:
            self.close()
            return -1
        self._size_bytes += written
        return written

    def open(self) -> None:
        """Before anything is written: a reader opens it, and keeps it when its folder is gone."""
        with suppress(OSError):
            self._open()

    def close(self) -> None:
        """The next write opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _rotate_times(self) -> None:
        self._timed_at = -TIMES_EVERY_S
        with suppress(OSError):
            os.replace(self.path + TIMES, self.path + ".1" + TIMES)

    def _note_time(self, soon: bool) -> None:
        """Only a convenience for readers: a failed write is ignored."""
        now = time.monotonic()
        if now - self._timed_at < (TRACEBACKS_EVERY_S if soon else TIMES_EVERY_S):
            return
        self._timed_at = now
        with suppress(OSError):
            fd = os.open(self.path + TIMES, _FLAGS, 0o600)
            try:
                if os.fstat(fd).st_size < TIMES_CAP_BYTES:
                    os.write(fd, b"%.2f %d\n" % (time.time(), self._size_bytes))
            finally:
                os.close(fd)

    def _open(self) -> None:
        self._fd = os.open(self.path, _FLAGS, 0o600)
        self._size_bytes = os.fstat(self._fd).st_size


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

    `fed`: another object reads.
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
        """Bytes that would be in no file if we exited now."""
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
        """No more output comes: the writer exits after what it still holds."""
        with self.changed:
            self.ended = True
            self.changed.notify()

    def wait_read(self) -> None:
        """Until the last writer is gone; at once where another object reads."""
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
