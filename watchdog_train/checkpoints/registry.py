"""The formats that are known, and the order of their checkpoints. Must not open a checkpoint."""

from __future__ import annotations

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


def newest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """All candidates, newest first.

    Numbers are compared within one directory only: step 50 of a second stage is newer than step
    1000 of the first. Between directories the newest file decides.
    """
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.format, os.path.dirname(candidate.path)), []).append(candidate)
    rank = {item.name: number for number, item in enumerate(FORMATS)}
    # Weights in safetensors beside files of torch.save come from one loop: time decides there.
    rank[safetensors.NAME] = rank[torch_zip.NAME]
    ordered = sorted(
        groups.items(),
        key=lambda item: (
            # What hooks have seen being saved is this training's; a folder beside it may not be.
            not any(one.recorded for one in item[1]),
            not any(one.of_running for one in item[1]),
            rank[item[0][0]],
            -max(one.mtime_ns for one in item[1]),
        ),
    )
    result: list[Candidate] = []
    for (name, _), group in ordered:
        # A second training into one directory is newer than the first, whatever its steps.
        in_order = BY_NAME[name].newest_first(tuple(group))
        result += sorted(in_order, key=lambda one: -one.stage)
    return tuple(result)
