"""What the supervisor cannot see, and what that means: each said once. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why


def news(observation: Observation, state: State) -> list[e.AnyEvent]:
    """What has become known of it."""
    return [
        *_gpu(observation, state),
        *_blind(observation, state),
    ]


def _blind(observation: Observation, state: State) -> list[e.AnyEvent]:
    """A process that cannot be read is not gone: nobody is judged or ended by an old look."""
    if observation.blind is None or "blind" in state.notices:
        return []
    why = Why("blind", problem=observation.blind)
    return [e.Noticed(kind="blind", pids=(), why=why)]


def _gpu(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Without the GPUs a hang beside a busy one may be called late, or not: said once."""
    if observation.gpu_trouble is None or "gpu" in state.notices:
        return []
    why = Why("gpus-unseen", problem=observation.gpu_trouble)
    return [e.Noticed(kind="gpu", pids=(), why=why)]
