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
    seen_at: float = 0.0
    """The poll before."""
    born_at: float = 0.0
    """When it was seen first; 0 when it was there at the very first poll."""
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
    """When any judged process was last seen to progress, 0 before; an adoption sees none."""
    log_bytes: int = 0
    log_at: float = 0.0
    stopped_since: float | None = None
    suspended_s: float | None = None
    begun: bool = False
    """A poll has been folded in: whoever is seen for the first time from now on is news."""
    factors: dict[str, float] = msgspec.field(default_factory=dict)
    """Per phase: budgets are this much longer, after stalls that recovered by themselves."""


def new_track(now: float) -> Track:
    """The memory at the launch or adoption of an attempt."""
    return Track(started_at=now, log_at=now)


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
    forgiven = _was_asleep(track, sample, detection)
    if forgiven:
        track = _forgive(track, sample)
    stopped = any(member.state in ("T", "t") for member in sample.members)
    track = _advance_ranks(track, sample, stopped=stopped, learn=not forgiven)
    if sample.log_bytes != track.log_bytes:
        track = _replace(track, log_bytes=sample.log_bytes, log_at=sample.at)
    since = (
        (track.stopped_since if track.stopped_since is not None else sample.at) if stopped else None
    )
    track = _replace(track, stopped_since=since, suspended_s=sample.suspended_s, begun=True)
    if stopped:
        # Whoever stopped it will let it go on: after that it gets a fresh start.
        track = _replace(track, log_at=sample.at, quiet_windows=0, window=None)
    return _advance_window(track, sample, detection)


def _was_asleep(track: Track, sample: Sample, detection: Detection) -> bool:
    """Whether the machine or this process slept since the last poll.

    CLOCK_MONOTONIC stops in suspend, so a suspend shows in suspended_s and a pause of our own
    process in late_s.
    """
    slept_s = 0.0
    if sample.suspended_s is not None and track.suspended_s is not None:
        slept_s = sample.suspended_s - track.suspended_s
    return slept_s > 1.0 or sample.late_s > detection.late_poll_s


def _forgive(track: Track, sample: Sample) -> Track:
    """After a sleep everybody gets a fresh start."""
    return _replace(
        track,
        ranks=tuple(_replace(rank, changed_at=sample.at) for rank in track.ranks),
        started_at=min(sample.at, track.started_at + sample.late_s),
        log_at=sample.at,
        stopped_since=None,
        quiet_windows=0,
        window=None,
    )


def _advance_ranks(track: Track, sample: Sample, *, stopped: bool, learn: bool) -> Track:
    known = {rank.pid: rank for rank in track.ranks}
    ranks = []
    progressed = False
    for member, slot in judged(sample):
        before = known.get(member.member.pid)
        after = _advance_rank(before, member, slot, sample.at, learn=learn)
        if before is None:
            after = _replace(after, born_at=sample.at if track.begun else 0.0)
            # A rank that is born is life, which the windows see; its first step is progress.
            progressed = progressed or (track.begun and any(slot.progress))
        elif after.words != before.words:
            progressed = True
        ranks.append(_replace(after, changed_at=sample.at) if stopped else after)
    track = _replace(track, ranks=tuple(ranks))
    if progressed:
        track = _replace(track, progress_at=sample.at, quiet_windows=0, window=None)
    return track


def _advance_rank(
    before: RankTrack | None, member: MemberSample, slot: SlotReading, now: float, *, learn: bool
) -> RankTrack:
    stepped = any(slot.progress[word] for word in STEP_WORDS)
    if before is None:
        return RankTrack(
            pid=member.member.pid,
            rank=member.member.rank or 0,
            words=slot.progress,
            changed_at=now,
            seen_at=now,
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
    # The first gap of a phase holds start-up, and nobody knows how long the steps took that were
    # made while we slept.
    usual = same_phase and not before.fresh_phase
    if learn and moved and slot.phase in LEARNING_PHASES:
        first_s = now - before.changed_at if usual else None
        ring = _learn(gaps.get(slot.phase, ()), first_s, now - before.seen_at, steps)
        gaps = {**gaps, slot.phase: ring}
    saved = slot.saves_ended != before.saves_ended
    return _replace(
        before,
        words=slot.progress,
        changed_at=now if moved or seam else before.changed_at,
        seen_at=now,
        phase=slot.phase,
        phase_entries=slot.phase_entries,
        fresh_phase=not same_phase or (before.fresh_phase and not moved),
        stepped=stepped,
        gaps=gaps,
        saves_ended=slot.saves_ended,
        saved_at=now if saved else before.saved_at,
    )


def _learn(
    ring: tuple[float, ...], first_s: float | None, poll_s: float, steps: int
) -> tuple[float, ...]:
    """The gaps of one poll; the first polls count every step that they saw.

    Between the steps that one poll saw there are gaps, none longer than the time since the poll
    before: a fast training is known after seconds, not after as many polls as there are gaps to
    learn. The gap before the first of these steps is `first_s`, None when it holds start-up.
    """
    wanted = max(0, LEARN_QUICKLY - len(ring))
    quick = (poll_s,) * min(steps - 1, wanted)
    return (*ring, *(() if first_s is None else (first_s,)), *quick)[-RING:]


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
