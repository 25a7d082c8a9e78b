"""A state with one of its records changed. Part of evolve; pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core.events import Progress
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Member

_replace = msgspec.structs.replace


def attempt(state: State, **changes: Any) -> State:
    if not state.attempts:
        return state
    changed = _replace(state.attempts[-1], **changes)
    return _replace(state, attempts=(*state.attempts[:-1], changed))


def trees(state: State, host: str | None = None, **changes: Any) -> State:
    if not state.attempts:
        return state
    changed = list(state.trees)
    for number, tree in enumerate(state.trees):
        if host in (None, tree.host):
            changed[number] = _replace(tree, **changes)
            if host is not None:  # of a thousand machines, at each of their events
                break
    return attempt(state, trees=tuple(changed))


def stall(state: State, stall_id: str, **changes: Any) -> State:
    stalls = tuple(
        _replace(record, **changes) if record.id == stall_id else record for record in state.stalls
    )
    return _replace(state, stalls=stalls)


def has_all(state: State, stall_id: str) -> bool:
    """Whether a bundle has all obtainable evidence of every machine."""
    return all(tree.lost or tree.evidence == stall_id for tree in state.trees)


def members(known: tuple[Member, ...], event: Progress) -> tuple[Member, ...]:
    found = {(member.host, member.pid): member for member in known}
    for host, pids in (event.gone or {}).items():
        for pid in pids:
            found.pop((host, pid), None)
    found.update(((member.host, member.pid), member) for member in event.members or ())
    return tuple(found.values())


def paced(state: State, steps_s: float | None) -> State:
    newest = state.attempt
    if newest is None or not steps_s:
        return state
    if newest.fastest_steps_s is not None and newest.fastest_steps_s >= steps_s:
        return state
    return attempt(state, fastest_steps_s=steps_s)
