"""Which rank is last in most steps, and what that costs. Pure.

Ranks in lock-step make the same steps a second, even with a slow one among them. The difference
is when each reaches the same place of a step: it has its batch, begins the backward pass, has
ended it. Each rank records these times, so one reading shows how much later than the others the
last one came, or for how long they have waited for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median_low

import msgspec

from watchdog_train.client import layout
from watchdog_train.core.model import MemberSample, Sample, SlotReading, StepPlace, Straggler, Value

_replace = msgspec.structs.replace

MOST_RANKS = 64
"""Those with the lowest numbers are compared."""
LEAST_LOOKS = 60
"""Each at another step."""
MOST_LOOKS = 600
"""Then all of them count half: ten minutes and more; what was hours ago is forgotten."""
MARGIN = 0.05
"""Of a step: a rank that is late by less counts as on time."""
LOST = 0.1
"""Of each step: less is not reported."""
OVER = 0.05
AGAIN = 2.0
"""An increase by this factor is reported again."""
SHARE = 0.5
"""Of the time lost to late ranks; below it the ranks are uneven, without a straggler."""
SIGMAS = 5.0
"""How often it is last, against the next: ranks that take turns differ by one or two."""
BY_CHANCE = 0.5
"""Of its delay: if all ranks wait for a CPU, the rank that waits this much longer may be late for
that alone, and another one tomorrow."""
EARLIEST = 0.7
"""A place with this share of the complete delay is its origin."""
HARDLY = 0.05
"""Share of samples in state R; below it too few to know how often it gets a CPU."""
ALIKE = 1.5
"""Between shares of the time in line: a process that wants a CPU more often waits more often."""
LONGEST_POLL_S = 30.0
"""Between polls; after a longer gap the length of its steps is unknown."""
_STEPS = layout.PROGRESS_WORDS.index(layout.W_OPTIMIZER_STEPS)
_BACKWARDS = layout.PROGRESS_WORDS.index(layout.W_MICRO_BATCHES)
_PLACES: tuple[StepPlace, ...] = ("batch", "backward", "backward-end")


class Delay(Value):
    begun: int
    """Backward passes of the first of them."""
    last: int
    """Index of the last one, in the order of the ranks."""
    behind_s: float
    """After the median of the others."""
    places: dict[StepPlace, float]
    """The same at each place where it is known; 0: another rank comes last there."""


Sums = dict[str, tuple[float, float]]
"""By name, the sum of the values, and the number of polls with a value."""


class Ledger(Value):
    sums: Sums = {}  # noqa: RUF012 - msgspec copies it
    """Of polls at which it was the last one by the margin: its delay in seconds, as `late` and by
    place. Of all polls: `running` (1 in state R, else 0), `cpu` (CPU seconds a second)."""
    cpu_s: float | None = None
    """At the newest look."""


class Standing(Value):
    at: float | None = None
    """The poll before; None if it was not training then."""
    suspended_s: float | None = None
    world: tuple[tuple[int, int], ...] = ()
    """Rank and pid."""
    counts: tuple[int, int] = (0, 0)
    """Steps and backward passes of the slowest rank, at the poll before."""
    seconds: float = 0.0
    """Of training, with its steps and backward passes."""
    made: tuple[float, float] = (0.0, 0.0)
    looks: float = 0.0
    newest: Delay | None = None
    """The newest poll, which counts when the next step begins."""
    ledgers: tuple[Ledger, ...] = ()
    open: Straggler | None = None
    """As last reported."""


def advance(memory: Standing, sample: Sample) -> Standing:
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
            _with_cpu(ledger, member, passed_s)
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
    """The ranks of one world by number, while all of them train; else none."""
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
    """Since the poll before; 0 if that time is unknown, or the machine has slept."""
    passed_s = sample.at - before.at if before.at is not None else 0.0
    slept = abs((sample.suspended_s or 0.0) - (before.suspended_s or 0.0)) > 1.0
    return passed_s if 0 < passed_s <= LONGEST_POLL_S and not slept else 0.0


def _with_cpu(ledger: Ledger, member: MemberSample, passed_s: float) -> Ledger:
    look = {}
    if passed_s and member.state:
        look["running"] = float(member.state == "R")
    if passed_s and member.cpu_s is not None and ledger.cpu_s is not None:
        look["cpu"] = (member.cpu_s - ledger.cpu_s) / passed_s
    return _replace(ledger, sums=_added(ledger.sums, look), cpu_s=member.cpu_s)


def _added(sums: Sums, values: Mapping[str, float]) -> Sums:
    found = dict(sums)
    for name, value in values.items():
        total, known = found.get(name, (0.0, 0.0))
        found[name] = (total + value, known + 1)
    return found


def _mean(name: str, ledgers: Sequence[Ledger]) -> float | None:
    """None: unknown at every look."""
    sums = [one.sums[name] for one in ledgers if name in one.sums]
    return sum(total for total, _ in sums) / sum(known for _, known in sums) if sums else None


def _look(memory: Standing, at: float, passed_s: float, slots: tuple[SlotReading, ...]) -> Standing:
    """Compare the ranks. The last poll in a step is the best, and counts when the next begins."""
    delay = _delay(at, passed_s, slots)
    step_s, before = _step_s(memory), memory.newest
    if delay is None or step_s is None:
        return memory
    if before is not None and (before.begun, before.last) == (delay.begun, delay.last):
        # A rank with its next batch has overwritten the time of the one before.
        old, new = before.places, delay.places
        places = {place: max(old.get(place, 0.0), new.get(place, 0.0)) for place in {**old, **new}}
        delay = _replace(delay, places=places)
    memory = _replace(memory, newest=delay)
    if before is None or delay.begun <= before.begun:
        return memory
    if before.behind_s >= MARGIN * step_s:
        ledgers = list(memory.ledgers)
        ledger = ledgers[before.last]
        late = (("late", before.behind_s), *before.places.items())
        sums = _added(ledger.sums, {name: min(late_s, step_s) for name, late_s in late})
        ledgers[before.last] = _replace(ledger, sums=sums)
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
    """The last rank at the place with the most delay; None if the ranks are too far apart.

    Ranks that wait for each other before a place arrive together, so the largest delay is the one
    before they meet.
    """
    ended = [slot.progress[_BACKWARDS] for slot in slots]
    begun = [n + (s.backward_ns > s.backward_end_ns) for n, s in zip(ended, slots, strict=True)]
    batch = [n + (s.batch_ns > s.backward_ns) for n, s in zip(begun, slots, strict=True)]
    found: dict[StepPlace, tuple[float, int] | None] = {
        "batch": _last(at, passed_s, batch, [slot.batch_ns for slot in slots]),
        "backward": _last(at, passed_s, begun, [slot.backward_ns for slot in slots]),
        "backward-end": _last(at, passed_s, ended, [slot.backward_end_ns for slot in slots]),
    }
    if found["backward"] is None or found["backward-end"] is None:
        return None
    behind_s, last = max(each for each in found.values() if each is not None)
    places = {place: one[0] * (one[1] == last) for place, one in found.items() if one is not None}
    return Delay(begun=max(begun), last=last, behind_s=behind_s, places=places)


def _last(
    at: float, passed_s: float, numbers: list[int], stamps: list[int]
) -> tuple[float, int] | None:
    """How late the last rank came to a place, and which one it is.

    For a rank still on its way only the time until now is known. A poll comes at any moment of it,
    the first one in the middle on average.
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
    """The late rank, if it is not chance; a report stays as long as it is about right."""
    ledgers, said = memory.ledgers, memory.open
    late = [ledger.sums.get("late", (0.0, 0.0)) for ledger in ledgers]
    first, second, *_ = sorted(range(len(late)), key=lambda i: late[i][1], reverse=True)
    (behind_s, times), (_, next_times) = late[first], late[second]
    worst = ledgers[first]
    rank, pid = memory.world[first]
    total_s = sum(seconds for seconds, _ in late)
    lost = behind_s / memory.looks / step_s
    share = behind_s / total_s if total_s else 0.0
    known = said if said is not None and said.pid == pid else None
    if share < SHARE or lost < (LOST if known is None else OVER):
        return None
    if known is not None and lost <= AGAIN * known.lost:
        return known
    others = ledgers[:first] + ledgers[first + 1 :]
    by_chance = times - next_times <= SIGMAS * sqrt(times + next_times)
    if by_chance or _lacks_cpus(worst, others, lost):
        return known
    at = {place: late_s for place in _PLACES if (late_s := _mean(place, [worst])) is not None}
    return Straggler(
        rank=rank,
        pid=pid,
        place=next(place for place, late_s in at.items() if late_s >= EARLIEST * max(at.values())),
        behind_s=round(behind_s / memory.looks, 4),
        step_s=round(step_s, 4),
        lost=round(lost, 3),
        share=round(share, 3),
        steps=round(memory.looks),
    )


def _lacks_cpus(rank: Ledger, others: Sequence[Ledger], lost: float) -> bool:
    """Whether all wait for a CPU about as often as they want one, and it loses its time in that."""
    mine, usual = _in_line([rank]), _in_line(others)
    if mine is None or usual is None:
        return False
    (ready, waits), (others_ready, others_wait) = mine, usual
    alike = waits / ready <= ALIKE * others_wait / others_ready
    return alike and waits - others_wait > BY_CHANCE * lost


def _in_line(ledgers: Sequence[Ledger]) -> tuple[float, float] | None:
    """Share of the time in which they are ready to run, and of that in which they are not run."""
    ready, ran = _mean("running", ledgers), _mean("cpu", ledgers)
    if ready is None or ran is None or ready < HARDLY:
        return None
    return ready, max(0.0, ready - ran)


def _halved(memory: Standing) -> Standing:
    return _replace(
        memory,
        looks=memory.looks / 2,
        seconds=memory.seconds / 2,
        made=(memory.made[0] / 2, memory.made[1] / 2),
        ledgers=tuple(
            _replace(
                ledger,
                sums={name: (total / 2, known / 2) for name, (total, known) in ledger.sums.items()},
            )
            for ledger in memory.ledgers
        ),
    )
