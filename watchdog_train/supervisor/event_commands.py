"""Starts the user's commands for events, by a child, one event at a time; records what came of it.

Must not wait, but at the end of a run, and then with a bound. What a restart waits for is a task
(supervisor.tasks), because the core decides about it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from watchdog_train.commands import Order, failed
from watchdog_train.core import events as e
from watchdog_train.core.actions import RunCommands
from watchdog_train.core.commands import OnEvent, envelope, wanted
from watchdog_train.core.events.run import BEFORE_RESTART, CommandResult
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why, said
from watchdog_train.core.policy import Policy
from watchdog_train.report.messages import news
from watchdog_train.report.why_text import with_text
from watchdog_train.supervisor.children import ChildTable, Helper, module
from watchdog_train.supervisor.context import Context

MOST_WAITING = 20
"""Events whose turn has not come; of more the oldest are left out, and said to be."""
OURS = ("WTRAIN_NOTIFY", "WTRAIN_PING", "WTRAIN_ON", "WTRAIN_JOB_KEY")
"""Variables with secrets of ours that no command needs."""


def order_for(
    name: str,
    data: dict[str, Any],
    state: State,
    *,
    policy: Policy,
    message: str | None,
) -> Order:
    return Order(
        commands=tuple((one.number, one.command) for one in wanted(policy).get(name, ())),
        event=envelope(name, data, state, message),
        deadline_s=policy.notify.command_s,
        cwd=state.cwd,
    )


def environment_for(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's own, which a command may need secrets of."""
    return {name: value for name, value in environment.items() if name not in OURS}


def run_before_restart(
    context: Context, action: RunCommands, state: State
) -> Iterator[e.CommandsStarting]:
    """Start what a restart waits for; the answer is an observation."""
    number = action.plan.attempt
    yield e.CommandsStarting(for_event=BEFORE_RESTART, for_attempt=number, numbers=action.commands)
    order = order_for(
        BEFORE_RESTART,
        {"plan": with_text(action.plan)},
        state,
        policy=context.policy,
        message=None,
    )
    context.tasks.run_commands(order, context.staging_dir, environment_for(context.environment))


class Commands:
    """The commands of one run for all events but `before_restart`; at most one child at a time."""

    def __init__(
        self,
        policy: Policy,
        *,
        children: ChildTable,
        staging_dir: Path,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._wanted: Mapping[str, tuple[OnEvent, ...]] = (
            wanted(policy) if policy.notify.commands else {}
        )
        self._helper = Helper(children, "on-event", staging_dir)
        self._environment = environment
        self._clock = clock
        self._waiting: deque[tuple[int, Order]] = deque()
        self._left_out: list[tuple[str, int, Order]] = []
        self._running: tuple[int, Order] | None = None

    def follow(self, event: e.AnyEvent, state: State) -> None:
        """Keep an event that a command wants."""
        if not self._wanted:
            return
        name = str(type(event).__struct_config__.tag)
        if name not in self._wanted:
            return
        told = news(event, state)
        order = order_for(
            name,
            with_text(event),
            state,
            policy=self._policy,
            message=told.line if told is not None else None,
        )
        self._waiting.append((event.attempt, order))
        if len(self._waiting) > MOST_WAITING:
            attempt, oldest = self._waiting.popleft()
            self._left_out.append((str(oldest.event["event"]), attempt, oldest))

    def poll(self) -> Iterator[e.CommandsStarting | e.CommandsRan]:
        """Take answers, and start what is next; returns at once."""
        if not self._wanted:
            return
        for name, attempt, order in self._left_out:
            why = Why("newer-waited", count=MOST_WAITING)
            yield e.CommandsRan(for_event=name, for_attempt=attempt, results=failed(order, why))
        self._left_out.clear()
        if self._running is not None:
            if self._helper.running:
                return
            attempt, order = self._running
            self._running = None
            found = self._helper.answer(tuple[CommandResult, ...])
            results = found or failed(order, said(self._helper.why_no_answer()))
            name = str(order.event["event"])
            yield e.CommandsRan(for_event=name, for_attempt=attempt, results=results)
        if self._waiting:
            yield from self._start(*self._waiting.popleft())

    def finish(self) -> Iterator[e.CommandsStarting | e.CommandsRan]:
        """Run what waits, at the end of the run; each has its deadline, all have one together."""
        if not self._wanted:
            return
        orders = [order for _, order in self._waiting]
        orders += [self._running[1]] if self._running is not None else []
        until = self._clock() + max((order.within_s for order in orders), default=0.0) + 1.0
        while (self._waiting or self._running is not None) and self._clock() < until:
            self._helper.children.poll()
            yield from self.poll()
            time.sleep(0.05)
        for attempt, order in self._waiting:
            results = failed(order, Why("run-over"))
            name = str(order.event["event"])
            yield e.CommandsRan(for_event=name, for_attempt=attempt, results=results)
        self._waiting.clear()

    def _start(self, attempt: int, order: Order) -> Iterator[e.CommandsStarting | e.CommandsRan]:
        name = str(order.event["event"])
        numbers = tuple(number for number, _ in order.commands)
        yield e.CommandsStarting(for_event=name, for_attempt=attempt, numbers=numbers)
        try:
            self._helper.start(
                module("watchdog_train.commands.run"),
                question=order,
                deadline_s=order.within_s,
                env=environment_for(self._environment),
            )
        except OSError as error:
            results = failed(order, Why("could-not-start", problem=error.strerror or ""))
            yield e.CommandsRan(for_event=name, for_attempt=attempt, results=results)
            return
        self._running = (attempt, order)
