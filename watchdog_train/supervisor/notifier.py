"""Sends messages to people: collects news, sends digests by a child, records the results.

Must not wait, but for the last message of a run, and then with a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.config import load
from watchdog_train.config.text import HIDDEN_URL
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.errors import WtrainError
from watchdog_train.notify import Answer, Message, Order, Parcel, names
from watchdog_train.report.messages import News, Topic, news, title
from watchdog_train.supervisor.children import ChildTable, Helper, module

MOST_LINES = 20
RETRY_FIRST_S = 60.0
RETRY_MOST_S = 900.0
"""After each failure in a row twice as long: a network that is away at night comes back."""


class Undelivered(msgspec.Struct):
    """The lines that one channel has not been told yet, oldest first. Times come from the caller.

    A message may arrive twice: a service took it, and its answer was lost. While the run lives none
    is lost, except the oldest of more than MOST_LINES, which are counted.
    """

    every_s: float
    """Between two messages; the last one of a run does not wait."""
    lines: list[News] = []
    left_out: int = 0
    on_the_way: tuple[News, ...] = ()
    left_out_told: int = 0
    """Of those left out: what the message on the way says."""
    failures: int = 0
    """In a row."""
    not_before_s: float = float("-inf")

    def keep(self, told: News) -> None:
        """One more line; the last one of a run opens the way for all."""
        self.lines.append(told)
        self._cap()
        if told.last:
            self.not_before_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether there is something to send, and its time has come."""
        return bool(self.lines) and not self.on_the_way and now_s >= self.not_before_s

    def take(self, now_s: float) -> tuple[News, ...]:
        """What is sent now; to be answered by arrived() or failed()."""
        self.on_the_way, self.lines = tuple(self.lines), []
        self.left_out_told = self.left_out
        self.not_before_s = now_s + self.every_s
        return self.on_the_way

    def text(self) -> str:
        """The body of the message on the way."""
        lines = [each.line for each in self.on_the_way]
        if self.left_out_told:
            lines.insert(0, f"({self.left_out_told} earlier messages are left out)")
        return "\n".join(lines)

    def topics(self) -> tuple[Topic, ...]:
        """Of the message on the way, oldest first."""
        return tuple(each.topic for each in self.on_the_way)

    def arrived(self) -> None:
        self.left_out -= self.left_out_told
        self.on_the_way, self.failures = (), 0

    def failed(self, now_s: float) -> None:
        """Nobody was told: it is sent again with what comes meanwhile, later each time."""
        hurries = any(each.last for each in self.lines)
        self.lines[:0] = self.on_the_way
        self.on_the_way = ()
        self._cap()
        wait_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        self.not_before_s = float("-inf") if hurries else now_s + max(self.every_s, wait_s)

    def _cap(self) -> None:
        over = len(self.lines) - MOST_LINES
        if over > 0:
            del self.lines[:over]
            self.left_out += over


CHILD_S = 15.0
LAST_S = 16.0
"""At the end of a run, for a message on its way and for the last one: the exit code waits."""


def known_urls(urls: Sequence[str], environment: Mapping[str, str], *, cwd: str) -> tuple[str, ...]:
    """The URLs of a run; one that goes on has them from the environment or wtrain.yaml again."""
    known = tuple(url for url in urls if not url.endswith(HIDDEN_URL))
    if urls and not known:
        known = tuple(environment.get("WTRAIN_NOTIFY", "").split())
    if urls and not known:
        with suppress(WtrainError):
            known = load(directory=Path(cwd)).policy.notify.urls
    return known


class Notifier:
    """The messages of one run; at most one child at a time."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        every_s: float,
        children: ChildTable,
        staging_dir: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = dict(zip(names(urls), urls, strict=True))
        self._channels = {name: Undelivered(every_s) for name in self._urls}
        self._helper = Helper(children, "notify", staging_dir)
        self._clock = clock

    def follow(self, event: e.AnyEvent, state: State) -> None:
        told = news(event, state) if self._channels else None
        if told is None:
            return
        for channel in self._channels.values():
            channel.keep(told)

    def poll(self, state: State) -> Iterator[e.Notified]:
        """Take answers, and send what waits if it is time; returns at once."""
        if self._helper.running:
            return
        yield from self._answers()
        if self._is_due():
            yield from self._send(state)

    def finish(self, state: State) -> Iterator[e.Notified]:
        """Send the last message and wait for its answer, at most LAST_S."""
        until = self._clock() + LAST_S
        while (self._is_due() or self._on_the_way) and self._clock() < until:
            self._helper.children.poll()
            yield from self.poll(state)
            time.sleep(0.05)
        self._helper.kill()
        yield from self._failed(f"no answer within {LAST_S:.0f} s")

    def _is_due(self) -> bool:
        return any(channel.is_due(self._clock()) for channel in self._channels.values())

    def _send(self, state: State) -> Iterator[e.Notified]:
        parcels = []
        for name, channel in self._channels.items():
            if not channel.is_due(self._clock()):
                continue
            channel.take(self._clock())
            message = Message(
                title=title(state.name, channel.topics()),
                message=channel.text(),
                topics=tuple(dict.fromkeys(channel.topics())),
                run_id=state.run_id,
                step=state.progress.step,
            )
            parcels.append(Parcel(channel=name, url=self._urls[name], message=message))
        order = Order(parcels=tuple(parcels))
        try:
            argv = module("watchdog_train.notify.send")
            self._helper.start(argv, question=order, deadline_s=CHILD_S)
        except OSError as error:
            yield from self._failed(f"it could not be sent: {error.strerror}")

    @property
    def _on_the_way(self) -> bool:
        return any(channel.on_the_way for channel in self._channels.values())

    def _answers(self) -> Iterator[e.Notified]:
        if not self._on_the_way:
            return
        for answer in self._helper.answer(tuple[Answer, ...]) or ():
            yield from self._settle(answer.channel, sent=answer.sent, why=answer.why)
        yield from self._failed(f"the process that sends: {self._helper.why_no_answer()}")

    def _failed(self, why: str) -> Iterator[e.Notified]:
        """For every message that is still on its way."""
        for name in self._channels:
            yield from self._settle(name, sent=False, why=why)

    def _settle(self, name: str, *, sent: bool, why: str | None) -> Iterator[e.Notified]:
        channel = self._channels.get(name)
        if channel is None or not channel.on_the_way:
            return
        topics = tuple(dict.fromkeys(channel.topics()))
        if sent:
            channel.arrived()
        else:
            channel.failed(self._clock())
        yield e.Notified(
            channel=name, topics=topics, sent=sent, why=None if why is None else said(why)
        )
