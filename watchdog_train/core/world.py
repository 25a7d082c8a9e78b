"""How much of the world that a training runs in is in our own tree. Pure.

Counted generously: a helper that is taken for a rank makes us trust our own eyes too early, as in a
run without peers; a rank that is overlooked would keep a hang from ever being declared.
"""

from __future__ import annotations

from watchdog_train.core.model import Sample, Value

MOST_RANKS = 4096
"""What a slot says is not to be trusted with our memory."""


class World(Value, frozen=True, kw_only=True):
    """What was seen of it in one attempt."""

    progressed: int = 0
    """Polls in which any judged process was seen to progress."""
    present: int = 0
    """The most ranks that were ever here: by their numbers, by their processes, and as their
    launcher counts them. A rank that is not yet born, or has ended, is still one of ours."""
    numbers: frozenset[int] = frozenset()
    """Ranks that were ever here."""
    size: int | None = None
    """The largest world that any process has named."""


def advance(world: World, sample: Sample, *, progressed: bool) -> World:
    """After one more poll."""
    slots = [
        member.slot
        for member in sample.members
        if member.slot is not None and member.slot.role in ("rank", "other")
    ]
    numbers = world.numbers | {slot.rank for slot in slots if slot.rank is not None}
    if len(numbers) > MOST_RANKS:
        numbers = world.numbers
    local = max((slot.local_world or 0 for slot in slots), default=0)
    named = max([world.size or 0, *(slot.world_size or 0 for slot in slots)])
    return World(
        progressed=world.progressed + progressed,
        present=max(world.present, len(numbers), len(slots), local),
        numbers=numbers,
        size=named or None,
    )
