"""Streams of single ranks: each goes into a file of its own, and into the common stream.

A rank's output must never wait for these files: they are copies, and note their gaps.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque

from watchdog_train.keeper.messages import ready
from watchdog_train.keeper.streams import CappedFile, Stream, read_block, start_thread

TYPE_CHECKING = False  # importing typing costs 1.5 MiB for as long as the training runs
if TYPE_CHECKING:
    from typing import Any

BUFFER_BYTES = 8 * 1024 * 1024  # of copies that no file takes yet
MOVING_S = 0.05
GAP = b"\n[wtrain: %d bytes of this rank are missing here; output.log has them]\n"


class RankStreams:
    """The streams of all ranks and the shared ones, read by one thread; another writes the copies.

    One reader, so that the order in which launcher and ranks write is kept as well as select()
    shows it; output of the same moment may change places.
    """

    def __init__(self, orders: dict[str, Any] | None) -> None:
        self.variable = orders["variable"] if orders else ""
        self.cap_bytes = orders["cap_bytes"] if orders else 0
        self.streams: list[dict[str, Any]] = orders["streams"] if orders else []
        self.fds = [fd for rank in self.streams for one in rank.values() for fd in one["fds"]]
        self.into: dict[int, Stream] = {}
        self.copies: dict[int, Copy] = {}
        self.changed = threading.Condition()
        self.blocks: deque[tuple[Copy, bytes]] = deque()
        self.held_bytes = 0
        self.ended = False
        self.moving = threading.Lock()
        self.reader: threading.Thread | None = None
        self.writer: threading.Thread | None = None

    def announce(self, child_fds: dict[str, int]) -> None:
        """Pass the launcher the paths for its ranks' output in its environment.

        They lead to our own open files: such a path lives exactly as long as its reader. A launcher
        that writes elsewhere (into a pipe of the user's own script) knows it by `own`.
        """
        me = os.getpid()
        places = [
            {name: f"/proc/{me}/fd/{one['fds'][1]}" for name, one in rank.items()}
            for rank in self.streams
        ]
        if places:
            own = {}
            for name in ("stdout", "stderr"):
                found = os.fstat(child_fds[name])
                own[name] = [found.st_dev, found.st_ino]
            os.environ[self.variable] = json.dumps({"ranks": places, "own": own})

    def start(self, streams: dict[str, Stream]) -> None:
        if not self.streams:
            return
        self.into = {stream.fd: stream for stream in streams.values()}
        for rank in self.streams:
            for name, one in rank.items():
                fd = one["fds"][0]
                self.into[fd] = streams[name]
                self.copies[fd] = Copy(one["path"], self.cap_bytes)
        self.reader = start_thread(self._read)
        self.writer = start_thread(self._write)

    def settled(self) -> bool:
        """Whether everything that was written until now has been read."""
        if not self.moving.acquire(timeout=MOVING_S):  # a reader of the output holds it back
            return False
        try:
            return not self.into or not ready(self.into, (), 0)
        finally:
            self.moving.release()

    def close_writes(self) -> None:
        """No rank is left that could open them; only a keeper that started the ranks has them."""
        for rank in self.streams:
            for one in rank.values():
                for fd in one["fds"][1:]:
                    os.close(fd)

    def end(self) -> None:
        """No more output comes: the writer exits after what it still holds."""
        with self.changed:
            self.ended = True
            self.changed.notify()

    def finish(self, patience_s: float) -> None:
        if self.reader is not None and self.writer is not None:
            if not self.ended:  # else remaining processes may hold the other ends open
                self.reader.join(patience_s)
            self.writer.join(patience_s)

    def _read(self) -> None:
        fed = set(self.into.values())
        while self.into:
            for fd in ready(self.into):
                with self.moving:
                    block = read_block(fd)
                    if not block:
                        del self.into[fd]
                        continue
                    if fd in self.copies:
                        self._copy(self.copies[fd], block)
                    self.into[fd].take(block)
        for stream in fed:
            stream.end()
        self.end()

    def _copy(self, copy: Copy, block: bytes) -> None:
        with self.changed:
            self.blocks.append((copy, block))
            self.held_bytes += len(block)
            while self.held_bytes > BUFFER_BYTES:
                late, oldest = self.blocks.popleft()
                self.held_bytes -= len(oldest)
                late.missing_bytes += len(oldest)
            self.changed.notify()

    def _write(self) -> None:
        while True:
            with self.changed:
                while not self.blocks and not self.ended:
                    self.changed.wait()
                if not self.blocks:
                    return
                copy, block = self.blocks.popleft()
                self.held_bytes -= len(block)
                missing_bytes, copy.missing_bytes = copy.missing_bytes, 0
            missed_bytes = copy.append(block, missing_bytes)
            if missed_bytes:
                with self.changed:
                    copy.missing_bytes += missed_bytes


class Copy:
    """The file of one stream of one rank, made at its first output."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self.file = CappedFile(path, cap_bytes)
        self.missing_bytes = 0  # before the next block in this file; guarded by RankStreams.changed
        self.folder_made = False

    def append(self, block: bytes, missing_bytes: int) -> int:
        """Write it, after a note on what is missing before it; how many bytes are missing now."""
        if not self.folder_made:
            try:
                os.makedirs(os.path.dirname(self.file.path), 0o700, exist_ok=True)
            except OSError:
                return missing_bytes + len(block)
            self.folder_made = True
        if missing_bytes and self.file.append(GAP % missing_bytes) < 0:
            return missing_bytes + len(block)
        while block:
            written = self.file.append(block)
            if written < 0:
                return len(block)
            block = block[written:]
        return 0
