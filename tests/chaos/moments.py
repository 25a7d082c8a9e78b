"""When a fault strikes: so long after the n-th event of a type, or after the start of wtrain."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Where = Literal[
    "early", "begin", "launch", "train", "ending", "hang", "crash", "collect", "restart"
]
Trouble = Literal["none", "hang", "crash"]


def _events(told: str) -> tuple[tuple[str, int], ...]:
    """Each with which of its kind it is: the first if nothing is said."""
    pairs = (word.partition("#") for word in told.split())
    return tuple((name, int(nth or 1)) for name, _, nth in pairs)


RESTARTED = """
    checkpoint_chosen plan_made attempt_launching#2 attempt_launched#2 resume_verified
"""
EVENTS: dict[Where, tuple[tuple[str, int], ...]] = {
    "early": (("", 1),),
    "begin": _events("run_started"),
    "launch": _events("attempt_launching attempt_launched first_beat"),
    "train": _events("first_step"),
    "ending": _events("attempt_exited tree_gone"),
    "hang": _events(
        "suspected stall_declared evidence_collecting evidence_collected stall_explained"
        " signalling signalling#2 signalled attempt_exited tree_gone" + RESTARTED
    ),
    "crash": _events("attempt_exited evidence_collecting evidence_collected tree_gone" + RESTARTED),
    "collect": _events("suspected evidence_collecting"),
    "restart": _events("attempt_exited tree_gone"),
}
"""Every boundary at which a run changes hands with the disk or with the processes."""
LONGEST_S: dict[Where, float] = {
    "early": 0.8, "begin": 0.0, "launch": 0.5, "train": 2.0, "ending": 0.1, "hang": 0.3,
    "crash": 0.3, "collect": 0.3, "restart": 0.0,
}  # fmt: skip
TROUBLE: dict[Where, Trouble] = {
    "hang": "hang", "collect": "hang", "crash": "crash", "restart": "crash",
}  # fmt: skip
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
