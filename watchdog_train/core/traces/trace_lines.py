"""One line of a trace as values: whatever anybody may have written there. Pure."""

from __future__ import annotations

import math

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


def decode(line: bytes) -> TraceLine | None:
    """The line; None for what is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def count_of(value: float | None) -> float | None:
    """A running count; what cannot be one is unknown."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None
