"""What a run does for others on the side: messages, the user's commands, and files that they read.

One list of effects. Nothing here makes the loop wait, but at the end of the run, where each effect
has a deadline of its own. What a restart waits for is a task (supervisor.tasks): the core decides
about it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from watchdog_train.commands import Order as CommandOrder
from watchdog_train.commands import failed
from watchdog_train.config import load
from watchdog_train.config.text import HIDDEN_URL
from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation, RunCommands
from watchdog_train.core.commands import envelope, wanted
from watchdog_train.core.events.run import BEFORE_RESTART, CommandResult
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why, said
from watchdog_train.core.policy import Policy
from watchdog_train.errors import WtrainError
from watchdog_train.notify import Answer, Message, Order, names
from watchdog_train.report.messages import News, news, title
from watchdog_train.report.why_text import with_text
from watchdog_train.supervisor.children import ChildTable, Helper, module
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.status_files import Effect, ReportPage, files_wanted

MOST_WAITING = 20
"""Messages, and events for commands. The oldest beyond that is left out, and the log says so."""
RETRY_FIRST_S, RETRY_MOST_S = 60.0, 900.0
"""Doubled after each failure in a row: a network that is away at night comes back."""
CHILD_S = 15.0
LAST_S = 16.0
"""At the end of a run, for a message on its way and for the last one: the exit code waits."""
END_LOOK_S = 0.02
OURS = ("WTRAIN_NOTIFY", "WTRAIN_ON", "WTRAIN_JOB_KEY")
"""Variables with secrets of wtrain; no command needs them."""
Item = TypeVar("Item")


class Queue(msgspec.Struct, Generic[Item]):
    """Items for one helper process, oldest first. Times come from the caller.

    Nothing is lost while the run lives, except the oldest beyond MOST_WAITING, which are counted.
    A failed delivery may have arrived all the same, and then arrives twice.
    """

    at_once: int = MOST_WAITING
    every_s: float = 0.0
    """Between two deliveries; an urgent item does not wait."""
    waiting: list[Item] = []
    on_the_way: tuple[Item, ...] = ()
    left_out: int = 0
    left_out_told: int = 0
    """Of those left out: the number that the delivery on the way reports."""
    failures: int = 0
    """In a row."""
    not_before_s: float = float("-inf")
    hurried: bool = False
    """An urgent item has come since the last delivery began."""

    def keep(self, item: Item, *, hurries: bool = False) -> list[Item]:
        """Add an item; returns the items that are left out for it."""
        self.waiting.append(item)
        if hurries:
            self.hurried, self.not_before_s = True, float("-inf")
        return self._cap()

    def is_due(self, now_s: float) -> bool:
        return bool(self.waiting) and not self.on_the_way and now_s >= self.not_before_s

    def take(self, now_s: float) -> tuple[Item, ...]:
        """The items delivered now; to be answered by arrived() or failed()."""
        self.on_the_way = tuple(self.waiting[: self.at_once])
        del self.waiting[: self.at_once]
        self.left_out_told, self.hurried = self.left_out, False
        self.not_before_s = now_s + self.every_s
        return self.on_the_way

    def arrived(self) -> None:
        self.left_out -= self.left_out_told
        self.on_the_way, self.failures = (), 0

    def failed(self, now_s: float) -> None:
        """Deliver it again, with later items; the pause grows with each failure."""
        self.waiting[:0] = self.on_the_way
        self.on_the_way = ()
        self._cap()
        wait_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        if not self.hurried:
            self.not_before_s = now_s + max(self.every_s, wait_s)

    def _cap(self) -> list[Item]:
        over = self.waiting[: max(0, len(self.waiting) - MOST_WAITING)]
        del self.waiting[: len(over)]
        self.left_out += len(over)
        return over


class Delivery(Effect, Generic[Item]):
    """An effect by a helper process, one at a time."""

    def __init__(
        self, helper: Helper, queue: Queue[Item], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.queue = queue
        self._helper = helper
        self._clock = clock

    @property
    def is_open(self) -> bool:
        return bool(self.queue.on_the_way) or self.queue.is_due(self._clock())

    def poll(self, state: State) -> Iterator[e.AnyEvent]:
        if self._helper.running:
            return
        if self.queue.on_the_way:
            yield from self._settle()
        if self.queue.is_due(self._clock()):
            self.queue.take(self._clock())
            try:
                yield from self._begin(state)
            except OSError as error:
                yield from self._settle(Why("could-not-start", problem=error.strerror or ""))

    def give_up(self) -> Iterator[e.AnyEvent]:
        self._helper.kill()
        if self.queue.on_the_way:
            yield from self._settle(said(f"no answer within {self.last_s:.0f} s"))

    def _begin(self, state: State) -> Iterator[e.AnyEvent]:
        """Start the helper with the delivery on the way; OSError if it cannot be started."""
        raise NotImplementedError

    def _settle(self, problem: Why | None = None) -> Iterator[e.AnyEvent]:
        """Record the result: `problem`, else the helper's answer."""
        raise NotImplementedError


class Channel(Delivery[News]):
    """Messages to one URL; if an answer is lost, a message arrives twice."""

    last_s = LAST_S

    def __init__(
        self,
        name: str,
        url: str,
        helper: Helper,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` holds no secret; see notify.names()."""
        super().__init__(helper, Queue(every_s=every_s), clock)
        self._name, self._url = name, url

    def follow(self, event: e.AnyEvent, state: State) -> None:
        if (told := news(event, state)) is not None:
            self.queue.keep(told, hurries=told.last)

    def _begin(self, state: State) -> Iterator[e.AnyEvent]:
        message = Message(
            title=title(state.name, self._topics()),
            message=text_of(self.queue),
            topics=tuple(dict.fromkeys(self._topics())),
            run_id=state.run_id,
            step=state.progress.step,
        )
        order = Order(url=self._url, message=message)
        self._helper.start(module("watchdog_train.notify.send"), question=order, deadline_s=CHILD_S)
        yield from ()

    def _topics(self) -> tuple[Any, ...]:
        return tuple(each.topic for each in self.queue.on_the_way)

    def _settle(self, problem: Why | None = None) -> Iterator[e.AnyEvent]:
        topics = tuple(dict.fromkeys(self._topics()))
        if problem is None:
            answer = self._helper.answer(Answer)
            why = f"the process that sends: {self._helper.why_no_answer()}"
            why_not = answer.why if answer is not None else why
            problem = said(why_not) if why_not is not None else None
        if problem is None:
            self.queue.arrived()
        else:
            self.queue.failed(self._clock())
        yield e.Notified(channel=self._name, topics=topics, sent=problem is None, why=problem)


def text_of(queue: Queue[News]) -> str:
    lines = [each.line for each in queue.on_the_way]
    if queue.left_out_told:
        lines.insert(0, f"({queue.left_out_told} earlier messages are left out)")
    return "\n".join(lines)


def known_urls(urls: Sequence[str], environment: Mapping[str, str], *, cwd: str) -> tuple[str, ...]:
    """The URLs of a run; a resumed run reads them from the environment or wtrain.yaml again."""
    known = tuple(url for url in urls if not url.endswith(HIDDEN_URL))
    if urls and not known:
        known = tuple(environment.get("WTRAIN_NOTIFY", "").split())
    if urls and not known:
        with suppress(WtrainError):
            known = load(directory=Path(cwd)).policy.notify.urls
    return known


class Asked(msgspec.Struct, frozen=True):
    attempt: int
    order: CommandOrder

    @property
    def event(self) -> str:
        return str(self.order.event["event"])

    def starting(self) -> e.CommandsStarting:
        numbers = tuple(number for number, _ in self.order.commands)
        return e.CommandsStarting(for_event=self.event, for_attempt=self.attempt, numbers=numbers)

    def ran(self, results: tuple[CommandResult, ...] | Why) -> e.CommandsRan:
        """With their results, or the reason why they did not run."""
        found = failed(self.order, results) if isinstance(results, Why) else results
        return e.CommandsRan(for_event=self.event, for_attempt=self.attempt, results=found)


class Commands(Delivery[Asked]):
    """The commands of one run for all events but `before_restart`; none runs twice."""

    def __init__(self, context: Context) -> None:
        super().__init__(
            Helper(context.children, "on-event", context.staging_dir), Queue(at_once=1)
        )
        self._policy, self._environment = context.policy, context.environment
        self._wanted = wanted(context.policy)
        self._left_out: list[e.CommandsRan] = []

    def until(self, began: float, now: float) -> float:  # noqa: ARG002
        """As long as the longest of them may take."""
        both = (*self.queue.waiting, *self.queue.on_the_way)
        return now + max((asked.order.within_s for asked in both), default=0.0) + 1.0

    def follow(self, event: e.AnyEvent, state: State) -> None:
        name = str(type(event).__struct_config__.tag)
        if name not in self._wanted:
            return
        told = news(event, state)
        message = told.line if told is not None else None
        order = order_for(name, with_text(event), state, policy=self._policy, message=message)
        why = Why("newer-waited", count=MOST_WAITING)
        for oldest in self.queue.keep(Asked(event.attempt, order)):
            self._left_out.append(oldest.ran(why))

    def poll(self, state: State) -> Iterator[e.AnyEvent]:
        left_out, self._left_out = self._left_out, []
        yield from left_out
        yield from super().poll(state)

    def give_up(self) -> Iterator[e.AnyEvent]:
        yield from super().give_up()
        over, self.queue.waiting = self.queue.waiting, []
        yield from (asked.ran(Why("run-over")) for asked in over)

    def _begin(self, state: State) -> Iterator[e.AnyEvent]:  # noqa: ARG002
        (asked,) = self.queue.on_the_way
        yield asked.starting()
        self._helper.start(
            module("watchdog_train.commands.run"),
            question=asked.order,
            deadline_s=asked.order.within_s,
            env=environment_for(self._environment),
        )

    def _settle(self, problem: Why | None = None) -> Iterator[e.AnyEvent]:
        (asked,) = self.queue.on_the_way
        if problem is not None:
            yield asked.ran(problem)
        else:
            found = self._helper.answer(tuple[CommandResult, ...])
            yield asked.ran(found or said(self._helper.why_no_answer()))
        self.queue.arrived()


def order_for(
    name: str, data: dict[str, Any], state: State, *, policy: Policy, message: str | None
) -> CommandOrder:
    return CommandOrder(
        commands=tuple((one.number, one.command) for one in wanted(policy).get(name, ())),
        event=envelope(name, data, state, message),
        deadline_s=policy.notify.command_s,
        cwd=state.cwd,
    )


def environment_for(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's own, as a command may need secrets of it."""
    return {name: value for name, value in environment.items() if name not in OURS}


def run_before_restart(
    context: Context, action: RunCommands, state: State
) -> Iterator[e.CommandsStarting]:
    """Start the commands that a restart waits for; the answer is an observation."""
    number, data = action.plan.attempt, {"plan": with_text(action.plan)}
    yield e.CommandsStarting(for_event=BEFORE_RESTART, for_attempt=number, numbers=action.commands)
    order = order_for(BEFORE_RESTART, data, state, policy=context.policy, message=None)
    context.tasks.run_commands(order, context.staging_dir, environment_for(context.environment))


def effects_wanted(context: Context) -> list[Effect]:
    """Side effects of this run, in the order in which its end waits for them."""
    notify, children = context.policy.notify, context.children
    urls = known_urls(notify.urls, context.environment, cwd=context.cwd)
    if notify.urls and not urls:
        hint = "WTRAIN_NOTIFY names them again"
        context.display.say(f"wtrain: no notifications: a run does not keep their URLs; {hint}")
    return [
        *files_wanted(context.policy, os.environ, cwd=context.cwd),
        ReportPage(children, context.directory.path),
        *(
            Channel(
                name,
                url,
                Helper(children, f"notify-{number}", context.staging_dir),
                every_s=notify.every_s,
            )
            for number, (name, url) in enumerate(zip(names(urls), urls, strict=True), 1)
        ),
        *([Commands(context)] if notify.commands else []),
    ]


class Outbox:
    def __init__(self, effects: Sequence[Effect], children: ChildTable) -> None:
        self._effects, self._children = effects, children

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Note what an event asks for; returns at once."""
        for effect in self._effects:
            effect.follow(event, state)

    def poll(self, state: State, observation: Observation) -> Iterator[e.AnyEvent]:
        """Record results of effects, and begin due ones; returns at once."""
        for effect in self._effects:
            effect.look(state, observation)
            yield from effect.poll(state)

    def finish(self, state: Callable[[], State]) -> Iterator[e.AnyEvent]:
        """At the end of the run, wait for each within its limit, while the others continue."""
        began = time.monotonic()
        for effect in self._effects:
            effect.end(state())
        for effect in self._effects:
            until = effect.until(began, time.monotonic())
            while effect.is_open and time.monotonic() < until:
                self._children.poll()
                for each in self._effects:
                    yield from each.poll(state())
                time.sleep(END_LOOK_S)
            yield from effect.give_up()
