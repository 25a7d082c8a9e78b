"""One line of a trace as values: whatever anybody may have written there. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import msgspec

from watchdog_train.core.traces.trace import WaitLine


class RankLine(msgspec.Struct, gc=False):
    """What a sample says about one rank."""

    step: float | None = None
    phase: str | None = None
    beats: float | None = None


class TraceLine(msgspec.Struct, gc=False):
    """A header or a sample: both are decoded as this, so that each line is parsed once."""

    t: float | None = None
    ranks: dict[str, RankLine | None] | None = None
    cpu_s: float | None = None
    io_bytes: float | None = None
    tcp_bytes: float | None = None
    processes: int | None = None
    log_bytes: float | None = None
    gpu_util: float | None = None
    gpu_power: float | None = None
    states: dict[str, int] | None = None
    attempt: int | None = None
    cpu_wait_s: float | None = None
    asked: bool | None = None
    held_back: bool | None = None
    wait: WaitLine | None = None
    waits: bool | None = None
    kind: str | None = None
    v: int | None = None
    poll_s: float | None = None


_decoder = msgspec.json.Decoder(TraceLine)


def decode(line: bytes) -> tuple[TraceLine | None, bool]:
    """The line, None for what is no object, and whether all of its values had the right type."""
    try:
        return _decoder.decode(line), True
    except (msgspec.DecodeError, RecursionError):
        pass
    # NaN and Infinity are no JSON, but Python writes them; and one odd value must not cost the
    # whole sample.
    try:
        loose = json.loads(line)
    except (ValueError, RecursionError):
        return None, False
    return (_mended(loose) if isinstance(loose, dict) else None), False


def count_of(value: float | None) -> float | None:
    """A running count; what cannot be one is unknown."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _number(value: object) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(cast("float", value)) if usable and abs(cast("float", value)) < 1e300 else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None else None


def _mended(loose: dict[str, Any]) -> TraceLine:
    """A line whose values do not all have the right type; those that do not are unknown."""
    ranks = loose.get("ranks")
    states = loose.get("states")
    return TraceLine(
        t=_number(loose.get("t")),
        ranks={
            str(name): RankLine(
                step=_number(said.get("step")),
                phase=said["phase"] if isinstance(said.get("phase"), str) else None,
                beats=_number(said.get("beats")),
            )
            for name, said in ranks.items()
            if isinstance(said, dict)
        }
        if isinstance(ranks, dict)
        else None,
        cpu_s=_number(loose.get("cpu_s")),
        io_bytes=_number(loose.get("io_bytes")),
        tcp_bytes=_number(loose.get("tcp_bytes")),
        processes=_whole(loose.get("processes")),
        log_bytes=_number(loose.get("log_bytes")),
        gpu_util=_number(loose.get("gpu_util")),
        gpu_power=_number(loose.get("gpu_power")),
        states={str(state): _whole(count) or 0 for state, count in states.items()}
        if isinstance(states, dict)
        else None,
        attempt=_whole(loose.get("attempt")),
        cpu_wait_s=_number(loose.get("cpu_wait_s")),
        asked=loose.get("asked") is True,
        held_back=loose.get("held_back") is True,
        waits=loose.get("waits") is True,
        kind=loose["kind"] if isinstance(loose.get("kind"), str) else None,
        v=_whole(loose.get("v")),
        poll_s=_number(loose.get("poll_s")),
    )
