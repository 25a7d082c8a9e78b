"""trace.jsonl: one line of sampled signals a poll, so that a night can be judged again. Pure.

A header, then samples; null is "unknown". A sample holds what the detector sees and nothing of
what the training says: no paths, no text.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from watchdog_train.core.events import Looked
from watchdog_train.core.model import Patience, Sample

VERSION = 1
STRIDE_BYTES = 1024
"""A sample this long is written at every second poll, and so on: many ranks stay affordable."""
LONGEST_STRIDE = 5

_encoder = msgspec.json.Encoder()


class WaitLine(msgspec.Struct, gc=False, omit_defaults=True):
    """What a sample of the waits has found; no paths, no text."""

    row: str | None = None
    """Of the table of patience."""
    on: str | None = None
    """Kind of the root's wait."""
    look_in_s: float | None = None
    """When it ends by itself."""


def wait_of(patience: Patience) -> WaitLine:
    """As it stands in a trace."""
    root = patience.root
    kind = str(root.doing.__struct_config__.tag) if root is not None else None
    return WaitLine(row=patience.row, on=kind, look_in_s=_rounded(patience.look_in_s))


def header_line(poll_s: float) -> bytes:
    """The first line of a trace, with its newline."""
    return _encoder.encode({"v": VERSION, "kind": "trace", "poll_s": poll_s, "waits": True}) + b"\n"


class TraceWriter:
    """Turns the polls of one run into lines; remembers which process is which rank."""

    def __init__(self, *, origin: float, poll_s: float) -> None:
        """`origin`: monotonic seconds at which the run's trace begins."""
        self._origin = origin
        self._poll_s = poll_s
        self._due = 0.0
        self._attempt = 0
        self._keys: dict[int, str] = {}
        self._look: Looked | None = None

    def line(self, sample: Sample, attempt: int, look: Looked | None = None) -> bytes | None:
        """The line of a poll with its newline; None for a poll that is not worth one.

        The newest sample of the waits is in the first line after it.
        """
        if attempt != self._attempt:
            self._attempt, self._keys, self._due = attempt, {}, 0.0
        if sample.at < self._due:
            return None
        found = self._sample(sample, attempt)
        if look is not None and look != self._look:
            found["wait"] = wait_of(look.patience)
        self._look = look
        line = _encoder.encode(found) + b"\n"
        stride = min(LONGEST_STRIDE, 1 + len(line) // STRIDE_BYTES)
        # A tenth early counts as due: polls jitter, and quick looks come a hundred times as often.
        self._due = sample.at + (stride - 0.1) * self._poll_s
        return line

    def _sample(self, sample: Sample, attempt: int) -> dict[str, Any]:
        ranks = {}
        for member, slot in sample.judged:
            ranks[self._key(member.member.pid, member.member.rank)] = {
                "step": slot.step,
                "phase": None if slot.phase == "unknown" else slot.phase,
                "beats": sum(slot.progress),
            }
        states: dict[str, int] = {}
        living = 0
        for member in sample.members:
            if member.member.role == "keeper":
                continue
            living += member.state not in ("Z", "X")
            if member.state is not None:
                states[member.state] = states.get(member.state, 0) + 1
        line: dict[str, Any] = {
            "t": round(sample.at - self._origin, 2),
            "ranks": ranks,
            "cpu_s": _rounded(sample.cpu_s),
            "io_bytes": sample.io_bytes,
            "tcp_bytes": sample.tcp_bytes,
            "processes": living,
            "log_bytes": sample.log_bytes,
            "gpu_util": sample.gpu.util if sample.gpu is not None else None,
            "states": states,
        }
        if sample.gpu is not None:
            line["gpu_power"] = sample.gpu.power
        if sample.cpu_wait_s is not None:
            line["cpu_wait_s"] = _rounded(sample.cpu_wait_s)
        if sample.asked:
            line["asked"] = True
        if sample.held_back:
            line["held_back"] = True
        if attempt > 1:
            # Counters and ranks begin anew with every attempt.
            line["attempt"] = attempt
        return line

    def _key(self, pid: int, rank: int | None) -> str:
        """Its rank; a number that is free where two judged processes would share one."""
        if pid not in self._keys:
            taken = set(self._keys.values())
            number = rank or 0
            while str(number) in taken:
                number += 1
            self._keys[pid] = str(number)
        return self._keys[pid]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


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


_line_decoder = msgspec.json.Decoder(TraceLine)


def decode_line(line: bytes) -> TraceLine | None:
    """The line; None for what is none."""
    try:
        return _line_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def count_of(value: float | None) -> float | None:
    """A running count; what cannot be one is unknown."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None
