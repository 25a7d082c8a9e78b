"""The formats that are known, and the order of their checkpoints. Must not open a checkpoint."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable

from watchdog_train.checkpoints import (
    accelerate,
    dcp,
    deepspeed,
    hf,
    lightning,
    megatron,
    safetensors,
    torch_zip,
    vision,
)
from watchdog_train.checkpoints.formats import Candidate, Format
from watchdog_train.checkpoints.names import numbers_of
from watchdog_train.checkpoints.pickle_head import step_of
from watchdog_train.client.layout import EPOCH_NAMES

FORMATS: tuple[Format, ...] = (
    hf.FORMAT,
    lightning.FORMAT,
    accelerate.FORMAT,
    megatron.FORMAT,
    deepspeed.FORMAT,
    dcp.FORMAT,
    vision.TIMM,
    vision.ULTRALYTICS,
    torch_zip.FORMAT,
    safetensors.FORMAT,
)
"""In order of what a training can go on from: a framework's full state before single files."""
BY_NAME = {item.name: item for item in FORMATS}


_LOOSE = (torch_zip.NAME, safetensors.NAME)
"""Single files of a loop of the user's own."""


def newest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """All candidates, newest first.

    A framework orders its own within one directory, and between directories the newest decides.
    """
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for one in candidates:
        is_loose = one.format in _LOOSE
        key = ("", "") if is_loose else (one.format, os.path.dirname(one.path))
        groups.setdefault(key, []).append(one)
    rank = {item.name: number for number, item in enumerate(FORMATS)}
    ordered = sorted(
        groups.values(),
        key=lambda group: (
            # What hooks have seen being saved is this training's; a folder beside it may not be.
            not any(one.noted for one in group),
            not any(one.of_running for one in group),
            min(rank[one.format] for one in group),
            -max(one.mtime_ns for one in group),
        ),
    )
    return tuple(one for group in ordered for one in _in_order(group))


def _in_order(group: list[Candidate]) -> list[Candidate]:
    """One group, newest first; what other trainings have saved comes last."""
    framework = BY_NAME[group[0].format].key
    rest = [one for one in group if not one.noted]
    if framework is not None:
        strangers = _of_others(group, rest)
        found = sorted(group, key=framework, reverse=True)
        # A second training into one directory is newer than the first, whatever its steps.
        return sorted(found, key=lambda one: (one.path in strangers, -one.stage))
    noted = [one for one in group if one.noted]
    noted.sort(key=lambda one: one.noted or (), reverse=True)
    # A save is noted at once: what is not, beside some that are, somebody else has written.
    found = [*noted, *_by_number(rest)]
    return sorted(found, key=lambda one: one.is_weights or one.format == safetensors.NAME)


def _of_others(group: list[Candidate], rest: list[Candidate]) -> frozenset[str]:
    """Of those that were not noted the ones of other trainings, by path.

    A framework tidies up before the hook is asked: each attempt may be killed between the two.
    """
    first = min((one.mtime_ns for one in group if one.noted), default=0)
    later = [one.path for one in rest if one.mtime_ns > first]
    attempts = max((one.noted[0] for one in group if one.noted), default=len(later))
    ours = later if len(later) <= max(attempts, 1) else ()
    return frozenset(one.path for one in rest).difference(ours)


def _by_number(group: list[Candidate]) -> list[Candidate]:
    """Newest first by what they hold and are called; between unlike ones by time."""
    keys: dict[str, tuple[object, ...]] = {}
    chains: dict[object, list[Candidate]] = {}
    for one in group:
        folder, name = os.path.split(one.path)
        above, parent = os.path.split(folder)
        found, outer = numbers_of(torch_zip.SUFFIX.sub("", name)), numbers_of(parent)
        has_own = found.dates or found.stages or found.epochs or found.counts
        where: tuple[str, ...] = (folder,)
        # step_20/state.pt, epoch_1/step_20.pt; but with run_1/step_20.pt time tells the run.
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
    # Of the first ones of all chains always the newest file.
    return list(heapq.merge(*ordered, key=lambda one: -one.mtime_ns))
