"""Which checkpoint is newer than which. Opens none: their names, times and records decide."""

import heapq
import os
from collections.abc import Iterable, Iterator

from watchdog_train.checkpoints import safetensors, torch_zip
from watchdog_train.checkpoints.disk import DEPTH
from watchdog_train.checkpoints.formats import Candidate
from watchdog_train.checkpoints.names import numbers_of
from watchdog_train.checkpoints.pickle_head import step_of
from watchdog_train.checkpoints.registry import OURS, Formats
from watchdog_train.client.layout import EPOCH_NAMES

_LOOSE = (torch_zip.NAME, safetensors.NAME)
"""Single files of a user's own loop: those of all directories are one group."""


def newest_first(candidates: Iterable[Candidate], formats: Formats = OURS) -> tuple[Candidate, ...]:
    """All candidates, newest first.

    A framework orders its own within one directory; between directories the newest decides.
    """
    known = list(formats.by_name)
    candidates = list(candidates)
    foreign = {one.path for one in candidates if one.format not in OURS.by_name}
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for one in candidates:
        key = (one.format, os.path.dirname(one.path))
        if one.format in _LOOSE:
            # A file in a checkpoint of another package is a part of it: better than nothing.
            key = ("", "" if foreign.isdisjoint(_above(one.path)) else "parts")
        groups.setdefault(key, []).append(one)
    ordered = sorted(
        groups.items(),
        key=lambda item: (
            item[0] == ("", "parts"),
            # Saves seen by hooks are this training's; a folder beside it may not be.
            not any(one.noted for one in item[1]),
            not any(one.of_running for one in item[1]),
            min(known.index(one.format) for one in item[1]),
            -max(one.mtime_ns for one in item[1]),
        ),
    )
    return tuple(one for _, group in ordered for one in _in_order(group, formats))


def _above(path: str) -> Iterator[str]:
    for _ in range(DEPTH + 1):
        path = os.path.dirname(path)
        yield path


def _in_order(group: list[Candidate], formats: Formats) -> list[Candidate]:
    """One group, newest first; other trainings' saves come last."""
    framework = formats.by_name[group[0].format].key
    rest = [one for one in group if not one.noted]
    if framework is not None:
        strangers = _of_others(group, rest)
        found = sorted(group, key=framework, reverse=True)
        # A second training into one directory is newer than the first, whatever its steps.
        return sorted(found, key=lambda one: (one.path in strangers, -(one.whose.nth or 0)))
    noted = [one for one in group if one.noted]
    noted.sort(key=lambda one: one.noted or (), reverse=True)
    # A save is noted at once: an unnoted one beside noted ones was written by another program.
    found = [*noted, *_by_number(rest)]
    return sorted(found, key=lambda one: one.is_weights or one.format == safetensors.NAME)


def _of_others(group: list[Candidate], rest: list[Candidate]) -> frozenset[str]:
    """Of those without a note the ones of other trainings, by path.

    A framework tidies up before the hook runs: each attempt may be killed between the two, and
    leave one save of its own without a note.
    """
    first = min((one.mtime_ns for one in group if one.noted), default=0)
    later = [one.path for one in rest if one.mtime_ns > first]
    attempts = max((one.noted[0] for one in group if one.noted), default=len(later))
    ours = later if len(later) <= max(attempts, 1) else ()
    return frozenset(one.path for one in rest).difference(ours)


def _by_number(group: list[Candidate]) -> list[Candidate]:
    """Newest first by their contents and names; between unlike ones by time."""
    keys: dict[str, tuple[object, ...]] = {}
    chains: dict[object, list[Candidate]] = {}
    for one in group:
        folder, name = os.path.split(one.path)
        above, parent = os.path.split(folder)
        found, outer = numbers_of(torch_zip.SUFFIX.sub("", name)), numbers_of(parent)
        has_own = found.dates or found.stages or found.epochs or found.counts
        where: tuple[str, ...] = (folder,)
        # step_20/state.pt, epoch_1/step_20.pt; but with run_1/step_20.pt time decides the run.
        if outer.dates or outer.epochs or outer.steps or (outer.counts and not has_own):
            where = (above, outer.shape)
            found = outer.beside(found)
        counters = one.counters or {}
        epoch = tuple(counters[name] for name in EPOCH_NAMES if name in counters)[:1]
        step = step_of(counters)
        first = (*found.dates, *found.stages, *(epoch or found.epochs))
        if step is not None:
            first = (*first, step)
        shape = (len(first), bool(epoch or found.epochs)) if counters else found.shape
        chains.setdefault((where, shape), []).append(one)
        keys[one.path] = (first, found.counts, one.mtime_ns)
    ordered = (sorted(c, key=lambda one: keys[one.path], reverse=True) for c in chains.values())
    # A chain need not be sorted by time: the merge takes the newest of their first ones.
    return list(heapq.merge(*ordered, key=lambda one: -one.mtime_ns))
