"""Has a person told: collects news, sends digests by a child, records what became of them.

Must not wait, but for the last message of a run, and then with a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from watchdog_train.config import load_policy
from watchdog_train.config.text import HIDDEN_URL
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.errors import WtrainError
from watchdog_train.notify import Answer, Message, Order, Parcel, names
from watchdog_train.report.notify_words import news, title
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.helper import Helper, module
from watchdog_train.supervisor.undelivered import Undelivered

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
            known = load_policy(directory=Path(cwd)).notify.urls
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
        """Keep what is worth telling."""
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
