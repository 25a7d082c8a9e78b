"""What the supervisor cannot see, and what that means: each said once. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State


def news(observation: Observation, state: State) -> list[e.AnyEvent]:
    """What has become known of it."""
    return [
        *_gpu(observation, state),
        *_group(observation, state),
        *_blind(observation, state),
    ]


def _blind(observation: Observation, state: State) -> list[e.AnyEvent]:
    """A process that cannot be read is not gone: nobody is judged or ended by an old look."""
    if observation.blind is None or "blind" in state.notices:
        return []
    why = (
        f"no process can be looked at ({observation.blind}): until that is over nobody is judged, "
        "and what was seen last is taken for what is"
    )
    return [e.Noticed(kind="blind", pids=(), why=why)]


def _gpu(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Without the GPUs a hang beside a busy one may be called late, or not: said once."""
    if observation.gpu_trouble is None or "gpu" in state.notices:
        return []
    why = f"the GPUs are not looked at any more: {observation.gpu_trouble}"
    return [e.Noticed(kind="gpu", pids=(), why=why)]


def _group(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Only parents and tokens tell then who belongs to the training: said once."""
    if observation.group_trouble is None or "group" in state.notices:
        return []
    why = (
        "the system does not list the processes of this training, which are known by their "
        f"parents and ended one by one: {observation.group_trouble}"
    )
    return [e.Noticed(kind="group", pids=(), why=why)]
