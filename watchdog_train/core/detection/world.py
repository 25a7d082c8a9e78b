"""How much of the world that a training runs in is in the trees that are heard. Pure.

Counted generously: a helper that is taken for a rank makes us trust our own eyes too early, as in a
run of one machine; a rank that is overlooked would keep a hang from ever being declared.
"""

from __future__ import annotations

from watchdog_train.core.model import Sample, Value

MOST_RANKS = 4096
"""What a slot says is not to be trusted with our memory."""


class World(Value):
    """What was seen of it in one attempt."""

    present: int = 0
    """The most ranks that were ever here: by their numbers, by their processes, and as their
    launcher counts them. A rank that is not yet born, or has ended, is still one of ours."""
    numbers: frozenset[int] = frozenset()
    """Ranks that were ever here."""
    size: int | None = None
    """The largest world that any process has named."""


def advance(world: World, sample: Sample) -> World:
    """After one more poll."""
    seen: set[int] = set()
    slots = local = 0
    named = world.size or 0
    for member in sample.members:
        slot = member.slot
        if slot is None or slot.role not in ("rank", "other"):
            continue
        slots += 1
        if slot.rank is not None:
            seen.add(slot.rank)
        local = max(local, slot.local_world or 0)
        named = max(named, slot.world_size or 0)
    numbers = world.numbers if seen <= world.numbers else world.numbers | seen
    if len(numbers) > MOST_RANKS:
        numbers = world.numbers
    present = max(world.present, len(numbers), slots, local)
    return World(present=present, numbers=numbers, size=named or None)
