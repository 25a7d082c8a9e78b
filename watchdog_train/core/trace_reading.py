"""A trace read back: lines that anybody may have written become the samples of the detector. Pure.

Every line is untrusted. What cannot be understood is left out and named once, with its count; what
is missing is unknown. Memory does not grow with the length of the trace.
"""

from __future__ import annotations

import json
import math
from collections import deque
from statistics import median
from typing import Any, cast

import msgspec

from watchdog_train.client.layout import PHASES
from watchdog_train.core.model import Member, MemberSample, Phase, Sample, SlotReading, Value
from watchdog_train.core.trace import VERSION

MOST_RANKS = 4096
PROBLEMS = 32
FIRST_PID = 1000
STATE_PID = 900
BACKWARDS_IN_A_ROW = 3
"""Samples that go on from an earlier time: not stragglers any more, but a clock that was set."""
GAP_S = 5.0
"""Later than usual by this, and by three polls: nobody looked in between."""
ENOUGH_STEPS = 5
"""Intervals between samples that tell more than a header does."""
_KNOWN_PHASES = frozenset(PHASES)
_STATES = frozenset("RSDTtZXI")
_replace = msgspec.structs.replace


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
    states: dict[str, int] | None = None
    attempt: int | None = None
    kind: str | None = None
    v: int | None = None
    poll_s: float | None = None


class TraceSample(Value, frozen=True, kw_only=True):
    """One sample of a trace, ready for the detector."""

    sample: Sample
    new_attempt: bool
    """What came before belongs to another attempt: phases and totals begin anew."""


_decoder = msgspec.json.Decoder(TraceLine)


class TraceReader:
    """Reads lines in order; `read` gives a sample or nothing."""

    def __init__(self) -> None:
        self.samples = 0
        self.seconds = 0.0
        """Time covered, gaps left out."""
        self.has_header = False
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
        self._highest_cpu_s = 0.0
        self._processes: int | None = None
        self._births = 0
        self._deaths = 0
        self._log_bytes = 0
        self._ranks: dict[str, _Rank] = {}
        self._states: dict[str, int] | None = None
        self._others: tuple[MemberSample, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong, each kind once: where it was first, and how often in all."""
        return tuple(
            f"line {first}: {what}" + (f" (and {count - 1} more)" if count > 1 else "")
            for what, (first, count) in self._problems.items()
        )

    @property
    def world_size(self) -> int:
        """As many ranks as the trace has shown."""
        return len(self._ranks)

    def read(self, line: bytes, *, torn: bool = False) -> TraceSample | None:
        """The sample of a line; None for a header and for what cannot be used.

        Args:
            line: without or with its newline.
            torn: it is the last one and has no newline.
        """
        self._line += 1
        if not line.strip():
            return None
        found = self._decode(line)
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

    def report(self, what: str, line: int | None = None) -> None:
        """Note a problem at a line, the present one unless told."""
        first, count = self._problems.get(what, (line or self._line, 0))
        if count or len(self._problems) < PROBLEMS:
            self._problems[what] = (first, count + 1)

    def _decode(self, line: bytes) -> TraceLine | None:
        try:
            return _decoder.decode(line)
        except (msgspec.DecodeError, RecursionError):
            pass
        # NaN and Infinity are no JSON, but Python writes them; and one odd value must not cost
        # the whole sample.
        try:
            loose = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(loose, dict):
            return None
        self.report("values that are no numbers are taken as unknown")
        return _mended(loose)

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

    def _sample(self, found: TraceLine, time: float) -> TraceSample | None:
        new_attempt = self._is_new_attempt(found)
        late_s = self._pass_time(time)
        if late_s is None:
            return None
        if new_attempt:
            self._begin_attempt(found)
        at = cast("float", self._at)
        cpu_s = _count(found.cpu_s)
        if cpu_s is not None:
            self._highest_cpu_s = max(cpu_s, self._highest_cpu_s)
        log_bytes = _count(found.log_bytes)
        if log_bytes is not None:
            self._log_bytes = int(log_bytes)
        self._count_processes(found)
        self.samples += 1
        io_bytes, tcp_bytes = _count(found.io_bytes), _count(found.tcp_bytes)
        sample = Sample(
            at=at,
            members=self._members(found),
            cpu_s=cpu_s,
            io_bytes=None if io_bytes is None else int(io_bytes),
            tcp_bytes=None if tcp_bytes is None else int(tcp_bytes),
            log_bytes=self._log_bytes,
            births=self._births,
            deaths=self._deaths,
            late_s=late_s,
        )
        return TraceSample(sample=sample, new_attempt=new_attempt)

    # -- time ---------------------------------------------------------------------------------
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

    # -- attempts -----------------------------------------------------------------------------
    def _is_new_attempt(self, found: TraceLine) -> bool:
        """By its number; in a trace without numbers, by counters that begin anew together.

        CPU time alone is not enough: a sum over the living falls whenever workers end.
        """
        if found.attempt is not None:
            return found.attempt != self._attempt
        if found.cpu_s is None or not found.cpu_s < 0.5 * self._highest_cpu_s - 1.0:
            return False
        shorter_log = found.log_bytes is not None and found.log_bytes < self._log_bytes
        return shorter_log or any(
            said is not None and said.step is not None and said.step < self._ranks[name].step
            for name, said in (found.ranks or {}).items()
            if name in self._ranks
        )

    def _begin_attempt(self, found: TraceLine) -> None:
        self._attempt = found.attempt or self._attempt
        self._highest_cpu_s = 0.0
        self._log_bytes = 0
        self._processes = None
        self._ranks = {}

    # -- processes ----------------------------------------------------------------------------
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
        others = self._others or (_nobody_known(),)
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
        ranks = (known[name].at(words, self) for name, words in said.items() if name in known)
        return (*ranks, *others)

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
            found.append(_process(member, state))
        return tuple(found[:64])

    def _add_rank(self, name: str) -> None:
        if len(self._ranks) >= MOST_RANKS:
            self.report(f"more than {MOST_RANKS} ranks; the others are left out")
            return
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 7 else None
        if number is None:
            self.report("a rank that is no number; it is judged all the same")
            number = len(self._ranks)
        self._ranks[name] = _Rank(FIRST_PID + len(self._ranks), number)


class _Rank:
    """A rank of the trace: its newest words as the slot of a process."""

    def __init__(self, pid: int, number: int) -> None:
        self._said: RankLine | None = None
        self._phase: Phase = "unknown"
        self._entries = 1
        self._saves = [0, 0]
        self.step = 0
        self._beats = 0
        self._member = Member(pid=pid, start=1, role="rank", rank=number, local_rank=number)
        self._sample = _process(self._member, None, blank_slot(pid, number))

    def at(self, said: RankLine, reader: TraceReader) -> MemberSample:
        """The process at one sample."""
        before = self._said
        slot = cast("SlotReading", self._sample.slot)
        if before == said and slot.world_size == reader.world_size:
            return self._sample
        self._said = said
        step, beats = _count(said.step), _count(said.beats)
        self.step = self.step if step is None else int(step)
        self._beats = self._beats if beats is None else int(beats)
        self._go_to(self._phase_of(said, reader))
        slot = _replace(
            slot,
            progress=(self._beats, 0, self.step, 0, 0, 0, 0, 0),
            step=self.step or None,
            phase=self._phase,
            phase_entries=self._entries,
            saves_begun=self._saves[0],
            saves_ended=self._saves[1],
            world_size=reader.world_size,
        )
        self._sample = _process(self._member, None, slot)
        return self._sample

    def _phase_of(self, said: RankLine, reader: TraceReader) -> Phase:
        if said.phase in _KNOWN_PHASES:
            return cast("Phase", said.phase)
        if said.phase is not None:
            reader.report("a phase that is not known; the rank is judged without one")
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


def _process(member: Member, state: str | None, slot: SlotReading | None = None) -> MemberSample:
    return MemberSample(member=member, state=state, cpu_s=None, io_bytes=None, slot=slot)


def _nobody_known() -> MemberSample:
    """The tree is there, though the trace does not say who is in it."""
    return _process(Member(pid=STATE_PID, start=1, role="other"), None)


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
        progress=(0,) * 8,
        step=None,
        total_steps=None,
        phase="unknown",
        phase_entries=1,
        milestone=0,
        last_beat_ns=0,
        expect_until_ns=0,
        pulse=0,
        saves_begun=0,
        saves_ended=0,
        save_answered=0,
        stop_answered=0,
        dump_answered=0,
        settings_taken=0,
        exiting=False,
        fault_handler_signal=0,
        hooks_failed=0,
        worker=None,
        can_save=False,
        can_stop=False,
        loss=None,
        samples_s=None,
        train_ordinal=0,
        resumed_step=None,
    )


def _count(value: float | None) -> float | None:
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
        states={str(state): _whole(count) or 0 for state, count in states.items()}
        if isinstance(states, dict)
        else None,
        attempt=_whole(loose.get("attempt")),
        kind=loose["kind"] if isinstance(loose.get("kind"), str) else None,
        v=_whole(loose.get("v")),
        poll_s=_number(loose.get("poll_s")),
    )
