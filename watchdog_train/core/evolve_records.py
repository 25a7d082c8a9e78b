"""A state with one of its records changed. Part of evolve; pure."""

from __future__ import annotations

from typing import Any

import msgspec

from watchdog_train.core.state import State

_replace = msgspec.structs.replace


def attempt(state: State, **changes: Any) -> State:
    """The state with its newest attempt changed; as it is where there is none."""
    if not state.attempts:
        return state
    changed = _replace(state.attempts[-1], **changes)
    return _replace(state, attempts=(*state.attempts[:-1], changed))


def stall(state: State, stall_id: str, **changes: Any) -> State:
    """The state with one of its stalls changed."""
    stalls = tuple(
        _replace(record, **changes) if record.id == stall_id else record for record in state.stalls
    )
    return _replace(state, stalls=stalls)
