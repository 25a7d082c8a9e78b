"""Which rank comes last, and what is different about it. Pure.

Ranks in lock-step make the same steps a second, however slow one of them is. What differs is when
each of them comes to the same place of a step: it has its batch, begins the backward pass, has
ended it. Each rank writes these times down, so that a look at any moment tells how much later than
the others the last one came, or for how long they have waited for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import sqrt
from statistics import median_low

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.model import (
    Difference,
    DifferenceKind,
    MemberSample,
    Sample,
    SlotReading,
    StepPlace,
    Straggler,
    Value,
)
from watchdog_train.core.model.gpu import GpuUse

_replace = msgspec.structs.replace

MOST_RANKS = 64
"""Those with the lowest numbers are compared."""
LEAST_LOOKS = 60
"""Each at another step."""
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
BY_CHANCE = 0.5
"""Of its delay: where all ranks wait for a CPU, who waits so much longer than the others may be
late for that alone, and another one tomorrow."""
EARLIEST = 0.7
"""A place at which so much of the whole delay is there already is where it came about."""
CLOCK_FALLS = 0.8
"""Below this share of the clock before: a GPU varies less between kernels."""
RISES = 0.2
"""Rise of the share of samples in state D, of time on a CPU, or of time waiting for one."""
HARDLY = 0.05
"""Share of samples: too few to know how often it gets a CPU."""
ALIKE = 1.5
"""Between shares of the time in line: who wants a CPU more often than others waits more often."""
BYTES_S = 1e6
"""Swapped, read and written: a machine that is only tidying up moves less."""
BYTES_FACTOR = 3.0
UTIL_FALLS = 0.6
MOST_NAMES = 8
LONGEST_POLL_S = 30.0
"""Between looks; after more nobody knows what the steps in between took."""
_STEPS = layout.PROGRESS_WORDS.index(layout.W_OPTIMIZER_STEPS)
_BACKWARDS = layout.PROGRESS_WORDS.index(layout.W_MICRO_BATCHES)
_PLACES: tuple[StepPlace, ...] = ("batch", "backward", "backward-end")


class Delay(Value):
    """One look at the ranks."""

    begun: int
    """Backward passes of the first of them."""
    last: int
    """Which one comes last, in the order of the ranks."""
    behind_s: float
    """After the median of the others."""
    places: dict[StepPlace, float | None]
    """The same at each place; None: not known, 0: another rank comes last there."""


Sums = dict[str, tuple[float, float]]
"""By name, the sum of what was seen, and how many looks knew it."""


def _added(sums: Sums, values: Mapping[str, float | None]) -> Sums:
    found = dict(sums)
    for name, value in values.items():
        if value is not None:
            total, known = found.get(name, (0.0, 0.0))
            found[name] = (total + value, known + 1)
    return found


class Behaviour(Value):
    """What was seen of one rank, or of several: CPU, GPU and storage."""

    sums: Sums = {}  # noqa: RUF012 - msgspec copies it
    """`gpu-util` and `gpu-clock` (shares), `disk` and `running` (shares of the looks in state D and
    R), `cpu` (CPU seconds a second), `io` (bytes a second)."""
    others: tuple[str, ...] = ()
    """Who else was seen on its GPUs."""
    slowed_by: tuple[str, ...] = ()
    """What was seen to hold the clock of its GPUs down."""
    busy: tuple[str, ...] = ()
    """Who else was seen to use the machine's CPUs."""

    def mean(self, name: str) -> float | None:
        """None: unknown all the time."""
        total, known = self.sums.get(name, (0.0, 0.0))
        return total / known if known else None

    @property
    def cpu_line(self) -> float | None:
        """Share of the time in line for a CPU: ready to run, and not run."""
        running, cpu = self.mean("running"), self.mean("cpu")
        return None if running is None or cpu is None else max(0.0, running - cpu)

    @property
    def line_share(self) -> float | None:
        """The same, of the time that it is ready to run; None of who hardly ever is."""
        running, in_line = self.mean("running"), self.cpu_line
        if running is None or in_line is None or running < HARDLY:
            return None
        return in_line / running

    def with_look(self, values: Mapping[str, float | None], other: Behaviour) -> Behaviour:
        """With one more look, and the names of another."""
        return Behaviour(
            sums=_added(self.sums, values),
            others=_names(self.others, other.others),
            slowed_by=_names(self.slowed_by, other.slowed_by),
            busy=_names(self.busy, other.busy),
        )

    def with_mean_of(self, other: Behaviour) -> Behaviour:
        """Another rank counts as one look."""
        return self.with_look({name: other.mean(name) for name in other.sums}, other)


def _names(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    return old if set(new) <= set(old) else tuple(sorted({*old, *new}))[:MOST_NAMES]


class Ledger(Value):
    """What was seen of one rank."""

    last: float = 0.0
    """Looks at which it was the last one by the margin."""
    behind_s: float = 0.0
    """Then, after the others: the sum."""
    places: Sums = {}  # noqa: RUF012 - msgspec copies it
    """The same at each place."""
    seen: Behaviour = Behaviour()
    cpu_s: float | None = None
    io_bytes: int | None = None


class Standing(Value):
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
    """That counted."""
    newest: Delay | None = None
    """The newest look, which counts when the next step begins."""
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
        return _replace(memory, at=None)  # some ranks have exited: the others wait for none
    if world != memory.world:
        said = None if memory.world else memory.open  # else another supervisor's, of these ranks
        memory = Standing(world=world, open=said, ledgers=(Ledger(),) * len(world))
    before = memory
    passed_s = _counted_s(before, sample)
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
    return _look(memory, sample.at, passed_s, slots)


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


def _counted_s(before: Standing, sample: Sample) -> float:
    """Since the look before; 0 where it is not known what happened, or the machine has slept."""
    passed_s = sample.at - before.at if before.at is not None else 0.0
    slept = abs((sample.suspended_s or 0.0) - (before.suspended_s or 0.0)) > 1.0
    return passed_s if 0 < passed_s <= LONGEST_POLL_S and not slept else 0.0


def _behaviour(ledger: Ledger, member: MemberSample, sample: Sample, passed_s: float) -> Ledger:
    seen, cpu_s, io_bytes = ledger.seen, member.cpu_s, member.io_bytes
    if passed_s:
        gpu = member.gpu or GpuUse()
        look = {
            "gpu-util": gpu.util / 100 if gpu.util is not None else None,
            "gpu-clock": gpu.clock,
            "disk": float(member.state == "D") if member.state else None,
            "running": float(member.state == "R") if member.state else None,
            "cpu": _rate(ledger.cpu_s, cpu_s, passed_s),
            "io": _rate(ledger.io_bytes, io_bytes, passed_s),
        }
        names = Behaviour(others=gpu.other_names, slowed_by=gpu.slowed_by, busy=sample.busy)
        seen = seen.with_look(look, names)
    return _replace(ledger, seen=seen, cpu_s=cpu_s, io_bytes=io_bytes)


def _rate(before: float | None, now: float | None, passed_s: float) -> float | None:
    """A second; None where a total is not known."""
    return None if before is None or now is None else (now - before) / passed_s


def _look(memory: Standing, at: float, passed_s: float, slots: tuple[SlotReading, ...]) -> Standing:
    """Compare the ranks. The newest look at a step tells most, and counts when the next begins."""
    delay = _delay(at, passed_s, slots)
    step_s, before = _step_s(memory), memory.newest
    if delay is None or step_s is None:
        return memory
    if before is not None and (before.begun, before.last) == (delay.begun, delay.last):
        # A rank that has its next batch has overwritten the time of the one before.
        places = {
            place: max((one for one in (known, now) if one is not None), default=None)
            for (place, known), now in zip(
                before.places.items(), delay.places.values(), strict=True
            )
        }
        delay = _replace(delay, places=places)
    memory = _replace(memory, newest=delay)
    if before is None or delay.begun <= before.begun:
        return memory
    if before.behind_s >= MARGIN * step_s:
        ledgers = list(memory.ledgers)
        ledger = ledgers[before.last]
        ledgers[before.last] = _replace(
            ledger,
            last=ledger.last + 1,
            behind_s=ledger.behind_s + min(before.behind_s, step_s),
            places=_added(
                ledger.places,
                {
                    place: min(behind_s, step_s) if behind_s is not None else None
                    for place, behind_s in before.places.items()
                },
            ),
        )
        memory = _replace(memory, ledgers=tuple(ledgers))
    memory = _replace(memory, looks=memory.looks + 1)
    if memory.looks >= LEAST_LOOKS:
        memory = _replace(memory, open=_straggler(memory, step_s))
    return _halved(memory) if memory.looks >= MOST_LOOKS else memory


def _step_s(memory: Standing) -> float | None:
    """The mean; a step that accumulates gradients over several backward passes counts as one."""
    made = [count for count in memory.made if count]
    return memory.seconds / min(made) if made else None


def _delay(at: float, passed_s: float, slots: tuple[SlotReading, ...]) -> Delay | None:
    """Who comes last to the place with the most delay; None where the ranks are too far apart.

    Ranks that wait for each other on the way to a place come there at once, so that the largest
    delay is that before they meet.
    """
    ended = [slot.progress[_BACKWARDS] for slot in slots]
    begun = [n + (s.backward_ns > s.backward_end_ns) for n, s in zip(ended, slots, strict=True)]
    batch = [n + (s.batch_ns > s.backward_ns) for n, s in zip(begun, slots, strict=True)]
    found = (
        _last(at, passed_s, batch, [slot.batch_ns for slot in slots]),
        _last(at, passed_s, begun, [slot.backward_ns for slot in slots]),
        _last(at, passed_s, ended, [slot.backward_end_ns for slot in slots]),
    )
    if found[1] is None or found[2] is None:
        return None
    behind_s, last = max(each for each in found if each is not None)
    places = (None if one is None else one[0] * (one[1] == last) for one in found)
    known = dict(zip(_PLACES, places, strict=True))
    return Delay(begun=max(begun), last=last, behind_s=behind_s, places=known)


def _last(
    at: float, passed_s: float, numbers: list[int], stamps: list[int]
) -> tuple[float, int] | None:
    """How much later than the others the last rank came to a place, and which one that is.

    While one is on its way only the time until now is known. A look comes at any moment of it, the
    first one in the middle on average.
    """
    if not all(stamps):
        return None
    top = max(numbers)
    behind = [i for i, number in enumerate(numbers) if number < top]
    if len(behind) > 1 or (behind and numbers[behind[0]] < top - 1):
        return None
    last = behind[0] if behind else max(range(len(stamps)), key=stamps.__getitem__)
    others_s = median_low(stamps[:last] + stamps[last + 1 :]) / 1e9
    if not behind:
        return stamps[last] / 1e9 - others_s, last
    since_s = max(0.0, at - others_s)
    return min(2 * since_s, since_s + passed_s / 2), last


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
    own, rest = worst.seen, (one.seen for number, one in enumerate(ledgers) if number != first)
    others = reduce(Behaviour.with_mean_of, rest, Behaviour())
    in_line = (own.cpu_line or 0.0) - (others.cpu_line or 0.0)
    if _crowded(others, own) and in_line > BY_CHANCE * lost:
        return said if known else None
    at = {
        place: worst.places[place][0] / worst.places[place][1]
        for place in _PLACES
        if place in worst.places
    }
    return Straggler(
        rank=rank,
        pid=pid,
        place=next(place for place, late_s in at.items() if late_s >= EARLIEST * max(at.values())),
        behind_s=round(worst.behind_s / memory.looks, 4),
        step_s=round(step_s, 4),
        lost=round(lost, 3),
        share=round(share, 3),
        steps=round(memory.looks),
        differs=_differences(others, own),
    )


def _halved(memory: Standing) -> Standing:
    def half(sums: Sums) -> Sums:
        return {name: (total / 2, known / 2) for name, (total, known) in sums.items()}

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
                places=half(ledger.places),
                seen=Behaviour(sums=half(ledger.seen.sums)),
            )
            for ledger in memory.ledgers
        ),
    )


def _differences(usual: Behaviour, now: Behaviour) -> tuple[Difference, ...]:
    """What is different, the likeliest causes of slow steps first; no verdict on which it was."""
    found = []

    def add(
        kind: DifferenceKind,
        differs: bool,
        values: tuple[float | None, float | None] = (None, None),
        who: tuple[str, ...] = (),
    ) -> None:
        if differs:
            old, new = (None if value is None else round(value, 3) for value in values)
            found.append(Difference(kind=kind, now=new, usual=old, who=who))

    def both(name: str) -> tuple[float | None, float | None]:
        return usual.mean(name), now.mean(name)

    strangers = tuple(name for name in now.others if name not in usual.others)
    held = tuple(why for why in now.slowed_by if why not in usual.slowed_by)
    clock_fell = _fell(*both("gpu-clock"), CLOCK_FALLS)
    add("gpu-shared", bool(strangers), who=strangers)
    add("gpu-clock", clock_fell, both("gpu-clock"), held)
    add("gpu-held", bool(held) and not clock_fell, who=held)
    lines = usual.cpu_line, now.cpu_line
    add("cpu-line", _rose(*lines) and not _crowded(usual, now), lines, now.busy)
    add("disk", _rose(*both("disk")), both("disk"))
    before_io, io = both("io")
    add("io", (io or 0.0) > max(BYTES_S, BYTES_FACTOR * (before_io or 0.0)), both("io"))
    add("computes", _rose(*both("cpu")), both("cpu"))
    add("gpu-util", _fell(*both("gpu-util"), UTIL_FALLS), both("gpu-util"))
    return tuple(found)


def _crowded(usual: Behaviour, now: Behaviour) -> bool:
    """Whether both wait for a CPU about as often as they want one: the machine has too few."""
    before, here = usual.line_share, now.line_share
    return before is not None and here is not None and here <= ALIKE * before


def _fell(usual: float | None, now: float | None, share: float) -> bool:
    return usual is not None and now is not None and now < share * usual


def _rose(usual: float | None, now: float | None) -> bool:
    return usual is not None and now is not None and now - usual > RISES
