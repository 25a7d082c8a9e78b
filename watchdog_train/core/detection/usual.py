"""What a tree without heartbeats looks like while it does speak. Pure.

A host that sleeps at one per cent of a core while its GPU works, where nobody can see the GPU, is
as quiet at work as it would be when it hangs. Then quiet is no evidence: an evaluation of a quarter
of an hour without a line of output was called a stall (twice in 2,249 simulated hours).
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.detection.activity import Window, looked, opened, was_still
from watchdog_train.core.model import Sample, Value
from watchdog_train.core.policy import Detection

_replace = msgspec.structs.replace

WINDOW_S = 20.0
REMEMBERED = 16
"""Windows with output: it is what the tree does of late that counts, not how it has started."""
LEAST = 4


class Usual(Value):
    """Memory of a tree in which nobody sends a heartbeat."""

    window: Window | None = None
    log_bytes: int = 0
    still: tuple[bool, ...] = ()
    """For each of the newest windows in which it wrote: nothing else in it could have been work."""


def restarted(usual: Usual) -> Usual:
    """After a sleep or a stop, which are no work and no silence."""
    return usual if usual.window is None else _replace(usual, window=None)


def advance(usual: Usual, sample: Sample, detection: Detection) -> Usual:
    """The memory after one more poll."""
    states = {member.state for member in sample.members}
    if usual.window is None:
        return _replace(usual, window=opened(sample, states), log_bytes=sample.log_bytes)
    window = looked(usual.window, sample, states)
    if sample.at - window.at < WINDOW_S:
        return usual if window is usual.window else _replace(usual, window=window)
    still = usual.still
    if sample.log_bytes != usual.log_bytes:
        still = (*still, was_still(window, sample, detection))[-REMEMBERED:]
    return Usual(window=opened(sample, states), log_bytes=sample.log_bytes, still=still)


def is_quiet_at_work(usual: Usual) -> bool:
    """It wrote while nothing else showed that it works, at least half of the time."""
    return sum(usual.still) >= max(LEAST, (len(usual.still) + 1) // 2)
