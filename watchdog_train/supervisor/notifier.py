"""Has a person told: collects news, sends digests by a child, records what became of them.

Must not wait, but for the last message of a run, and then with a bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.notify.channels import Answer, Message, Order, Parcel, names
from watchdog_train.report.notify_words import news, title
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.supervisor.undelivered import Undelivered
from watchdog_train.trusted_files import make_folder
from watchdog_train.whole_files import read_json, replace_json

CHILD = "notify"
CHILD_S = 15.0
LAST_S = 16.0
"""At the end of a run, for a message on its way and for the last one: the exit code waits."""
ANSWER_CAP_BYTES = 1 << 18


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
        self._children = children
        self._staging_dir = staging_dir
        self._clock = clock
        self._child: Child | None = None
        self._number = 0

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Keep what is worth telling."""
        told = news(event, state) if self._channels else None
        if told is None:
            return
        for channel in self._channels.values():
            channel.keep(told)

    def poll(self, state: State) -> Iterator[e.Notified]:
        """Take answers, and send what waits if it is time; returns at once."""
        if self._child is not None:
            if self._child in self._children.running():
                return
            self._child = None
            yield from self._answers()
        if self._is_due():
            yield from self._send(state)

    def finish(self, state: State) -> Iterator[e.Notified]:
        """Send the last message and wait for its answer, at most LAST_S."""
        until = self._clock() + LAST_S
        while (self._is_due() or self._child is not None) and self._clock() < until:
            self._children.poll()
            yield from self.poll(state)
            time.sleep(0.05)
        if self._child is not None:
            self._children.end(self._child)
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
        self._number += 1
        path = self._staging_dir / "notify-order.json"
        try:
            make_folder(self._staging_dir)
            self._out.unlink(missing_ok=True)
            replace_json(path, Order(parcels=tuple(parcels), out=str(self._out)))
            argv = [sys.executable, "-I", "-m", "watchdog_train.notify.send", str(path)]
            self._child = self._children.spawn(argv, name=CHILD, deadline_s=CHILD_S)
        except OSError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            yield from self._failed(f"it could not be sent: {error.strerror}")

    @property
    def _out(self) -> Path:
        return self._staging_dir / f"notify-answer-{self._number}.json"

    def _answers(self) -> Iterator[e.Notified]:
        answers = read_json(self._out, tuple[Answer, ...], cap_bytes=ANSWER_CAP_BYTES)
        # It deletes its order first; one that could not even begin leaves it.
        for left in (self._out, self._staging_dir / "notify-order.json"):
            with suppress(OSError):
                left.unlink(missing_ok=True)
        for answer in answers or ():
            yield from self._settle(answer.channel, sent=answer.sent, why=answer.why)
        # Ended at its deadline, or it failed: nobody was told.
        yield from self._failed("the process that sends left no answer")

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
        yield e.Notified(channel=name, topics=topics, sent=sent, why=why)
