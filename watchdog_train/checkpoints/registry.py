"""The known checkpoint formats: wtrain's own, and those of installed packages."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

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
from watchdog_train.checkpoints.disk import Listing, sizes_of
from watchdog_train.checkpoints.formats import Candidate, Format, Limits, Verdict, by_step, judged
from watchdog_train.plugins import Guard, Plugins

GROUP = "watchdog_train.checkpoints"
"""Entry points of other packages, each of which names one Format."""
FOREIGN_S = 10.0
"""For all calls of another package's format in one scan; complete reads have their own time."""


class Formats(NamedTuple):
    by_name: Mapping[str, Format]
    """wtrain's own first."""
    warnings: list[str]
    """About those of other packages; one that fails during the scan adds its own."""


_OURS = (
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
"""In order of what a training can resume from: a framework's full state before single files."""
OURS = Formats({item.name: item for item in _OURS}, [])


def all_formats() -> Formats:
    """The formats of wtrain and of installed packages. Only the process of a scan loads these."""
    plugins = Plugins(GROUP, "checkpoint formats")
    known = dict(OURS.by_name)
    for package, _, item in plugins.load():
        if not isinstance(item, Format) or not isinstance(item.name, str):
            plugins.warn(package, f"the entry point names a {type(item).__name__}, not a Format")
        elif item.name in known:
            plugins.warn(package, f"there is a format {item.name} already")
        else:
            known[item.name] = _guarded(item, partial(plugins.warn, package))
    return Formats(known, plugins.warnings)


def _guarded(item: Format, warn: Callable[[str], None]) -> Format:
    guard = Guard(lambda error: warn(f"{item.name}: {error}"), FOREIGN_S)

    def check(candidate: Candidate, limits: Limits) -> Verdict:
        def verdict() -> Verdict:
            found = judged(partial(item.check, candidate, limits))
            return msgspec.convert(msgspec.to_builtins(found), Verdict)

        more_s = limits.time_left() if limits.level == "full" else 0.0
        unknown = Verdict(whole=None, why="it cannot be checked: its format has failed")
        return guard.ask(verdict, more_s) or unknown

    return Format(
        name=item.name,
        resume_hint=str(item.resume_hint),
        owns_directory=True,
        find=lambda listing: guard.ask(lambda: tuple(_foreign(item, listing))) or (),
        check=check,
        key=by_step,
    )


def _foreign(item: Format, listing: Listing) -> Iterator[Candidate]:
    """Another package's candidates with files; ValueError for one outside the directory."""
    for one in item.find(listing):
        if listing.path not in (one.path, os.path.dirname(one.path)):
            raise ValueError(f"{one.path} is not in {listing.path}")
        told = {"path": one.path, "format": item.name, "step": one.step}
        if files := sizes_of(one.path):
            yield msgspec.convert({**told, "files": files}, Candidate)
