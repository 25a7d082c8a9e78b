"""The detector's memory of one attempt: polls of the tree folded into a Track. Pure.

It is memory of the detector, not of the run: an adopting supervisor learns it anew.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.budgets import LEARN_QUICKLY, LEARNING_PHASES, RING
from watchdog_train.core.model import MemberSample, Phase, Sample, SlotReading, Value
from watchdog_train.core.policy import Detection

_replace = msgspec.structs.replace

STEP_WORDS = (1, 2)
"""Positions of optimizer steps and framework step in SlotReading.progress."""


class RankTrack(Value, frozen=True, kw_only=True):
    """What the detector remembers of one judged process."""

    pid: int
    rank: int
    words: tuple[int, ...]
    changed_at: float
    """When a progress word last changed, by the supervisor's clock."""
    phase: Phase
    phase_entries: int
    fresh_phase: bool
    stepped: bool
    gaps: dict[str, tuple[float, ...]]
    saves_ended: int
    saved_at: float
    """When the last save ended, or the rank was first seen."""


class Window(Value, frozen=True, kw_only=True):
    """Totals at the start of the running quiet window."""

    at: float
    cpu_s: float | None
    io_bytes: int | None
    tcp_bytes: int | None
    births: int
    deaths: int
    uninterruptible: bool
    """Some member was in D state during the window."""


class Track(Value, frozen=True, kw_only=True):
    """The detector's memory of one attempt."""

    started_at: float
    ranks: tuple[RankTrack, ...] = ()
    window: Window | None = None
    quiet_windows: int = 0
    progress_at: float = 0.0
    """When any judged process last progressed."""
    log_bytes: int = 0
    log_at: float = 0.0
    stopped_since: float | None = None
    suspended_s: float | None = None
    factors: dict[str, float] = msgspec.field(default_factory=dict)
    """Per phase: budgets are this much longer, after stalls that recovered by themselves."""


def new_track(now: float) -> Track:
    """The memory at the launch or adoption of an attempt."""
    return Track(started_at=now, progress_at=now, log_at=now)


def lengthen(track: Track, phase: Phase) -> Track:
    """After a stall in `phase` that recovered by itself: twice the budget from now on."""
    factors = {**track.factors, phase: min(16.0, 2.0 * track.factors.get(phase, 1.0))}
    return _replace(track, factors=factors)


def judged(sample: Sample) -> tuple[tuple[MemberSample, SlotReading], ...]:
    """Ranks, and other processes that have themselves taken a step or a batch.

    Launchers and DataLoader workers are evidence, never suspects: an agent beats once when it
    imports torch and never again, which made every torchrun job a false alarm.
    """
    return tuple(
        (member, member.slot)
        for member in sample.members
        if member.slot is not None
        and member.state not in ("Z", "X")
        and (
            member.member.role == "rank"
            or (member.member.role == "other" and any(member.slot.progress))
        )
    )


def advance(track: Track, sample: Sample, detection: Detection) -> Track:
    """The memory after one more poll."""
    track = _forgive_sleep(track, sample, detection)
    stopped = any(member.state in ("T", "t") for member in sample.members)
    track = _advance_ranks(track, sample, stopped=stopped)
    if sample.log_bytes != track.log_bytes:
        track = _replace(track, log_bytes=sample.log_bytes, log_at=sample.at)
    since = (
        (track.stopped_since if track.stopped_since is not None else sample.at) if stopped else None
    )
    track = _replace(track, stopped_since=since)
    if stopped:
        # Whoever stopped it will let it go on: after that it gets a fresh start.
        track = _replace(track, log_at=sample.at, quiet_windows=0, window=None)
    return _advance_window(track, sample, detection)


def _forgive_sleep(track: Track, sample: Sample, detection: Detection) -> Track:
    slept_s = 0.0
    if sample.suspended_s is not None and track.suspended_s is not None:
        slept_s = max(0.0, sample.suspended_s - track.suspended_s)
    late_s = sample.late_s if sample.late_s > detection.late_poll_s else 0.0
    track = _replace(track, suspended_s=sample.suspended_s)
    # CLOCK_MONOTONIC stops in suspend, so a suspend shows in slept_s and a pause of our own
    # process in late_s; after both everybody gets a fresh start.
    if slept_s <= 1.0 and late_s == 0.0:
        return track
    ranks = tuple(_replace(rank, changed_at=sample.at) for rank in track.ranks)
    return _replace(track, ranks=ranks, log_at=sample.at, quiet_windows=0, window=None)


def _advance_ranks(track: Track, sample: Sample, *, stopped: bool) -> Track:
    known = {rank.pid: rank for rank in track.ranks}
    ranks = []
    progressed = False
    for member, slot in judged(sample):
        before = known.get(member.member.pid)
        after = _advance_rank(before, member, slot, sample.at)
        if before is None or after.words != before.words:
            progressed = True
        ranks.append(_replace(after, changed_at=sample.at) if stopped else after)
    track = _replace(track, ranks=tuple(ranks))
    if progressed:
        track = _replace(track, progress_at=sample.at, quiet_windows=0, window=None)
    return track


def _advance_rank(
    before: RankTrack | None, member: MemberSample, slot: SlotReading, now: float
) -> RankTrack:
    stepped = any(slot.progress[word] for word in STEP_WORDS)
    if before is None:
        return RankTrack(
            pid=member.member.pid,
            rank=member.member.rank or 0,
            words=slot.progress,
            changed_at=now,
            phase=slot.phase,
            phase_entries=slot.phase_entries,
            fresh_phase=True,
            stepped=stepped,
            gaps={},
            saves_ended=slot.saves_ended,
            saved_at=now,
        )
    moved = slot.progress != before.words
    seam = slot.phase != before.phase or slot.phase_entries != before.phase_entries
    gaps = before.gaps
    same_phase = slot.phase == before.phase
    steps = max(new - old for new, old in zip(slot.progress, before.words, strict=True))
    # The first gap of a phase holds start-up; several steps in one poll hold at most their share.
    usual = steps > 1 or (same_phase and not before.fresh_phase)
    if moved and usual and slot.phase in LEARNING_PHASES:
        gaps = {
            **gaps,
            slot.phase: _learn(gaps.get(slot.phase, ()), now - before.changed_at, steps),
        }
    saved = slot.saves_ended != before.saves_ended
    return _replace(
        before,
        words=slot.progress,
        changed_at=now if moved or seam else before.changed_at,
        phase=slot.phase,
        phase_entries=slot.phase_entries,
        fresh_phase=not same_phase or (before.fresh_phase and not moved),
        stepped=stepped,
        gaps=gaps,
        saves_ended=slot.saves_ended,
        saved_at=now if saved else before.saved_at,
    )


def _learn(ring: tuple[float, ...], gap_s: float, steps: int) -> tuple[float, ...]:
    """One more gap; the first polls count once for every step that they saw.

    Twenty steps between two polls are twenty gaps, none longer than the time between the polls:
    fast trainings are known after seconds, not after as many polls as there are gaps to learn.
    """
    copies = max(1, min(steps, LEARN_QUICKLY - len(ring)))
    return (*ring, *(gap_s,) * copies)[-RING:]


def _advance_window(track: Track, sample: Sample, detection: Detection) -> Track:
    uninterruptible = any(member.state == "D" for member in sample.members)
    window = track.window
    if window is None:
        return _replace(track, window=_open_window(sample, uninterruptible=uninterruptible))
    if sample.at - window.at < detection.window_s:
        if uninterruptible and not window.uninterruptible:
            return _replace(track, window=_replace(window, uninterruptible=True))
        return track
    quiet = not uninterruptible and _is_quiet(window, sample, detection)
    return _replace(
        track,
        quiet_windows=track.quiet_windows + 1 if quiet else 0,
        window=_open_window(sample, uninterruptible=uninterruptible),
    )


def _open_window(sample: Sample, *, uninterruptible: bool) -> Window:
    return Window(
        at=sample.at,
        cpu_s=sample.cpu_s,
        io_bytes=sample.io_bytes,
        tcp_bytes=sample.tcp_bytes,
        births=sample.births,
        deaths=sample.deaths,
        uninterruptible=uninterruptible,
    )


def _is_quiet(window: Window, sample: Sample, detection: Detection) -> bool:
    """Whether nothing worth calling work happened since the window opened.

    CPU time decides; where it is unknown nothing is quiet. I/O and TCP bytes can only add life:
    a platform that does not tell them needs the CPU clause alone (and more windows, see
    required_windows).
    """
    if window.uninterruptible or window.cpu_s is None or sample.cpu_s is None:
        return False
    seconds = sample.at - window.at
    if sample.cpu_s - window.cpu_s > detection.quiet_cpu_fraction * seconds:
        return False
    if window.births != sample.births or window.deaths != sample.deaths:
        return False
    for before, after, limit in (
        (window.io_bytes, sample.io_bytes, detection.quiet_io_bytes_s),
        (window.tcp_bytes, sample.tcp_bytes, detection.quiet_tcp_bytes_s),
    ):
        if before is not None and after is not None and after - before > limit * seconds:
            return False
    return True
