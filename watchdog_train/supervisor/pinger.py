"""Keeps the child that pings for us alive, and tells it with a byte that our loop still turns.

Must not send a ping itself, and must never wait for the child.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.policy import Policy
from watchdog_train.notify.channels import Answer
from watchdog_train.notify.ping_order import CHANNEL, PingOrder
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.trusted_files import make_folder
from watchdog_train.whole_files import replace_json

CHILD = "ping"
BYTE_EVERY_S = 1.0
LISTEN_EVERY_S = 5.0
AGAIN_S = 60.0
"""Between two starts of a child that does not stay."""
BLIND_S = 30.0
"""A loop that has not turned for so long is blind; its longest known turn takes a second."""
LINE_CAP_BYTES = 4096


class Pinger:
    """The dead-man ping of one supervisor."""

    def __init__(
        self,
        policy: Policy,
        *,
        children: ChildTable,
        staging_dir: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._children = children
        self._order_file = staging_dir / "ping-order.json"
        self._clock = clock
        self._child: Child | None = None
        self._to_child = self._from_child = -1
        self._start_at = 0.0
        self._byte_at = self._listen_at = 0.0
        self._cannot: str | None = None

    def turned(self) -> Iterator[e.Notified]:
        """The loop has turned; yields what the child has to say: mostly nothing."""
        if self._policy.notify.ping is None:
            return
        now = self._clock()
        if self._child is None or self._child not in self._children.running():
            if now >= self._start_at:
                self._start_at = now + AGAIN_S
                yield from self._start(self._policy.notify.ping)
            return
        if now - self._byte_at >= BYTE_EVERY_S:
            self._byte_at = now
            # Full: it has not read for a day; it hears of us all the same.
            with suppress(OSError):
                os.write(self._to_child, b".")
        if now - self._listen_at >= LISTEN_EVERY_S:
            self._listen_at = now
            yield from self._listen()

    def close(self) -> None:
        """Let it end: its stdin is closed."""
        for fd in (self._to_child, self._from_child):
            if fd >= 0:
                os.close(fd)
        self._to_child = self._from_child = -1

    def _start(self, url: str) -> Iterator[e.Notified]:
        self.close()
        notify = self._policy.notify
        order = PingOrder(
            url=url,
            every_s=notify.ping_every_s,
            blind_s=max(BLIND_S, 3 * self._policy.detection.poll_s),
        )
        stdin, self._to_child = os.pipe()
        self._from_child, stdout = os.pipe()
        try:
            if sys.platform != "win32":
                for fd in (self._to_child, self._from_child):
                    os.set_blocking(fd, False)
            make_folder(self._order_file.parent)
            replace_json(self._order_file, order)
            argv = [sys.executable, "-I", "-m", "watchdog_train.notify.ping", str(self._order_file)]
            self._child = self._children.spawn(
                argv, name=CHILD, deadline_s=None, stdin=stdin, stdout=stdout
            )
        except OSError as error:
            with suppress(OSError):
                self._order_file.unlink(missing_ok=True)
            why = f"it could not be started: {error.strerror}"
            if why != self._cannot:
                self._cannot = why
                yield _event(Answer(channel=CHANNEL, sent=False, why=why))
        finally:
            os.close(stdin)
            os.close(stdout)

    def _listen(self) -> Iterator[e.Notified]:
        try:
            data = os.read(self._from_child, LINE_CAP_BYTES)
        except OSError:  # nothing to say: all is as it was
            return
        for line in data.splitlines():
            with suppress(msgspec.DecodeError):
                yield _event(msgspec.json.decode(line, type=Answer))


def _event(answer: Answer) -> e.Notified:
    return e.Notified(channel=CHANNEL, topics=(CHANNEL,), sent=answer.sent, why=answer.why)
