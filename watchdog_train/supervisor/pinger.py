"""Keeps the child that pings for us alive, and tells it with a byte that our loop still turns.

Must not send a ping itself, and must never wait for the child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.model import said
from watchdog_train.core.policy import Policy
from watchdog_train.notify.channels import Answer
from watchdog_train.notify.ping_order import CHANNEL, PingOrder
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.helper import Helper, module

BYTE_EVERY_S = 1.0
LISTEN_EVERY_S = 5.0
AGAIN_S = 60.0
"""Between two starts of a child that does not stay."""
BLIND_S = 30.0
"""A loop that has not turned for so long is blind; its longest known turn takes a second."""


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
        self._helper = Helper(children, "ping", staging_dir)
        self._clock = clock
        self._start_at = 0.0
        self._byte_at = self._listen_at = 0.0
        self._cannot: str | None = None

    def turned(self) -> Iterator[e.Notified]:
        """The loop has turned; yields what the child has to say: mostly nothing."""
        if self._policy.notify.ping is None:
            return
        now = self._clock()
        if not self._helper.running:
            if now >= self._start_at:
                self._start_at = now + AGAIN_S
                yield from self._start(self._policy.notify.ping)
            return
        if now - self._byte_at >= BYTE_EVERY_S:
            self._byte_at = now
            self._helper.say(b".")
        if now - self._listen_at >= LISTEN_EVERY_S:
            self._listen_at = now
            for line in self._helper.hear() or ():
                with suppress(msgspec.DecodeError):
                    yield _event(msgspec.json.decode(line, type=Answer))

    def close(self) -> None:
        """Let it end."""
        self._helper.close()

    def _start(self, url: str) -> Iterator[e.Notified]:
        order = PingOrder(
            url=url,
            every_s=self._policy.notify.ping_every_s,
            blind_s=max(BLIND_S, 3 * self._policy.detection.poll_s),
        )
        try:
            argv = module("watchdog_train.notify.ping")
            self._helper.start(argv, question=order, stays="stdout")
        except OSError as error:
            why = f"it could not be started: {error.strerror}"
            if why != self._cannot:
                self._cannot = why
                yield _event(Answer(channel=CHANNEL, sent=False, why=why))


def _event(answer: Answer) -> e.Notified:
    return e.Notified(
        channel=CHANNEL,
        topics=(CHANNEL,),
        sent=answer.sent,
        why=said(answer.why) if answer.why else None,
    )
