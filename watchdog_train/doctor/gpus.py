"""The GPUs, and who has memory on them: by a child with a deadline, as evidence asks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from watchdog_train.doctor import Check
from watchdog_train.evidence.gpu import DEADLINE_S, GpuLook
from watchdog_train.report.words import size_text

MOST_NAMED = 8


def gpus() -> Iterator[Check]:
    """One line for each device; nothing is written of one that is not there."""
    found = GpuLook().answer(time.monotonic() + DEADLINE_S)
    if found is None:
        yield Check(name="GPU", status="ok", says="no NVIDIA GPU is seen; nothing is asked of any")
        return
    yield from described(found)


def described(found: Mapping[str, Any]) -> Iterator[Check]:
    """An answer of NVML in words."""
    if found.get("problem"):
        mend = "nvidia-smi tells more; without NVML a hang beside a busy GPU is called later"
        yield Check(name="GPU", status="warning", says=str(found["problem"]), mend=mend)
        return
    foreign = bool(found.get("foreign_pids"))
    for device in found.get("devices", ()):
        held = [_holder(process) for process in device.get("processes") or ()]
        words = [str(device.get("name") or "?")]
        used, total = device.get("memory_used_bytes"), device.get("memory_total_bytes")
        if used is not None and total:
            words.append(f"{size_text(used)} of {size_text(total)} in use")
        if held and foreign:
            words.append(f"{len(held)} processes, whose names a container does not tell")
        elif held:
            words += held[:MOST_NAMED]
        yield Check(
            name=f"GPU {device.get('index')}",
            status="warning" if held else "ok",
            says=", ".join(words),
            mend="a restart waits for memory that others hold: wtrain clean shows what is ours"
            if held
            else None,
        )


def _holder(process: Mapping[str, Any]) -> str:
    size = process.get("memory_bytes")
    who = process.get("who") or f"pid {process.get('pid')}"
    return f"{who}" + (f" with {size_text(size)}" if size is not None else "")
