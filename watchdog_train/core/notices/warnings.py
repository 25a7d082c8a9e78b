"""Warnings of what will fail without action: no room, no saves, a shared GPU. Pure."""

from __future__ import annotations

import msgspec

from watchdog_train.core.events.stall import Warned
from watchdog_train.core.model import Ahead, Sample, SaveRecord, Value, WarningKind, Why

_replace = msgspec.structs.replace

TAKEOVER_S = 3600.0
"""How long the previous supervisor's warnings are kept: judging them takes time."""
LOW_DISK_BYTES = 512 * 1024**2
LOW_DISK_SHARE = 0.01
LOW_MEMORY_SHARE = 0.02
LOW_LOOKS = 3
"""Consecutive low measurements: a save that replaces another needs both for a moment."""
SHARED_S = 120.0
"""How long another process is on the GPU; a person with a tool stays for less."""
DISPLAYS = ("Xorg", "Xwayland", "gnome-shell", "kwin", "plasmashell", "mutter", "sddm", "gdm")
UNSAVED_FIRST_S = 2 * 3600.0
"""Training without any save."""
UNSAVED_FLOOR_S = 1800.0
UNSAVED_FACTOR = 2.5
"""Factor on the longest time between two saves of this attempt."""
AGAIN_S = 3600.0
"""The shortest time before a warning that was over is repeated."""


class DiskRoom(Value):
    path: str
    free_bytes: int
    total_bytes: int


class Room(Value):
    at: float
    """Supervisor's clock."""
    disks: tuple[DiskRoom, ...] = ()
    memory_free_bytes: int | None = None
    """What a process may still take without swapping."""
    memory_total_bytes: int | None = None


class Free(Value):
    low_looks: int = 0
    high_free: int = 0
    """The most that was free recently: after the last save has replaced another."""


class Outlook(Value):
    room_at: float = 0.0
    free: tuple[tuple[str, Free], ...] = ()
    """By path; memory has the empty one."""
    open: tuple[Ahead, ...] = ()
    closed: tuple[tuple[tuple[str, str], float], ...] = ()
    """Kind and place of each warning that is over, and when it ended."""
    strangers_since: float | None = None
    strangers: tuple[str, ...] = ()
    saves: int = 0
    saved_at: float | None = None
    """Of the newest finished save; before it the first step."""
    longest_s: float | None = None
    """From the first step or a finished save to the next one; None: no save yet."""
    inherited: tuple[Ahead, ...] = ()
    inherited_until: float = 0.0


def resumed(said: tuple[Ahead, ...], now: float) -> Outlook:
    """The memory of a supervisor that takes over: old warnings stay until they can be judged."""
    return Outlook(open=said, inherited=said, inherited_until=now + TAKEOVER_S)


def advance(
    memory: Outlook,
    sample: Sample,
    room: Room | None,
    *,
    saves: tuple[SaveRecord, ...] = (),
) -> Outlook:
    """The memory after one more poll; most of the work is done only for a new `room`.

    Args:
        memory: after the poll before.
        sample: of this poll.
        room: the newest measurement, None without one.
        saves: noted by the save hooks, oldest first; their sizes estimate the next one.
    """
    memory = _saved(memory, sample)
    if room is None or room.at <= memory.room_at:
        return memory
    memory = _replace(_shared(memory, sample), room_at=room.at)
    found: list[Ahead] = []

    def warn(kind: WarningKind, why: Why, about: str = "") -> None:
        found.append(Ahead(kind=kind, about=about, why=why))

    known = dict(memory.free)
    need = max((sum(size for size, _ in save.files.values()) for save in saves[-3:]), default=0)
    for disk in room.disks:
        low = max(LOW_DISK_BYTES, int(LOW_DISK_SHARE * disk.total_bytes))
        free = known[disk.path] = _look(known.get(disk.path, Free()), disk.free_bytes, low)
        if free.low_looks >= LOW_LOOKS:
            warn("disk", Why("disk-low", path=disk.path, size=disk.free_bytes), disk.path)
        elif need and free.high_free < need:
            why = Why("checkpoint-too-large", need=need, path=disk.path, size=disk.free_bytes)
            warn("disk", why, disk.path)
    if room.memory_free_bytes is not None and room.memory_total_bytes:
        low = int(LOW_MEMORY_SHARE * room.memory_total_bytes)
        free = known[""] = _look(known.get("", Free()), room.memory_free_bytes, low)
        if free.low_looks >= LOW_LOOKS:
            warn("memory", Why("memory-low", size=room.memory_free_bytes))
    if memory.strangers_since is not None and room.at - memory.strangers_since >= SHARED_S:
        warn("gpu-shared", Why("gpu-shared", names=memory.strangers))
    unsaved = _unsaved_why(memory, room.at)
    if unsaved is not None:
        warn("unsaved", unsaved)
    return _settle(_replace(memory, free=tuple(known.items())), tuple(found), room.at)


def _settle(memory: Outlook, found: tuple[Ahead, ...], now: float) -> Outlook:
    """The open warnings: an open one keeps its first reason, one that was over waits."""
    known = {one.key for one in found}
    if now < memory.inherited_until:
        found += tuple(one for one in memory.inherited if one.key not in known)
    before = {one.key: one for one in memory.open}
    closed = dict(memory.closed)
    now_open = []
    for one in found:
        if one.key in before:
            now_open.append(before[one.key])
        elif now - closed.get(one.key, -AGAIN_S) >= AGAIN_S:
            now_open.append(one)
    still = {one.key for one in now_open}
    closed |= {key: now for key in before if key not in still}
    return _replace(memory, open=tuple(now_open), closed=tuple(closed.items()))


def warnings(found: tuple[Ahead, ...] | None, said: tuple[Ahead, ...]) -> list[Warned]:
    """Warnings that are new or over; `found` None: not measured."""
    if found is None:
        return []
    known, still = ({one.key for one in each} for each in (said, found))
    return [
        *(Warned(ahead=one) for one in found if one.key not in known),
        *(Warned(ahead=one, over=True) for one in said if one.key not in still),
    ]


def _look(known: Free, free: int, low: int) -> Free:
    return Free(
        low_looks=known.low_looks + 1 if free < low else 0,
        high_free=max(free, min(known.high_free, 2 * free)),
    )


def _shared(memory: Outlook, sample: Sample) -> Outlook:
    names = sample.gpu.other_names if sample.gpu is not None else ()
    strangers = tuple(name for name in names if not any(known in name for known in DISPLAYS))
    if not strangers:
        return _replace(memory, strangers_since=None, strangers=())
    since = memory.strangers_since if memory.strangers_since is not None else sample.at
    return _replace(memory, strangers_since=since, strangers=strangers[:4])


def _saved(memory: Outlook, sample: Sample) -> Outlook:
    ended = steps = 0
    for _, slot in sample.judged:
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
        return Why("never-saved", seconds=unsaved_s) if unsaved_s >= UNSAVED_FIRST_S else None
    if unsaved_s < max(UNSAVED_FLOOR_S, UNSAVED_FACTOR * memory.longest_s):
        return None
    return Why("save-overdue", seconds=unsaved_s, limit_s=memory.longest_s)
