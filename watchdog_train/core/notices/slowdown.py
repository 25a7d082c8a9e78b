"""Steps that take three times as long as learnt, for ten minutes: said once. Pure.

Only time in training counts: evaluations, saves, compilations, sleeps and stops do not. A pace that
creeps is followed and not said; one that jumps and stays is.
"""

from __future__ import annotations

from statistics import fmean, median

import msgspec

from watchdog_train.core.detection.track import judged
from watchdog_train.core.model import Phase, Sample, SlotReading, Value, Why
from watchdog_train.core.notices.surroundings import Means, Tally, changes, fold, means

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
LONGEST_POLL_S = 30.0
"""Between looks; after more nobody knows what the steps in between took."""


class Stretch(Value, frozen=True, kw_only=True):
    """A bin: some training time at one pace."""

    seconds: float
    step_s: float
    means: Means


class Slow(Value, frozen=True, kw_only=True):
    """A slow stretch that is worth a word."""

    since: float
    """Supervisor's clock."""
    usual_s: float
    """A step, as learnt."""
    step_s: float
    """A step, now: the median of the slow bins of late."""
    changed: tuple[Why, ...] = ()
    """What is different from before, as far as anything tells."""

    @property
    def factor(self) -> float:
        """How much slower."""
        return self.step_s / self.usual_s


class Slowness(Value, frozen=True, kw_only=True):
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
    usual: tuple[Stretch, ...] = ()
    slow: tuple[Stretch, ...] = ()
    """The newest bins, in a row, that were slow."""
    over: int = 0
    """Bins in a row that were not, while a slow stretch is open."""
    since: float = 0.0
    open: Slow | None = None


def resumed(usual_s: float, step_s: float, since: float) -> Slowness:
    """The memory of a supervisor that takes over while a slow stretch is open."""
    usual = Stretch(seconds=BIN_S, step_s=usual_s, means=Means())
    return Slowness(
        usual=(usual,) * LEARN_BINS,
        since=since,
        open=Slow(since=since, usual_s=usual_s, step_s=step_s),
    )


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
    passed_s = sample.at - memory.at if memory.at is not None else 0.0
    counts = (
        before is not None
        and memory.at is not None
        and slot.phase == memory.phase == "train"
        and 0 < passed_s <= LONGEST_POLL_S
        and sample.suspended_s == memory.suspended_s
        and not any(member.state in ("T", "t") for member in sample.members)
    )
    memory = _replace(
        memory,
        at=sample.at,
        counter=counter,
        phase=slot.phase,
        suspended_s=sample.suspended_s,
    )
    if not counts or before is None:
        return memory
    made = step - before[2]
    seconds, steps = memory.seconds + passed_s, memory.steps + made
    tally = fold(memory.tally, sample)
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
        changed=changes(_mean(memory.usual[:-1]), _mean(memory.slow)),
    )
    return _replace(memory, open=found, over=0)


def _while_open(memory: Slowness, stretch: Stretch, usual_s: float) -> Slowness:
    if stretch.step_s >= OVER_FACTOR * usual_s:
        return _replace(memory, over=0)
    if memory.over + 1 < OVER_BINS:
        return _replace(memory, over=memory.over + 1)
    return _replace(memory, open=None, over=0, slow=())


def _mean(stretches: tuple[Stretch, ...]) -> Means:
    """Each signal over the bins that knew it."""
    found: dict[str, float | None] = {}
    for name in Means.__struct_fields__:
        if name in ("others", "slowed_by"):
            continue
        known = [v for v in (getattr(each.means, name) for each in stretches) if v is not None]
        found[name] = fmean(known) if known else None
    return _replace(
        Means(),
        **found,
        others=tuple(sorted({name for each in stretches for name in each.means.others})),
        slowed_by=tuple(sorted({why for each in stretches for why in each.means.slowed_by})),
    )


def why(slow: Slow) -> Why:
    """What is slow, and what has changed."""
    return Why(
        "slow",
        number=slow.step_s,
        before=slow.usual_s,
        seconds=SLOW_S,
        because=slow.changed or (Why("nothing-changed"),),
    )
