"""The ranks of a trace as processes with slots, as the detector knows them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from watchdog_train.client.layout import PHASES
from watchdog_train.core.model import Member, MemberSample, Phase, RankEnd, SlotReading
from watchdog_train.core.traces.trace_lines import RankLine, count_of

STATE_PID = 900
"""Of the processes that stand for states; ranks have larger ones."""
_KNOWN_PHASES = frozenset(PHASES)
_replace = msgspec.structs.replace


class TraceRank:
    """A rank of the trace: its newest words as the slot of a process."""

    def __init__(self, pid: int, number: int) -> None:
        self._said: RankLine | None = None
        self._phase: Phase = "unknown"
        self._entries = 1
        self._saves = [0, 0]
        self.step = 0
        self._beats = 0
        self._member = Member(pid=pid, start=1, role="rank", rank=number, local_rank=number)
        self._sample = member_at(self._member, None, blank_slot(pid, number))

    def at(self, said: RankLine, world_size: int, report: Callable[[str], None]) -> MemberSample:
        """The process at one sample."""
        before = self._said
        slot = cast("SlotReading", self._sample.slot)
        if before == said and slot.world_size == world_size:
            return self._sample
        self._said = said
        step, beats = count_of(said.step), count_of(said.beats)
        self.step = self.step if step is None else int(step)
        self._beats = self._beats if beats is None else int(beats)
        self._go_to(self._phase_of(said, report))
        slot = _replace(
            slot,
            progress=(self._beats, 0, self.step, 0, 0, 0, 0, 0),
            step=self.step or None,
            phase=self._phase,
            phase_entries=self._entries,
            saves_begun=self._saves[0],
            saves_ended=self._saves[1],
            world_size=world_size,
        )
        self._sample = member_at(self._member, None, slot)
        return self._sample

    def end(self, at: float, world_size: int) -> RankEnd:
        """That it is gone."""
        return RankEnd(
            pid=self._member.pid,
            start=self._member.start,
            rank=self._member.rank or 0,
            world_size=world_size,
            step=self.step or None,
            phase=self._phase,
            at=at,
        )

    def _phase_of(self, said: RankLine, report: Callable[[str], None]) -> Phase:
        if said.phase in _KNOWN_PHASES:
            return cast("Phase", said.phase)
        if said.phase is not None:
            report("a phase that is not known; the rank is judged without one")
        # A rank that takes steps trains, whatever it calls it.
        return "train" if self.step else "unknown"

    def _go_to(self, phase: Phase) -> None:
        if phase == self._phase:
            return
        self._entries += 1
        # Saves have no words of their own in a trace: the phase tells.
        self._saves[0] += phase == "checkpoint"
        self._saves[1] += self._phase == "checkpoint"
        self._phase = phase


def member_at(member: Member, state: str | None, slot: SlotReading | None = None) -> MemberSample:
    """A process at one sample."""
    return MemberSample(member=member, state=state, cpu_s=None, io_bytes=None, slot=slot)


def nobody_known() -> MemberSample:
    """The tree is there, though the trace does not say who is in it."""
    return member_at(Member(pid=STATE_PID, start=1, role="other"), None)


def blank_slot(pid: int, rank: int) -> SlotReading:
    """The slot of a rank that has said nothing yet."""
    return SlotReading(
        pid=pid,
        start=1,
        role="rank",
        rank=rank,
        local_rank=rank,
        world_size=1,
        attempt=1,
        phase_entries=1,
    )
