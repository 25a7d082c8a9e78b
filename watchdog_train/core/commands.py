"""Commands of the user's own for events: which names there are, and when a restart waits. Pure.

A command gets the event as JSON. Only the ones for `before_restart` are waited for: they may have
to put something right that the next attempt relies on, such as a row of jobs in a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, RunCommands, Wait
from watchdog_train.core.events.run import BEFORE_RESTART
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Plan, Value, Why
from watchdog_train.core.policy import Policy

_NEVER = frozenset({"notified", "commands_starting", "commands_ran"})
"""Types about messages and commands: a command for one of them would start itself."""
MOST_COMMANDS = 20


class OnEvent(Value):
    """One `--on EVENT=COMMAND`."""

    number: int
    """From 1, in the order of the settings. Events use it because a command can hold a secret."""
    event: str
    command: str


@cache
def event_names() -> tuple[str, ...]:
    tags = {str(kind.__struct_config__.tag) for kind in get_args(e.AnyEvent)}
    return (BEFORE_RESTART, *sorted(tags - _NEVER))


def parse(text: str, number: int = 1) -> OnEvent:
    """`stall_declared=notify-send hung`; hyphens in the name are as good as underscores.

    Raises:
        ValueError: with what is wrong, for a person.
    """
    name, equals, command = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not command.strip():
        raise ValueError(f"'{text[:60]}' is not EVENT=COMMAND")
    if name not in event_names():
        import difflib

        near = difflib.get_close_matches(name, event_names(), n=1, cutoff=0.5)
        guess = f"did you mean '{near[0]}'?" if near else "docs/events.md has all of them"
        raise ValueError(f"'{name[:60]}' is no event; {guess}")
    return OnEvent(number=number, event=name, command=command.strip())


def wanted(policy: Policy) -> Mapping[str, tuple[OnEvent, ...]]:
    found: dict[str, tuple[OnEvent, ...]] = {}
    for number, text in enumerate(policy.notify.commands, 1):
        one = parse(text, number)
        found[one.event] = (*found.get(one.event, ()), one)
    return found


def envelope(name: str, data: dict[str, Any], state: State, message: str | None) -> dict[str, Any]:
    """What a command reads from its stdin; `message`: the text of a notification, if any."""
    attempt = state.attempt
    return {
        "schema_version": 1,
        "event": name,
        "message": message,
        "run_id": state.run_id,
        "name": state.name,
        "run_dir": state.run_dir,
        "attempt": attempt.attempt if attempt is not None else 0,
        "step": state.progress.step if state.progress.step is not None else state.best_step,
        "data": data,
    }


def _ran(plan: Plan, results: tuple[e.CommandResult, ...]) -> Record:
    ran = e.CommandsRan(for_event=BEFORE_RESTART, for_attempt=plan.attempt, results=results)
    return Record(events=(ran,), consumes=("commands",))


def before_restart(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Run the commands for it and wait; a failure is recorded and stops nothing."""
    plan = state.next_plan
    if plan is None or plan.attempt < 2 or state.commands_done == plan.attempt:
        return None
    if observation.commands is not None:
        return _ran(plan, observation.commands)
    if "commands" in observation.running:
        return Wait(until=observation.now + 0.05)
    commands = wanted(policy).get(BEFORE_RESTART, ())
    if not commands:
        return None
    if state.commands_begun == plan.attempt:
        # The supervisor that started them is dead. Whether they finished is unknown; half of
        # a command done twice may be worse than once.
        why = Why("command-interrupted")
        lost = (e.CommandResult(number=c.number, ok=False, why=why, seconds=0.0) for c in commands)
        return _ran(plan, tuple(lost))
    return RunCommands(plan=plan, commands=tuple(one.number for one in commands))
