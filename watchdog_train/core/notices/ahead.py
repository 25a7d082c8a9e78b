"""What will go wrong if it goes on like this: disk, memory, saves, a shared GPU. Pure.

A warning that is wrong is not read the next time. So the rate is that of the lows, not of the
moments: memory that rises and falls, and checkpoints that replace each other, have lows that stay.
And half of what was free at the beginning has to be gone: a rotating set fills up before it
rotates, and looks like a leak until then.
"""

from __future__ import annotations

import itertools
from statistics import median

import msgspec

from watchdog_train.core.detection.track import judged
from watchdog_train.core.events.stall import Warned, WarningKind, WarningOver
from watchdog_train.core.model import Sample, SaveRecord, Value, Why

_replace = msgspec.structs.replace

LEAST_SPAN_S = 3600.0
"""Less is a beginning: caches fill, workers start; and half a tooth of a saw looks like a rate."""
MOST_POINTS = 64
"""Then every second one is dropped: the history is as long as the attempt."""
PARTS = 4
"""Of the history; the low of each is lower than that of the one before."""
EVEN_FACTOR = 3.0
"""The largest fall between two of them against the smallest."""
GONE_SHARE = 0.5
HORIZON_S = 3 * 3600.0
"""Where nobody knows the end: what is full within so long is worth a word."""
OVER_FACTOR = 1.5
"""A warning is over when what is left lasts so much longer than it has to."""
LOW_DISK_BYTES = 512 * 1024**2
LOW_DISK_SHARE = 0.01
LOW_MEMORY_SHARE = 0.02
LOW_LOOKS = 3
"""Low at so many looks in a row: a save that replaces another one is low for a moment."""
SHARED_S = 120.0
"""A stranger on the GPU for so long; somebody who looks with a tool stays for less."""
DISPLAYS = ("Xorg", "Xwayland", "gnome-shell", "kwin", "plasmashell", "mutter", "sddm", "gdm")
UNSAVED_FIRST_S = 2 * 3600.0
"""Training without any save."""
UNSAVED_FLOOR_S = 1800.0
UNSAVED_FACTOR = 2.5
"""Of the longest time between two saves of this attempt."""
AGAIN_S = 3600.0
"""A warning that was over is not said again within so long."""


class DiskRoom(Value, frozen=True, kw_only=True):
    """A file system that the run writes to."""

    path: str
    free_bytes: int
    total_bytes: int


class Room(Value, frozen=True, kw_only=True):
    """What is left at one moment."""

    at: float
    """Supervisor's clock."""
    disks: tuple[DiskRoom, ...] = ()
    memory_free_bytes: int | None = None
    """What a process may still take, without anything being moved to swap."""
    memory_total_bytes: int | None = None


class Trend(Value, frozen=True, kw_only=True):
    """The history of one resource."""

    points: tuple[tuple[float, int], ...] = ()
    """Time and free bytes; each the low of its time."""
    every_s: float = 0.0
    first_free: int = 0
    low_looks: int = 0
    high_free: int = 0
    """The most that was free of late: after the last save has replaced another."""


class Ahead(Value, frozen=True, kw_only=True):
    """One thing that will go wrong."""

    kind: WarningKind
    about: str
    """A path, or empty."""
    why: Why


class Outlook(Value, frozen=True, kw_only=True):
    """Memory of one attempt."""

    room_at: float = 0.0
    trends: tuple[tuple[str, Trend], ...] = ()
    """By path; memory has the empty one."""
    open: tuple[Ahead, ...] = ()
    closed: tuple[tuple[str, float], ...] = ()
    """Kind and place of what is over, and when it was."""
    strangers_since: float | None = None
    strangers: tuple[str, ...] = ()
    saves: int = 0
    saved_at: float | None = None
    """Of the newest finished save; before it the first step."""
    longest_s: float | None = None
    """Between two finished saves."""
    inherited: tuple[Ahead, ...] = ()
    """Said by the supervisor before this one."""
    inherited_until: float = 0.0


def resumed(said: tuple[Ahead, ...], now: float) -> Outlook:
    """The memory of a supervisor that takes over: what was said stays until it can be judged."""
    return Outlook(open=said, inherited=said, inherited_until=now + LEAST_SPAN_S)


def advance(
    memory: Outlook,
    sample: Sample,
    room: Room | None,
    *,
    left_s: float | None,
    saves: tuple[SaveRecord, ...] = (),
) -> Outlook:
    """The memory after one more look; all but the cheapest is done when there is a new `room`.

    Args:
        memory: after the look before.
        sample: this look.
        room: the newest measurement, None while there is none.
        left_s: until the training is done at its pace, None where it is not known.
        saves: noted by the save hooks, oldest first; their sizes tell what the next one needs.
    """
    memory = _saved(memory, sample)
    if room is None or room.at <= memory.room_at:
        return memory
    memory = _replace(_shared(memory, sample), room_at=room.at)
    found: list[Ahead] = []
    trends = dict(memory.trends)
    need = max((sum(size for size, _ in save.files.values()) for save in saves[-3:]), default=0)
    was_open = {(one.kind, one.about) for one in memory.open}
    for disk in room.disks:
        low = max(LOW_DISK_BYTES, int(LOW_DISK_SHARE * disk.total_bytes))
        trend = _grow(trends.get(disk.path, Trend()), room.at, disk.free_bytes, low)
        trends[disk.path] = trend
        is_open = ("disk", disk.path) in was_open
        why = _disk_why(disk, trend, left_s, need, is_open=is_open)
        if why is not None:
            found.append(Ahead(kind="disk", about=disk.path, why=why))
    if room.memory_free_bytes is not None and room.memory_total_bytes:
        low = int(LOW_MEMORY_SHARE * room.memory_total_bytes)
        trend = _grow(trends.get("", Trend()), room.at, room.memory_free_bytes, low)
        trends[""] = trend
        why = _memory_why(room, trend, left_s, is_open=("memory", "") in was_open)
        if why is not None:
            found.append(Ahead(kind="memory", about="", why=why))
    if memory.strangers_since is not None and room.at - memory.strangers_since >= SHARED_S:
        why = Why("gpu-shared", names=memory.strangers)
        found.append(Ahead(kind="gpu-shared", about="", why=why))
    unsaved = _unsaved_why(memory, room.at)
    if unsaved is not None:
        found.append(Ahead(kind="unsaved", about="", why=unsaved))
    return _settle(_replace(memory, trends=tuple(trends.items())), tuple(found), room.at)


def _settle(memory: Outlook, found: tuple[Ahead, ...], now: float) -> Outlook:
    """What is open now: an open one keeps its first words, one that was over waits."""
    known = {(one.kind, one.about) for one in found}
    if now < memory.inherited_until:
        found += tuple(one for one in memory.inherited if (one.kind, one.about) not in known)
    before = {(one.kind, one.about): one for one in memory.open}
    closed = dict(memory.closed)
    now_open = []
    for one in found:
        key = (one.kind, one.about)
        if key in before:
            now_open.append(before[key])
        elif now - closed.get(f"{one.kind} {one.about}", -AGAIN_S) >= AGAIN_S:
            now_open.append(one)
    still = {(one.kind, one.about) for one in now_open}
    closed |= {f"{kind} {about}": now for kind, about in before if (kind, about) not in still}
    return _replace(memory, open=tuple(now_open), closed=tuple(closed.items()))


def warnings(
    found: tuple[Ahead, ...] | None, said: tuple[Warned, ...], now: float
) -> list[Warned | WarningOver]:
    """What has to be said, and what of it is over; None found: nobody looked."""
    if found is None:
        return []
    known = {(one.kind, one.about) for one in said}
    still = {(one.kind, one.about) for one in found}
    return [
        *(
            Warned(kind=one.kind, about=one.about, why=one.why)
            for one in found
            if (one.kind, one.about) not in known
        ),
        *(
            WarningOver(kind=one.kind, about=one.about, seconds=round(max(0.0, now - one.mono), 1))
            for one in said
            if (one.kind, one.about) not in still
        ),
    ]


# -- what fills up -----------------------------------------------------------------------------
def _grow(trend: Trend, at: float, free: int, low: int) -> Trend:
    points, every_s = trend.points, trend.every_s
    if points and at - points[-1][0] < every_s:
        points = (*points[:-1], (points[-1][0], min(points[-1][1], free)))
    else:
        points = (*points, (at, free))
    if len(points) > MOST_POINTS:
        every_s = 2 * max(every_s, (points[-1][0] - points[0][0]) / len(points))
        pairs = zip(points[::2], points[1::2], strict=False)
        rest = points[-1:] if len(points) % 2 else ()
        points = (*((a[0], min(a[1], b[1])) for a, b in pairs), *rest)
    return Trend(
        points=points,
        every_s=every_s,
        first_free=trend.first_free or free,
        low_looks=trend.low_looks + 1 if free < low else 0,
        high_free=max(free, min(trend.high_free, 2 * free)),
    )


def lasts_s(trend: Trend) -> float | None:
    """How long what is free will last at the rate of its lows; None: it does not shrink."""
    points = trend.points
    if len(points) < 2 * PARTS or points[-1][0] - points[0][0] < LEAST_SPAN_S:
        return None
    begin, span = points[0][0], points[-1][0] - points[0][0]
    lows: list[tuple[float, int]] = []
    for part in range(PARTS):
        until = begin + span * (part + 1) / PARTS
        since = begin + span * part / PARTS
        mine = [p for p in points if since <= p[0] <= until]
        if not mine:
            return None
        lows.append(min(mine, key=lambda point: point[1]))
    falls = [(a[1] - b[1]) / max(b[0] - a[0], 1.0) for a, b in itertools.pairwise(lows)]
    if min(falls) <= 0 or max(falls) > EVEN_FACTOR * min(falls):
        return None
    return lows[-1][1] / median(falls)


def _fills_up(trend: Trend, free: int, left_s: float | None, *, is_open: bool) -> float | None:
    """Seconds until it is full, where that is before the end."""
    lasts = lasts_s(trend)
    if lasts is None:
        return None
    gone = 1.0 - free / max(trend.first_free, 1)
    if not is_open and gone < GONE_SHARE:
        return None
    limit = left_s if left_s is not None else HORIZON_S
    return lasts if lasts < limit * (OVER_FACTOR if is_open else 1.0) else None


def _disk_why(
    disk: DiskRoom, trend: Trend, left_s: float | None, need: int, *, is_open: bool
) -> Why | None:
    if trend.low_looks >= LOW_LOOKS:
        return Why("disk-low", path=disk.path, size=disk.free_bytes)
    if need and trend.high_free < need:
        return Why("checkpoint-too-large", need=need, path=disk.path, size=disk.free_bytes)
    full_s = _fills_up(trend, disk.free_bytes, left_s, is_open=is_open)
    if full_s is None:
        return None
    return Why("disk-fills", path=disk.path, seconds=full_s, because=_end(left_s))


def _memory_why(room: Room, trend: Trend, left_s: float | None, *, is_open: bool) -> Why | None:
    free = room.memory_free_bytes or 0
    if trend.low_looks >= LOW_LOOKS:
        return Why("memory-low", size=free)
    full_s = _fills_up(trend, free, left_s, is_open=is_open)
    if full_s is None:
        return None
    return Why("memory-fills", seconds=full_s, because=_end(left_s))


def _end(left_s: float | None) -> tuple[Why, ...]:
    return () if left_s is None else (Why("needs-more", seconds=left_s),)


# -- who else is there, and what is saved --------------------------------------------------------
def _shared(memory: Outlook, sample: Sample) -> Outlook:
    names = sample.gpu.other_names if sample.gpu is not None else ()
    strangers = tuple(name for name in names if not any(known in name for known in DISPLAYS))
    if not strangers:
        return _replace(memory, strangers_since=None, strangers=())
    since = memory.strangers_since if memory.strangers_since is not None else sample.at
    return _replace(memory, strangers_since=since, strangers=strangers[:4])


def _saved(memory: Outlook, sample: Sample) -> Outlook:
    ended = steps = 0
    for _, slot in judged(sample):
        ended = max(ended, slot.saves_ended)
        steps += slot.step is not None
    if memory.saved_at is None:
        return _replace(memory, saved_at=sample.at, saves=ended) if steps else memory
    if ended <= memory.saves:
        return memory
    between = sample.at - memory.saved_at
    longest = max(memory.longest_s or 0.0, between)
    return _replace(memory, saves=ended, saved_at=sample.at, longest_s=longest)


def _unsaved_why(memory: Outlook, now: float) -> Why | None:
    if memory.saved_at is None:
        return None
    unsaved_s = now - memory.saved_at
    if memory.longest_s is None:
        if unsaved_s < UNSAVED_FIRST_S:
            return None
        return Why("never-saved", seconds=unsaved_s)
    if unsaved_s < max(UNSAVED_FLOOR_S, UNSAVED_FACTOR * memory.longest_s):
        return None
    return Why("save-overdue", seconds=unsaved_s, limit_s=memory.longest_s)
