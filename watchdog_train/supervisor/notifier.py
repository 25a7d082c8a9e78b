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
from watchdog_train.core.state import State
from watchdog_train.notify.channels import Answer, Message, Order, names
from watchdog_train.report.notify_words import News, news, title
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.whole_files import read_json, replace_json

CHILD = "notify"
CHILD_S = 15.0
LAST_S = 16.0
"""At the end of a run, for a message on its way and for the last one: the exit code waits."""
MOST_LINES = 20
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
        self._urls = tuple(urls)
        self._every_s = every_s
        self._children = children
        self._staging_dir = staging_dir
        self._clock = clock
        self._waiting: list[News] = []
        self._left_out = 0
        self._child: Child | None = None
        self._topics: tuple[str, ...] = ()
        self._not_before = 0.0
        self._number = 0

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Keep what is worth telling."""
        told = news(event, state) if self._urls else None
        if told is None:
            return
        self._waiting.append(told)
        if len(self._waiting) > MOST_LINES:
            del self._waiting[0]
            self._left_out += 1

    def poll(self, state: State) -> Iterator[e.Notified]:
        """Take answers, and send what waits if it is time; returns at once."""
        if self._child is not None:
            if self._child in self._children.running():
                return
            yield from self._answers()
        urgent = any(each.last for each in self._waiting)
        if self._waiting and (urgent or self._clock() >= self._not_before):
            yield from self._send(state)

    def finish(self, state: State) -> Iterator[e.Notified]:
        """Send the last message and wait for its answer, at most LAST_S."""
        until = self._clock() + LAST_S
        while (self._waiting or self._child is not None) and self._clock() < until:
            self._children.poll()
            yield from self.poll(state)
            time.sleep(0.05)
        if self._child is not None:
            self._children.end(self._child)
            why = f"no answer within {LAST_S:.0f} s"
            yield from (self._failed(name, why) for name in names(self._urls))

    def _send(self, state: State) -> Iterator[e.Notified]:
        batch, self._waiting = tuple(self._waiting), []
        lines = [each.line for each in batch]
        if self._left_out:
            lines.insert(0, f"({self._left_out} earlier messages are left out)")
            self._left_out = 0
        self._topics = tuple(dict.fromkeys(each.topic for each in batch))
        message = Message(
            title=title(state.name, tuple(each.topic for each in batch)),
            message="\n".join(lines),
            topics=self._topics,
            run_id=state.run_id,
            step=state.progress.step,
        )
        self._number += 1
        self._not_before = self._clock() + self._every_s
        order = Order(urls=self._urls, message=message, out=str(self._out))
        path = self._staging_dir / "notify-order.json"
        try:
            self._staging_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._out.unlink(missing_ok=True)
            replace_json(path, order)
            argv = [sys.executable, "-I", "-m", "watchdog_train.notify.send", str(path)]
            self._child = self._children.spawn(argv, name=CHILD, deadline_s=CHILD_S)
        except OSError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            why = f"it could not be sent: {error.strerror}"
            yield from (self._failed(name, why) for name in names(self._urls))

    @property
    def _out(self) -> Path:
        return self._staging_dir / f"notify-answer-{self._number}.json"

    def _answers(self) -> Iterator[e.Notified]:
        self._child = None
        answers = read_json(self._out, tuple[Answer, ...], cap_bytes=ANSWER_CAP_BYTES)
        # It deletes its order first; one that could not even begin leaves it.
        for left in (self._out, self._staging_dir / "notify-order.json"):
            with suppress(OSError):
                left.unlink(missing_ok=True)
        if answers is None:  # ended at its deadline, or it failed: nobody was told
            why = "the process that sends left no answer"
            yield from (self._failed(name, why) for name in names(self._urls))
            return
        for each in answers:
            yield e.Notified(
                channel=each.channel, topics=self._topics, sent=each.sent, why=each.why
            )

    def _failed(self, name: str, why: str) -> e.Notified:
        return e.Notified(channel=name, topics=self._topics, sent=False, why=why)
