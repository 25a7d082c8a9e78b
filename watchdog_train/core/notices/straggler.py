"""Which rank comes last, and what is different about it. Pure.

Ranks in lock-step make the same steps a second, however slow one of them is. What differs is when
each of them comes to the same place of a step: it has its batch, begins the backward pass, has
ended it. Each rank writes these times down, so that one look at ranks that are equally far tells
how much later than the others the last one came, whenever the look is taken.
"""

from __future__ import annotations

from math import sqrt
from statistics import median_low

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.model import MemberSample, Place, Sample, SlotReading, Straggler, Value
from watchdog_train.core.notices.surroundings import (
    Tally,
    counted_s,
    differences,
    fold,
    mean,
    means,
    rate,
    seen,
)

_replace = msgspec.structs.replace

MOST_RANKS = 64
"""Those with the lowest numbers are compared."""
LEAST_LOOKS = 60
"""At ranks that are equally far, each at another step."""
MOST_LOOKS = 600
"""Then all of them count half: ten minutes and more, and what was hours ago is forgotten."""
MARGIN = 0.05
"""Of a step: who comes later than the others by less is as quick as they."""
LOST = 0.1
"""Of each step: less is not worth a word."""
OVER = 0.05
AGAIN = 2.0
"""So much more than was said is worth another word."""
SHARE = 0.5
"""Of what is lost by all that come last; else the ranks are uneven, and nobody is the straggler."""
SIGMAS = 5.0
"""How often it comes last, against the next: ranks that take turns differ by one or two."""
EARLIEST = 0.7
"""A place at which so much of the whole delay is there already is where it came about."""
_STEPS = layout.PROGRESS_WORDS.index(layout.W_OPTIMIZER_STEPS)
_BACKWARDS = layout.PROGRESS_WORDS.index(layout.W_MICRO_BATCHES)
_PLACES: tuple[Place, ...] = ("batch", "backward", "backward-end")


class Ledger(Value, frozen=True, kw_only=True):
    """What was seen of one rank."""

    last: float = 0.0
    """Looks at which it was the last one by the margin."""
    behind_s: float = 0.0
    """Then, after the others: the sum."""
    places: tuple[float, ...] = (0.0,) * len(_PLACES)
    """The looks, by the place at which it was late first."""
    tally: Tally = Tally()
    cpu_s: float | None = None
    io_bytes: int | None = None


class Standing(Value, frozen=True, kw_only=True):
    """Memory of one attempt."""

    at: float | None = None
    """The look before; None where it was at something else than training."""
    suspended_s: float | None = None
    world: tuple[tuple[int, int], ...] = ()
    """Rank and pid."""
    counts: tuple[int, int] = (0, 0)
    """Steps and backward passes of the slowest rank, at the look before."""
    seconds: float = 0.0
    """Of training, and the steps and backward passes in it."""
    made: tuple[float, float] = (0.0, 0.0)
    looks: float = 0.0
    looked_at: int = -1
    """The backward pass of the newest look that counted."""
    ledgers: tuple[Ledger, ...] = ()
    open: Straggler | None = None
    """As said."""


def advance(memory: Standing, sample: Sample) -> Standing:
    """The memory after one more poll."""
    ranks = _ranks(sample)
    if not ranks:
        return memory if memory.at is None else _replace(memory, at=None)
    members, slots = zip(*ranks, strict=True)
    world = tuple((member.member.rank or 0, member.member.pid) for member in members)
    counts = (
        min(slot.progress[_STEPS] for slot in slots),
        min(slot.progress[_BACKWARDS] for slot in slots),
    )
    if set(world) < set(memory.world):
        return _replace(memory, at=None)  # some have ended: nobody waits for those that are left
    if world != memory.world:
        said = None if memory.world else memory.open  # else another supervisor's, of these ranks
        memory = Standing(world=world, open=said, ledgers=(Ledger(),) * len(world))
    before = memory
    passed_s = counted_s(before.at, before.suspended_s, sample)
    memory = _replace(
        memory,
        at=sample.at,
        suspended_s=sample.suspended_s,
        counts=counts,
        ledgers=tuple(
            _behaviour(ledger, member, sample, passed_s)
            for ledger, member in zip(memory.ledgers, members, strict=True)
        ),
    )
    if not passed_s:
        return memory
    made = [new - old for new, old in zip(counts, before.counts, strict=True)]
    memory = _replace(
        memory,
        seconds=memory.seconds + passed_s,
        made=(memory.made[0] + made[0], memory.made[1] + made[1]),
    )
    return _look(memory, slots)


def _ranks(sample: Sample) -> tuple[tuple[MemberSample, SlotReading], ...]:
    """The ranks of one world by their number, while all of them train; else none."""
    found = {}
    for member in sample.members:
        slot = member.slot
        if slot is None or member.member.role != "rank" or member.state in ("Z", "X"):
            continue
        if slot.phase != "train" or member.state in ("T", "t") or member.member.rank in found:
            return ()
        found[member.member.rank or 0] = (member, slot)
    if len(found) < 2 or not all(slot.backward_end_ns for _, slot in found.values()):
        return ()
    return tuple(found[rank] for rank in sorted(found)[:MOST_RANKS])


def _behaviour(ledger: Ledger, member: MemberSample, sample: Sample, passed_s: float) -> Ledger:
    tally, cpu_s, io_bytes = ledger.tally, member.cpu_s, member.io_bytes
    if passed_s:
        look = seen(
            member.gpu,
            sample.host,
            disk=float(member.state == "D") if member.state else None,
            running=float(member.state == "R") if member.state else None,
            cpu=rate(ledger.cpu_s, cpu_s, passed_s),
            io_bytes_s=rate(ledger.io_bytes, io_bytes, passed_s),
        )
        tally = fold(tally, look)
    return _replace(ledger, tally=tally, cpu_s=cpu_s, io_bytes=io_bytes)


def _look(memory: Standing, slots: tuple[SlotReading, ...]) -> Standing:
    """Compare the ranks, where they are equally far and nobody has looked at this step."""
    step_s = _step_s(memory)
    at, *others = {(slot.progress[_BACKWARDS], _in_backward(slot)) for slot in slots}
    begun = sum(at)
    if others or step_s is None or begun == memory.looked_at:
        return memory
    last, behind_s, place = _last(slots)
    ledgers = list(memory.ledgers)
    if behind_s >= MARGIN * step_s:
        ledger = ledgers[last]
        ledgers[last] = _replace(
            ledger,
            last=ledger.last + 1,
            behind_s=ledger.behind_s + min(behind_s, step_s),
            places=tuple(n + (i == place) for i, n in enumerate(ledger.places)),
        )
    memory = _replace(memory, looks=memory.looks + 1, looked_at=begun, ledgers=tuple(ledgers))
    if memory.looks >= LEAST_LOOKS:
        memory = _replace(memory, open=_straggler(memory, step_s))
    return _halved(memory) if memory.looks >= MOST_LOOKS else memory


def _in_backward(slot: SlotReading) -> bool:
    return slot.backward_ns > slot.backward_end_ns


def _step_s(memory: Standing) -> float | None:
    """The mean; a step that accumulates gradients over several backward passes counts as one."""
    made = [count for count in memory.made if count]
    return memory.seconds / min(made) if made else None


def _last(slots: tuple[SlotReading, ...]) -> tuple[int, float, int | None]:
    """Who came last to the place with the most delay, how much later, and where it was late first.

    Ranks that wait for each other on the way to a place come there at once, so that the largest
    delay is that before they meet.
    """
    has_next = [slot.batch_ns > slot.backward_ns for slot in slots]
    at_batch = len(set(has_next)) == 1 and all(slot.batch_ns for slot in slots)
    delays = []
    for place, stamps in enumerate(zip(*map(_stamps, slots), strict=True)):
        last = max(range(len(stamps)), key=stamps.__getitem__)
        others = stamps[:last] + stamps[last + 1 :]
        behind_s = (stamps[last] - median_low(others)) / 1e9
        delays.append((last, behind_s if place or at_batch else 0.0))
    last, behind_s = max(delays, key=lambda delay: delay[1])
    if len(set(has_next)) > 1:  # it waits for a batch that others have, or they wait for theirs
        return last, behind_s, None if has_next[last] else 0
    return last, behind_s, next(i for i, d in enumerate(delays) if d[1] >= EARLIEST * behind_s)


def _stamps(slot: SlotReading) -> tuple[int, ...]:
    """In the order of _PLACES."""
    return slot.batch_ns, slot.backward_ns, slot.backward_end_ns


def _straggler(memory: Standing, step_s: float) -> Straggler | None:
    """Who lags, if one rank does and not chance; what was said stays as long as it is about so."""
    ledgers, said = memory.ledgers, memory.open
    first, second, *_ = sorted(range(len(ledgers)), key=lambda i: ledgers[i].last, reverse=True)
    worst, following = ledgers[first], ledgers[second]
    rank, pid = memory.world[first]
    total_s = sum(ledger.behind_s for ledger in ledgers)
    lost = worst.behind_s / memory.looks / step_s
    share = worst.behind_s / total_s if total_s else 0.0
    known = said is not None and said.pid == pid
    if share < SHARE or lost < (OVER if known else LOST):
        return None
    if said is not None and known and lost <= AGAIN * said.lost:
        return said
    if worst.last - following.last <= SIGMAS * sqrt(worst.last + following.last):
        return said if known else None
    others = tuple(means(ledger.tally) for i, ledger in enumerate(ledgers) if i != first)
    own = means(worst.tally)
    return Straggler(
        rank=rank,
        pid=pid,
        place=_PLACES[max(range(len(_PLACES)), key=worst.places.__getitem__)],
        behind_s=round(worst.behind_s / memory.looks, 4),
        step_s=round(step_s, 4),
        lost=round(lost, 3),
        share=round(share, 3),
        steps=round(memory.looks),
        differs=differences(mean(others), own),
    )


def _halved(memory: Standing) -> Standing:
    return _replace(
        memory,
        looks=memory.looks / 2,
        seconds=memory.seconds / 2,
        made=(memory.made[0] / 2, memory.made[1] / 2),
        ledgers=tuple(
            _replace(
                ledger,
                last=ledger.last / 2,
                behind_s=ledger.behind_s / 2,
                places=tuple(n / 2 for n in ledger.places),
                tally=Tally(
                    sums=tuple((total / 2, known / 2) for total, known in ledger.tally.sums)
                ),
            )
            for ledger in memory.ledgers
        ),
    )
