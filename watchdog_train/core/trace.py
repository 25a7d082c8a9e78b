"""trace.jsonl: one typed line per look, from which `wtrain replay` judges a run again. Pure.

A line holds what the detector reads of a sample: no path, no command and no text of the training.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec

from watchdog_train.core.events import Looked
from watchdog_train.core.model import (
    Member,
    MemberSample,
    Patience,
    PatienceRow,
    Phase,
    RankEnd,
    Role,
    Sample,
    SlotReading,
)
from watchdog_train.core.model.gpu import GpuUse

STRIDE_BYTES = 1024
"""Above this length of a line every second one is written, and so on: many ranks stay
affordable."""
LONGEST_STRIDE = 5
MOST_ALIKE = 65_536
"""Processes of one role and state in a line; a line may come from any source."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""Seconds; bounded, so that nanoseconds of it are still a finite number."""
Words = Annotated[tuple[Count, ...], msgspec.Meta(min_length=8, max_length=8)]
Group = tuple[Role, str | None, Annotated[int, msgspec.Meta(ge=0, le=MOST_ALIKE)]]

_replace = msgspec.structs.replace


class TraceRank(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A judged process: a list in this order."""

    pid: int
    rank: int | None
    world_size: int | None
    state: str | None
    phase: Phase
    phase_entries: int
    progress: Words
    step: int | None
    total_steps: int | None
    saves_ended: int
    milestone: int
    expect_until_s: Moment
    """End of a silence announced by the script, by the clock of `t`; 0: none."""


class TraceLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    t: Moment
    """Seconds since the run began."""
    begins: int = 0
    """Attempt that begins here, or is adopted by another supervisor; 0: it continues."""
    ranks: tuple[TraceRank, ...] = ()
    others: tuple[Group, ...] = ()
    """Processes that are not judged: role, state and number."""
    cpu_s: Seconds | None = None
    io_bytes: Count | None = None
    tcp_bytes: Count | None = None
    log_bytes: Count = 0
    births: Count = 0
    deaths: Count = 0
    late_s: Seconds = 0.0
    suspended_s: float | None = None
    ended: tuple[RankEnd, ...] = ()
    gpu: tuple[Seconds | None, Seconds | None] | None = None
    """Utilisation in per cent, and power as a share of its limit."""
    cpu_wait_s: Seconds | None = None
    asked: bool = False
    held_back: bool = False
    row: PatienceRow | None = None
    """The result of a stack sample; in the first line after it."""
    look_in_s: Seconds | None = None
    """When that wait ends without help."""


def _shared(line: type[msgspec.Struct], source: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in line.__struct_fields__ if name in source.__struct_fields__)


_OF_SLOT = _shared(TraceRank, SlotReading)
_OF_SAMPLE = tuple(name for name in _shared(TraceLine, Sample) if name != "gpu")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TraceLine)


class TraceWriter:
    """Turns the samples of one supervisor into lines."""

    def __init__(self, *, origin: float, poll_s: float) -> None:
        """`origin`: monotonic seconds at which the run began."""
        self._origin = origin
        self._poll_s = poll_s
        self._due = 0.0
        self._attempt = 0
        self._look: Looked | None = None
        self._late_s = 0.0
        self._asked = False

    def line(self, sample: Sample, attempt: int, look: Looked | None = None) -> bytes | None:
        """The sample as a line with its newline; None: too soon after the line before."""
        begins = attempt != self._attempt
        self._late_s = max(self._late_s, sample.late_s)
        self._asked = self._asked or sample.asked
        if sample.at < self._due and not begins:
            return None
        found = look.patience if look is not None and look != self._look else None
        line = self._line(sample, attempt if begins else 0, found)
        written = _encoder.encode(line) + b"\n"
        self._attempt, self._look, self._late_s, self._asked = attempt, look, 0.0, False
        stride = min(LONGEST_STRIDE, 1 + len(written) // STRIDE_BYTES)
        # A tenth early counts as due: polls jitter, and quick ones come a hundred times as often.
        self._due = sample.at + (stride - 0.1) * self._poll_s
        return written

    def _line(self, sample: Sample, begins: int, found: Patience | None) -> TraceLine:
        judged = {member.member.identity for member, _ in sample.judged}
        others = Counter(
            (member.member.role, member.state)
            for member in sample.members
            if member.member.identity not in judged
        )
        gpu = sample.gpu
        shared = _values(sample, _OF_SAMPLE) | {
            "late_s": self._late_s,
            "asked": self._asked,
            "ended": tuple(
                _replace(end, start=0, at=self._since_origin(end.at), helper=None, script="")
                for end in sample.ended
            ),
        }
        return TraceLine(
            t=self._since_origin(sample.at),
            begins=begins,
            ranks=tuple(self._rank(slot, member.state) for member, slot in sample.judged),
            others=tuple((*group, count) for group, count in others.items()),
            gpu=(gpu.util, gpu.power) if gpu is not None else None,
            row=found.row if found is not None else None,
            look_in_s=found.look_in_s if found is not None else None,
            **shared,
        )

    def _rank(self, slot: SlotReading, state: str | None) -> TraceRank:
        until_s = self._since_origin(slot.expect_until_ns / 1e9) if slot.expect_until_ns else 0.0
        return TraceRank(state=state, expect_until_s=until_s, **_values(slot, _OF_SLOT))

    def _since_origin(self, at: float) -> float:
        return round(at - self._origin, 3)


def _values(of: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Fields that are the same in a line, with fewer digits."""
    found = ((name, getattr(of, name)) for name in names)
    return {name: round(one, 3) if isinstance(one, float) else one for name, one in found}


def decode_line(line: bytes) -> TraceLine | None:
    """The sample; None for a line of another format."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def sample_of(line: TraceLine) -> Sample:
    """The sample as the detector sees it. Processes that are not judged have no pid."""
    others: list[MemberSample] = []
    for role, state, count in line.others:
        others += [MemberSample(member=Member(pid=0, start=0, role=role), state=state)] * count
    return Sample(
        at=line.t,
        members=(*map(_rank, line.ranks), *others),
        gpu=GpuUse(util=line.gpu[0], power=line.gpu[1]) if line.gpu is not None else None,
        **_values(line, _OF_SAMPLE),
    )


def _rank(rank: TraceRank) -> MemberSample:
    slot = SlotReading(
        start=0,
        role="rank",
        local_rank=None,
        attempt=1,
        expect_until_ns=int(rank.expect_until_s * 1e9),
        **_values(rank, _OF_SLOT),
    )
    member = Member(pid=rank.pid, start=0, role="rank", rank=rank.rank)
    return MemberSample(member=member, state=rank.state, slot=slot)
