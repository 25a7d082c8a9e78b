"""A trace read back: lines that anybody may have written become the samples of the detector. Pure.

Every line is untrusted. What cannot be understood is left out and named once, with its count; what
is missing is unknown. Memory does not grow with the length of the trace.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import cast

import msgspec

from watchdog_train.client.layout import PHASES
from watchdog_train.core.model import (
    Member,
    MemberSample,
    Phase,
    RankEnd,
    Sample,
    SlotReading,
    Value,
)
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.traces.trace import (
    VERSION,
    RankLine,
    TraceLine,
    WaitLine,
    count_of,
    decode_line,
)

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


MOST_RANKS = 4096
PROBLEMS = 32
FIRST_PID = 1000
BACKWARDS_IN_A_ROW = 3
"""Samples that go on from an earlier time: not stragglers any more, but a clock that was set."""
GAP_S = 5.0
"""Later than usual by this, and by three polls: nobody looked in between."""
ENOUGH_STEPS = 5
"""Intervals between samples that tell more than a header does."""
_STATES = frozenset("RSDTtZXI")


def _gpu(found: TraceLine) -> GpuUse | None:
    util = count_of(found.gpu_util)
    if util is None:
        return None
    return GpuUse(util=min(util, 100.0), power=count_of(found.gpu_power))


class TraceSample(Value):
    """One sample of a trace, ready for the detector."""

    sample: Sample
    new_attempt: bool
    """What came before belongs to another attempt: phases and totals begin anew."""
    wait: WaitLine | None = None
    """What a look had found by then."""


class TraceReader:
    """Reads lines in order; `read` gives a sample or nothing."""

    def __init__(self) -> None:
        self.samples = 0
        self.seconds = 0.0
        """Time covered, gaps left out."""
        self.has_header = False
        self.has_waits = False
        """Looks of the run are in it."""
        self._problems: dict[str, tuple[int, int]] = {}
        self._line = 0
        self._poll_s: float | None = None
        self._steps: deque[float] = deque(maxlen=15)
        self._usual_s: float | None = None
        self._at: float | None = None
        self._offset = 0.0
        self._backwards = 0
        self._last_backwards = -math.inf
        self._attempt = 1
        self._processes: int | None = None
        self._births = 0
        self._deaths = 0
        self._log_bytes = 0
        self._ranks: dict[str, TraceRank] = {}
        self._ended: dict[str, RankEnd] = {}
        self._states: dict[str, int] | None = None
        self._others: tuple[MemberSample, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong, each kind once: where it was first, and how often in all."""
        return tuple(
            f"line {first}: {what}" + (f" (and {count - 1} more)" if count > 1 else "")
            for what, (first, count) in self._problems.items()
        )

    def read(self, line: bytes, *, torn: bool = False) -> TraceSample | None:
        """The sample of a line; None for a header and for what cannot be used.

        A torn line is the last one, without newline; an empty one was too long to be read.
        """
        self._line += 1
        if not line.strip():
            if torn:
                self.report("longer than any sample; left out")
            return None
        found = decode_line(line)
        if found is None:
            what = "the last line is cut off; it is left out" if torn else "not a sample; left out"
            self.report(what)
            return None
        if found.kind is not None or (found.t is None and found.v is not None):
            self._header(found)
            return None
        if found.t is None or not math.isfinite(found.t):
            self.report("a sample without a time; left out")
            return None
        return self._sample(found, found.t)

    def report(self, what: str) -> None:
        """Note a problem at the present line."""
        first, count = self._problems.get(what, (self._line, 0))
        if count or len(self._problems) < PROBLEMS:
            self._problems[what] = (first, count + 1)

    def _header(self, found: TraceLine) -> None:
        if found.kind != "trace":
            self.report(f"a header of kind {str(found.kind)[:20]!r}, not 'trace'; left out")
            return
        if found.v != VERSION:
            self.report(f"a header of version {found.v}, read as version {VERSION}")
        poll_s = found.poll_s
        if poll_s is not None and math.isfinite(poll_s) and poll_s > 0:
            self._poll_s = self._usual_s = poll_s
            self._steps.clear()
        else:
            self.report("the header does not tell poll_s; it is taken from the samples")
        self.has_header = True
        self.has_waits = found.waits is True

    def _sample(self, found: TraceLine, time: float) -> TraceSample | None:
        new_attempt = found.attempt is not None and found.attempt != self._attempt
        late_s = self._pass_time(time)
        if late_s is None:
            return None
        if new_attempt:
            self._begin_attempt(found)
        at = cast("float", self._at)
        log_bytes = count_of(found.log_bytes)
        if log_bytes is not None:
            self._log_bytes = int(log_bytes)
        self._count_processes(found)
        self.samples += 1
        io_bytes, tcp_bytes = count_of(found.io_bytes), count_of(found.tcp_bytes)
        sample = Sample(
            at=at,
            members=self._members(found),
            cpu_s=count_of(found.cpu_s),
            io_bytes=None if io_bytes is None else int(io_bytes),
            tcp_bytes=None if tcp_bytes is None else int(tcp_bytes),
            log_bytes=self._log_bytes,
            births=self._births,
            deaths=self._deaths,
            late_s=late_s,
            ended=tuple(self._ended.values()),
            gpu=_gpu(found),
            cpu_wait_s=count_of(found.cpu_wait_s),
            asked=found.asked is True,
            held_back=found.held_back is True,
        )
        return TraceSample(sample=sample, new_attempt=new_attempt, wait=found.wait)

    def _pass_time(self, time: float) -> float | None:
        """Go on to a sample's time; how late it came, or None for one that is out of order."""
        at = time + self._offset
        if self._at is None:
            self._at = at
            return 0.0
        passed_s = at - self._at
        if passed_s <= 0:
            self._backwards = self._backwards + 1 if time > self._last_backwards else 1
            self._last_backwards = time
            if self._backwards < BACKWARDS_IN_A_ROW:
                self.report("time does not go on; the sample is left out")
                return None
            self.report("the clock was set back; the samples are taken to follow one another")
            passed_s = self._usual_s or 1.0
            self._offset = self._at + passed_s - time
            at = self._at + passed_s
        self._backwards, self._last_backwards = 0, -math.inf
        usual_s = self._usual_s
        gap = usual_s is not None and passed_s > max(3 * usual_s, usual_s + GAP_S)
        self._steps.append(passed_s)
        self._at = at
        if passed_s != usual_s and (self._poll_s is None or len(self._steps) >= ENOUGH_STEPS):
            # What the samples show: a thinned trace is no row of gaps.
            self._usual_s = max(median(self._steps), self._poll_s or 0.0)
        if not gap or usual_s is None:
            self.seconds += passed_s
            return 0.0
        self.report("a gap in time; what happened in it is not known and counts as nothing")
        return passed_s - usual_s

    def _begin_attempt(self, found: TraceLine) -> None:
        self._attempt = found.attempt or self._attempt
        self._log_bytes = 0
        self._processes = None
        self._ranks, self._ended = {}, {}

    def _count_processes(self, found: TraceLine) -> None:
        """Births and deaths by the count: one of each between two samples is not seen."""
        if found.processes is None:
            return
        if self._processes is not None:
            self._births += max(0, found.processes - self._processes)
            self._deaths += max(0, self._processes - found.processes)
        self._processes = found.processes

    def _members(self, found: TraceLine) -> tuple[MemberSample, ...]:
        states = found.states
        if states != self._states:
            self._states = states
            self._others = self._with_states(states or {})
        dead = bool(states) and not any(
            count > 0 and state not in ("Z", "X") for state, count in (states or {}).items()
        )
        if dead or found.processes == 0:
            return ()
        others = self._others or (nobody_known(),)
        if not found.ranks:
            return others
        # A rank whose progress is unknown is none that could be judged.
        said = {
            name: rank
            for name, rank in found.ranks.items()
            if rank is not None and (rank.step is not None or rank.beats is not None)
        }
        for name in said:
            if name not in self._ranks:
                self._add_rank(name)
        known = self._ranks
        if len(said) != len(known) - len(self._ended):
            self._note_ends(said)
        ranks = (
            known[name].at(words, len(known), self.report)
            for name, words in said.items()
            if name in known
        )
        return (*ranks, *others)

    def _note_ends(self, said: dict[str, RankLine]) -> None:
        """A rank that the others go on without has ended; how, a trace does not tell."""
        for name, rank in self._ranks.items():
            if name in said:
                self._ended.pop(name, None)
            elif name not in self._ended and said:
                self._ended[name] = rank.end(cast("float", self._at), len(self._ranks))

    def _with_states(self, states: dict[str, int]) -> tuple[MemberSample, ...]:
        """One process for each state: which process is in it a trace does not tell."""
        found = []
        for number, (state, count) in enumerate(sorted(states.items())):
            if count <= 0:
                continue
            if state not in _STATES:
                self.report("a process state that is not known; left out")
                continue
            member = Member(pid=STATE_PID + number % 64, start=1, role="other")
            found.append(member_at(member, state))
        return tuple(found[:64])

    def _add_rank(self, name: str) -> None:
        if len(self._ranks) >= MOST_RANKS:
            self.report(f"more than {MOST_RANKS} ranks; the others are left out")
            return
        known = len(self._ranks)
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 7 else known
        self._ranks[name] = TraceRank(FIRST_PID + known, number)
