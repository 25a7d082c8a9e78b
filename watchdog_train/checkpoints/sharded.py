"""Sharded state inside of another checkpoint: FSDP's by torch's DCP, and DeepSpeed's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from watchdog_train.checkpoints import dcp, deepspeed
from watchdog_train.checkpoints.files import Sizes
from watchdog_train.checkpoints.formats import Limits, Verdict

_DIRECTORY = re.compile(r"^(pytorch_model(_fsdp)?_\d+|pytorch_model|optimizer_\d+|global_step\d+)/")


def is_inside(names: Iterable[str]) -> bool:
    """Whether some of these relative names lie in a directory of sharded state."""
    return any(_DIRECTORY.match(name) for name in names)


def check_inside(path: str, files: Sizes, limits: Limits) -> dict[str, Verdict]:
    """The verdict on each such directory of a checkpoint, by its name."""
    inside: dict[str, Sizes] = {}
    for name, times in files.items():
        directory, slash, rest = name.partition("/")
        if slash and "/" not in rest and _DIRECTORY.match(name):
            inside.setdefault(directory, {})[rest] = times
    found = {}
    for directory, content in sorted(inside.items()):
        where = os.path.join(path, directory)
        parts = {name: times for name, times in content.items() if deepspeed.belongs(name)}
        if parts:
            found[directory] = deepspeed.check_directory(where, parts, limits)
            continue
        shards = {name: times for name, times in content.items() if dcp.belongs(name)}
        found[directory] = dcp.check_directory(where, shards, limits)
    return found
