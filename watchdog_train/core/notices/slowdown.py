"""Steps that take three times as long as learnt, for ten minutes: said once. Pure.

Only time in training counts: evaluations, saves, compilations, sleeps and stops do not. A pace that
creeps is followed and not said; one that jumps and stays is.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.detection.track import judged
from watchdog_train.core.model import Phase, Sample, SlotReading, Slow, Value
from watchdog_train.core.notices.surroundings import (
    Means,
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

BIN_S = 60.0
"""Training time that is weighed together, so that uneven steps are evened out; at least a step."""
LEARN_BINS = 5
RECENT_BINS = 32
"""What is usual: about half an hour of training before the slow stretch."""
SLOW_FACTOR = 3.0
SLOW_S = 600.0
SLOW_BINS = 5
"""A single long gap, as of an evaluation that nothing tells of, is one bin, and no slow pace."""
OVER_FACTOR = 2.0
OVER_BINS = 3


class Stretch(Value):
    """A bin: some training time at one pace."""

    seconds: float
    step_s: float
    means: Means


class Slowness(Value):
    """Memory of one attempt."""

    at: float | None = None
    counter: tuple[int, int, int] | None = None
    """Which process counts, which of its trainings it is, and the newest step."""
    phase: Phase = "unknown"
    suspended_s: float | None = None
    seconds: float = 0.0
    """Of the bin that is being filled."""
    steps: int = 0
    tally: Tally = Tally()
    swap_bytes: int | None = None
    usual: tuple[Stretch, ...] = ()
    slow: tuple[Stretch, ...] = ()
    """The newest bins, in a row, that were slow."""
    over: int = 0
    """Bins in a row that were not, while a slow stretch is open."""
    since: float = 0.0
    open: Slow | None = None


def resumed(slow: Slow) -> Slowness:
    """The memory of a supervisor that takes over while a slow stretch is open."""
    usual = Stretch(seconds=BIN_S, step_s=slow.usual_s, means=Means())
    return Slowness(usual=(usual,) * LEARN_BINS, since=slow.since, open=slow)


def advance(memory: Slowness, sample: Sample) -> Slowness:
    """The memory after one more poll."""
    slot = _counting(sample)
    if slot is None:
        return memory if memory.at is None else _replace(memory, at=None)
    step = slot.step or 0
    counter = (slot.pid, slot.train_ordinal, step)
    before = memory.counter
    if before is not None and (before[:2] != counter[:2] or step < before[2]):
        memory = Slowness()  # another training begins; what the last one needed says nothing
        before = None
    passed_s = counted_s(memory.at, memory.suspended_s, sample)
    swap_bytes, swapped = sample.host.swap_bytes if sample.host else None, memory.swap_bytes
    counts = (
        before is not None
        and slot.phase == memory.phase == "train"
        and passed_s > 0
        and not any(member.state in ("T", "t") for member in sample.members)
    )
    memory = _replace(
        memory,
        at=sample.at,
        counter=counter,
        phase=slot.phase,
        suspended_s=sample.suspended_s,
        swap_bytes=swap_bytes,
    )
    if not counts or before is None:
        return memory
    made = step - before[2]
    seconds, steps = memory.seconds + passed_s, memory.steps + made
    look = seen(
        sample.gpu,
        sample.host,
        disk=float(any(member.state == "D" for member in sample.members)),
        swap_bytes_s=rate(swapped, swap_bytes, passed_s),
    )
    tally = fold(memory.tally, look)
    if seconds < BIN_S or not made:  # it ends with a step, or a part of one would not be counted
        return _replace(memory, seconds=seconds, steps=steps, tally=tally)
    stretch = Stretch(seconds=seconds, step_s=seconds / steps, means=means(tally))
    memory = _replace(memory, seconds=0.0, steps=0, tally=Tally())
    return _weigh(memory, stretch, sample.at)


def _counting(sample: Sample) -> SlotReading | None:
    """Who has made most steps, the first of them."""
    stepping = [slot for _, slot in judged(sample) if slot.step is not None]
    return max(stepping, key=lambda slot: slot.step or 0, default=None)


def _weigh(memory: Slowness, stretch: Stretch, now: float) -> Slowness:
    """What one more bin means."""
    if len(memory.usual) < LEARN_BINS:
        return _replace(memory, usual=(*memory.usual, stretch))
    from statistics import median  # with fractions, 1 ms of every start

    usual_s = median(each.step_s for each in memory.usual)
    if memory.open is not None:
        return _while_open(memory, stretch, usual_s)
    if stretch.step_s < SLOW_FACTOR * usual_s:
        usual = (*memory.usual, *memory.slow, stretch)[-RECENT_BINS:]
        return _replace(memory, usual=usual, slow=())
    since = memory.since if memory.slow else now - stretch.seconds
    slow = (*memory.slow, stretch)
    memory = _replace(memory, slow=slow[-RECENT_BINS:], since=since)
    if len(slow) < SLOW_BINS or sum(each.seconds for each in slow) < SLOW_S:
        return memory
    found = Slow(
        since=since,
        usual_s=usual_s,
        step_s=median(each.step_s for each in slow),
        # The newest usual bin may hold the moment at which it changed.
        changed=differences(
            mean(tuple(each.means for each in memory.usual[:-1])),
            mean(tuple(each.means for each in memory.slow)),
        ),
    )
    return _replace(memory, open=found, over=0)


def _while_open(memory: Slowness, stretch: Stretch, usual_s: float) -> Slowness:
    if stretch.step_s >= OVER_FACTOR * usual_s:
        return _replace(memory, over=0)
    if memory.over + 1 < OVER_BINS:
        return _replace(memory, over=memory.over + 1)
    return _replace(memory, open=None, over=0, slow=())
