"""The known checkpoint formats, ours and those of installed packages, and the order of newest."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

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
from watchdog_train.checkpoints.disk import DEPTH, Listing, sizes_of
from watchdog_train.checkpoints.formats import (
    Candidate,
    Format,
    Limits,
    Verdict,
    by_step,
    judged,
)
from watchdog_train.checkpoints.names import numbers_of
from watchdog_train.checkpoints.pickle_head import step_of
from watchdog_train.client.layout import EPOCH_NAMES
from watchdog_train.plugins import CALL_S, PluginError, Plugins, called

GROUP = "watchdog_train.checkpoints"
"""Entry points of other packages, each of which names one Format."""
FOREIGN_S = 10.0
"""For all calls of a format of another package in one scan; whole files take time of their own."""
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


class Formats(NamedTuple):
    """What a scan looks for."""

    by_name: Mapping[str, Format]
    """Ours first."""
    warnings: list[str]
    """About those of other packages; one that fails during the scan adds its own."""


OURS = Formats(BY_NAME, [])


def all_formats() -> Formats:
    """Ours, and those of installed packages. Only the process of a scan loads these."""
    plugins = Plugins(GROUP, "checkpoint formats")
    known = dict(BY_NAME)
    for package, _, item in plugins.load():
        if not isinstance(item, Format) or not isinstance(item.name, str):
            plugins.warn(package, f"the entry point names a {type(item).__name__}, not a Format")
        elif item.name in known:
            plugins.warn(package, f"there is a format {item.name} already")
        else:
            known[item.name] = _guarded(item, partial(plugins.warn, package))
    return Formats(known, plugins.warnings)


def _guarded(item: Format, warn: Callable[[str], None]) -> Format:
    """A format of another package, with limits. After its first failure it is not called again."""
    left_s = FOREIGN_S

    def ask(function: Callable[[], Any], more_s: float = 0.0) -> Any:
        nonlocal left_s
        if left_s <= 0:
            return None
        limit_s = max(min(CALL_S, left_s), more_s)
        began = time.monotonic()
        try:
            return called(function, limit_s, f"not done within {limit_s:.0f} s")
        except PluginError as error:
            warn(f"{item.name}: {error}")
            left_s = 0.0
            return None
        finally:
            left_s -= min(time.monotonic() - began, CALL_S)

    def check(candidate: Candidate, limits: Limits) -> Verdict:
        def verdict() -> Verdict:
            found = judged(partial(item.check, candidate, limits))
            return msgspec.convert(msgspec.to_builtins(found), Verdict)

        more_s = limits.time_left() if limits.level == "full" else 0.0
        unknown = Verdict(whole=None, why="it cannot be checked: its format has failed")
        return ask(verdict, more_s) or unknown

    return Format(
        name=item.name,
        resume_hint=str(item.resume_hint),
        owns_directory=True,
        find=lambda listing: ask(lambda: tuple(_foreign(item, listing))) or (),
        check=check,
        key=by_step,
    )


def _foreign(item: Format, listing: Listing) -> Iterator[Candidate]:
    """What another package has found, as far as it is there."""
    for one in item.find(listing):
        if listing.path not in (one.path, os.path.dirname(one.path)):
            raise ValueError(f"{one.path} is not in {listing.path}")
        told = {"path": one.path, "format": item.name, "step": one.step, "epoch": one.epoch}
        files = sizes_of(one.path)
        if files:
            yield msgspec.convert({**told, "files": files}, Candidate)


_LOOSE = (torch_zip.NAME, safetensors.NAME)
"""Single files of a loop of the user's own."""


def newest_first(candidates: Iterable[Candidate], formats: Formats = OURS) -> tuple[Candidate, ...]:
    """All candidates, newest first.

    A framework orders its own within one directory, and between directories the newest decides.
    """
    known = list(formats.by_name)
    candidates = list(candidates)
    foreign = {one.path for one in candidates if one.format not in BY_NAME}
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
            # What hooks have seen being saved is this training's; a folder beside it may not be.
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
    """One group, newest first; what other trainings have saved comes last."""
    framework = formats.by_name[group[0].format].key
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
