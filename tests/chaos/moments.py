"""When a fault strikes: so long after the n-th event of a type, or after the start of wtrain."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Where = Literal[
    "early", "begin", "launch", "train", "ending", "hang", "crash", "collect", "restart"
]
Trouble = Literal["none", "hang", "crash"]

RESTARTED = (
    ("checkpoint_chosen", 1),
    ("plan_made", 1),
    ("attempt_launching", 2),
    ("attempt_launched", 2),
    ("resume_verified", 1),
)
EVENTS: dict[Where, tuple[tuple[str, int], ...]] = {
    "early": (("", 1),),
    "begin": (("run_started", 1),),
    "launch": (("attempt_launching", 1), ("attempt_launched", 1), ("first_beat", 1)),
    "train": (("first_step", 1),),
    "ending": (("attempt_exited", 1), ("tree_gone", 1)),
    "hang": (
        ("suspected", 1),
        ("stall_declared", 1),
        ("evidence_collecting", 1),
        ("evidence_collected", 1),
        ("stall_explained", 1),
        ("signalling", 1),
        ("signalling", 2),
        ("signalled", 1),
        ("attempt_exited", 1),
        ("tree_gone", 1),
        *RESTARTED,
    ),
    "crash": (
        ("attempt_exited", 1),
        ("evidence_collecting", 1),
        ("evidence_collected", 1),
        ("tree_gone", 1),
        *RESTARTED,
    ),
    "collect": (("suspected", 1), ("evidence_collecting", 1)),
    "restart": (("attempt_exited", 1), ("tree_gone", 1)),
}
"""Every boundary at which a run changes hands with the disk or with the processes."""
LONGEST_S: dict[Where, float] = {
    "early": 0.8,
    "begin": 0.0,
    "launch": 0.5,
    "train": 2.0,
    "ending": 0.1,
    "hang": 0.3,
    "crash": 0.3,
    "collect": 0.3,
    "restart": 0.0,
}
TROUBLE: dict[Where, Trouble] = {
    "hang": "hang",
    "collect": "hang",
    "crash": "crash",
    "restart": "crash",
}
"""What a training must run into by itself for such a moment to come."""


@dataclass(frozen=True)
class Moment:
    """The n-th event of a type, and a delay; without a type, after the start of wtrain."""

    where: Where
    event: str
    nth: int
    delay_s: float

    def __str__(self) -> str:
        nth = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.event or 'start'}{nth} + {self.delay_s:.3f} s"


def draw(where: Where, chance: random.Random) -> Moment:
    """One such moment; half of the delays are next to nothing, where boundaries are."""
    event, nth = chance.choice(EVENTS[where])
    longest_s = LONGEST_S[where]
    if where not in ("train", "early") and chance.random() < 0.5:
        longest_s = 0.02
    return Moment(where, event, nth, round(chance.uniform(0.0, longest_s), 4))
