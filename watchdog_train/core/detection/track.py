"""The detector's memory of one attempt: polls of the tree folded into a Track. Pure.

It is memory of the detector, not of the run: an adopting supervisor starts without it.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.detection import activity as activities
from watchdog_train.core.detection import device_wait as devices
from watchdog_train.core.detection.activity import Activity, OutputWindows
from watchdog_train.core.detection.budgets import (
    EARLY_STEPS,
    LEARN_QUICKLY,
    LEARNING_PHASES,
    RING,
    busy_s,
    robust_quantile,
)
from watchdog_train.core.detection.device_wait import DeviceHistory
from watchdog_train.core.model import MemberSample, Phase, ProcessId, Sample, SlotReading, Value
from watchdog_train.core.policy import Detection

_replace = msgspec.structs.replace

FRAMEWORK_STEP = 2
STEP_WORDS = (1, FRAMEWORK_STEP)
"""Positions of optimizer steps and framework step in SlotReading.progress."""
BACKWARDS = 3
"""Position of backward passes; more than the next number without a step are steps by hand."""
BACKWARDS_WITHOUT_STEP = 8
LOG_GAPS = 16
STOPPED_S = 10.0
"""A shorter stop gets no fresh start: stopping a job again and again to slow it down (cpulimit)
must not hide a hang."""
SAID_AFTER_S = 2.0
"""Shorter stops are not reported: a debugger stops a process for about this long."""
_LONG: tuple[Phase, ...] = ("eval", "checkpoint")
SURVIVED_COUNTS_S = 3600.0
"""A long silence that ended without help is expected again for this long, then forgotten."""
MOST_RANKS = 4096
"""A limit on memory, because slots are not trusted."""
LOOP_LEAST_S = 15.0
"""Several lines of output in the first seconds are a program that starts, not yet a loop."""
LOOP_EVEN_FACTOR = 3.0
"""The lines of a loop come at about equal intervals."""
_BEFORE_STEPS: tuple[Phase, ...] = ("unknown", "startup", "first_step")


class RankTrack(Value):
    who: ProcessId
    rank: int
    words: tuple[int, ...] = ()
    milestone: int = 0
    changed_at: float
    """Our clock, when a progress word last changed or a phase or milestone was reached."""
    seen_at: float = 0.0
    """The poll before."""
    born_at: float = 0.0
    """Its first poll; 0 if it was there at the very first poll."""
    phase: Phase = "unknown"
    phase_entries: int = 0
    fresh_phase: bool = True
    """No progress since the phase was entered."""
    stepped: bool = False
    step_at: float = 0.0
    """When a step counter last changed, the phase changed, or the rank was first seen."""
    interrupted: bool = False
    """It was stopped since its last progress: that gap is not learnt."""
    gaps: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """Per learning phase, the newest seconds between changes of the words."""
    phase_at: float = 0.0
    """When the phase was entered, or the rank was first seen."""
    longest: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds: the longest step, evaluation and save, under `train`, `eval` and `checkpoint`."""
    saves_ended: int = 0
    saved_at: float = 0.0
    """When the last save ended, or the rank was first seen."""

    @property
    def pid(self) -> int:
        return self.who.pid

    @property
    def steps(self) -> int:
        """Its own steps, independent of the checkpoint; else the framework's count."""
        own = (word for at, word in enumerate(self.words) if at != FRAMEWORK_STEP)
        return max(own, default=0) or (self.words[FRAMEWORK_STEP] if self.words else 0)


class Sleep(Value):
    """A time without polls; it does not count as silence."""

    at: float
    """Supervisor's clock, at its end."""
    seconds: float
    machine: bool
    """The complete machine slept: else only the supervisor was stopped or had no CPU."""


class World(Value):
    """How much of a training's world is in the trees that report.

    Counted generously: a helper counted as a rank makes wtrain trust its own observations too
    early, as in a run of one machine; a missed rank would keep a hang from ever being declared.
    """

    present: int = 0
    """The most ranks ever seen here: by number, by process, and by their launcher's count. A rank
    that is not yet born, or has exited, still counts."""
    numbers: frozenset[int] = frozenset()
    """Rank numbers ever seen here."""
    size: int | None = None
    """The largest world that any process has named."""


class Track(Value):
    started_at: float
    ranks: tuple[RankTrack, ...] = ()
    activity: Activity = Activity()
    output: OutputWindows = OutputWindows()
    """Kept while there is no heartbeat."""
    progress_at: float = 0.0
    """When any judged process last made progress, 0 before; an adoption starts with none."""
    log_bytes: int = 0
    log_at: float = 0.0
    log_gaps: tuple[float, ...] = ()
    """The newest seconds between polls that found more output."""
    stopped_since: float | None = None
    fresh_at: float = 0.0
    """The last fresh start for all: after a sleep, or after a process was stopped."""
    suspended_s: float | None = None
    slept: Sleep | None = None
    """A machine's sleep, or a time in which only the supervisor did not run."""
    survived: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    """Per phase, the longest recent quiet silence that ended without help, and when it ended."""
    begun: bool = False
    """One poll is recorded: processes first seen from now on are new."""
    device: DeviceHistory = DeviceHistory()
    world: World = World()
    factors: dict[str, float] = msgspec.field(default_factory=dict)
    """Per phase: factor on the limits, after stalls that recovered without help."""

    @property
    def quiet_windows(self) -> int:
        """In a row until now, all after the last progress."""
        return self.activity.quiet_windows


def new_track(now: float) -> Track:
    return Track(started_at=now, log_at=now)


def lengthen(track: Track, phase: Phase) -> Track:
    """After a stall in `phase` that recovered without help: double the limits."""
    factors = {**track.factors, phase: min(16.0, 2.0 * track.factors.get(phase, 1.0))}
    return _replace(track, factors=factors)


def advance(track: Track, sample: Sample, detection: Detection) -> Track:
    slept_s = _slept_s(track, sample, detection)
    states = {member.state for member in sample.members}
    stopped = not states.isdisjoint(("T", "t"))
    if slept_s:
        track = _forgive(track, sample, slept_s)
    elif not stopped and sample.at - (track.stopped_since or sample.at) >= STOPPED_S:
        track = _fresh(track, sample)
    ranks, progressed = _advance_ranks(track, sample, stopped=stopped, learn=not slept_s)
    activity, survived, output = track.activity, track.survived, track.output
    if activity.quiet_windows and not slept_s and any(r.changed_at == sample.at for r in ranks):
        survived = _survived(track, sample, detection)
    if progressed:
        activity = activities.restarted(activity)
    log_at, log_gaps = track.log_at, track.log_gaps
    if sample.log_bytes != track.log_bytes:
        if track.log_bytes and not (slept_s or sample.held_back or track.stopped_since):
            log_gaps = (*log_gaps, sample.at - log_at)[-LOG_GAPS:]
        log_at = sample.at
    since: float | None = None
    if stopped:
        since = track.stopped_since if track.stopped_since is not None else sample.at
    if sample.held_back:
        # The reader of its output will release it: then it gets a fresh start.
        log_at, activity = sample.at, activities.restarted(activity)
        output = output.restarted()
    elif not ranks:
        output = output.advanced(sample, detection)
    return _replace(
        track,
        ranks=ranks,
        activity=activities.advance(activity, sample, detection),
        output=output,
        progress_at=sample.at if progressed else track.progress_at,
        log_bytes=sample.log_bytes,
        log_at=log_at,
        log_gaps=log_gaps,
        stopped_since=since,
        suspended_s=sample.suspended_s,
        survived=survived,
        begun=True,
        device=devices.advance(
            track.device,
            sample,
            detection.devices,
            progressed=progressed,
            steady=any(rank.phase == "train" and rank.steps >= EARLY_STEPS for rank in ranks),
        ),
        world=_world(track.world, sample),
    )


def survived_s(track: Track, phase: Phase, now: float) -> float:
    """The longest recent quiet silence in a phase that ended without help."""
    length_s, ended_at = track.survived.get(phase, (0.0, 0.0))
    return length_s if now - ended_at <= max(SURVIVED_COUNTS_S, 50 * length_s) else 0.0


def _survived(track: Track, sample: Sample, detection: Detection) -> dict[str, tuple[float, float]]:
    """Remember the silence that ends here, if it was quiet and is the longest recent one."""
    if not track.ranks or not activities.is_quiet(track.activity, sample, detection):
        return track.survived
    newest = max(track.ranks, key=lambda rank: rank.changed_at)
    if newest.interrupted:
        return track.survived
    silence_s = sample.at - newest.changed_at
    if silence_s < survived_s(track, newest.phase, sample.at):
        return track.survived
    return {**track.survived, newest.phase: (silence_s, sample.at)}


def _slept_s(track: Track, sample: Sample, detection: Detection) -> float:
    """How long the machine or the supervisor slept before this poll, else 0.

    CLOCK_MONOTONIC stops in suspend, so a suspend shows in suspended_s and a pause of the
    supervisor in late_s.
    """
    suspended_s = _suspended_s(track, sample)
    if suspended_s > 1.0:
        return suspended_s
    least_s = max(detection.late_s, detection.late_polls * detection.poll_s)
    return sample.late_s if sample.late_s > least_s else 0.0


def _suspended_s(track: Track, sample: Sample) -> float:
    if sample.suspended_s is None or track.suspended_s is None:
        return 0.0
    return sample.suspended_s - track.suspended_s


def _fresh(track: Track, sample: Sample) -> Track:
    """Nothing could run until now: every silence begins here."""
    return _replace(
        track,
        ranks=tuple(
            _replace(rank, changed_at=sample.at, step_at=sample.at) for rank in track.ranks
        ),
        log_at=sample.at,
        activity=activities.restarted(track.activity),
        output=track.output.restarted(),
        fresh_at=sample.at,
    )


def _forgive(track: Track, sample: Sample, slept_s: float) -> Track:
    """After a sleep all ranks get a fresh start."""
    return _replace(
        _fresh(track, sample),
        started_at=min(sample.at, track.started_at + sample.late_s),
        stopped_since=None,
        slept=Sleep(at=sample.at, seconds=slept_s, machine=_suspended_s(track, sample) > 1.0),
    )


def _advance_ranks(
    track: Track, sample: Sample, *, stopped: bool, learn: bool
) -> tuple[tuple[RankTrack, ...], bool]:
    """The ranks after this poll, and whether any made progress."""
    known = {rank.who: rank for rank in track.ranks}
    ranks = []
    progressed = False
    for member, slot in sample.judged:
        before = known.get(member.member.identity)
        if before is None:
            after = _first_seen(member, slot, sample.at, born=track.begun)
            # A birth is life, which the windows see; progress begins with the first step.
            progressed = progressed or (track.begun and any(slot.progress))
        else:
            before = _replace(before, interrupted=before.interrupted or stopped)
            after = _advance_rank(before, slot, sample.at, learn=learn)
            progressed = progressed or after.words != before.words
        if sample.held_back:
            after = _replace(after, changed_at=sample.at, step_at=sample.at)
        ranks.append(after)
    return tuple(ranks), progressed


def _first_seen(member: MemberSample, slot: SlotReading, now: float, *, born: bool) -> RankTrack:
    return RankTrack(
        who=member.member.identity,
        rank=member.member.rank or 0,
        words=slot.progress,
        milestone=slot.milestone,
        changed_at=now,
        seen_at=now,
        born_at=now if born else 0.0,
        phase=slot.phase,
        phase_entries=slot.phase_entries,
        stepped=_has_stepped(slot),
        step_at=now,
        phase_at=now,
        saves_ended=slot.saves_ended,
        saved_at=now,
    )


def _has_stepped(slot: SlotReading) -> bool:
    by_hand = slot.progress[BACKWARDS] > BACKWARDS_WITHOUT_STEP
    return by_hand or any(slot.progress[word] for word in STEP_WORDS)


def _advance_rank(before: RankTrack, slot: SlotReading, now: float, *, learn: bool) -> RankTrack:
    words = slot.progress
    moved = words != before.words
    same_phase = slot.phase == before.phase
    seam = not same_phase or slot.phase_entries != before.phase_entries
    gaps = before.gaps
    stepping = seam
    if moved:
        stepping = stepping or any(words[word] != before.words[word] for word in STEP_WORDS)
        if learn and not before.interrupted and slot.phase in LEARNING_PHASES:
            # The first gap of a phase holds start-up, and the length of steps made during a sleep
            # is unknown.
            usual = same_phase and not before.fresh_phase
            first_s = now - before.changed_at if usual else None
            steps = max(new - old for new, old in zip(words, before.words, strict=True))
            ring = _learn(gaps.get(slot.phase, ()), first_s, now - before.seen_at, steps)
            gaps = {**gaps, slot.phase: ring}
    longest = before.longest
    took = {before.phase: now - before.phase_at} if seam and before.phase in _LONG else {}
    if learn and not (seam or before.interrupted) and before.stepped and stepping:
        took = {"train": now - before.step_at}
    for what, seconds in took.items():
        longest = {**longest, what: max(seconds, longest.get(what, 0.0))}
    alive = moved or seam or slot.milestone != before.milestone
    return _replace(
        before,
        words=words,
        milestone=slot.milestone,
        changed_at=now if alive else before.changed_at,
        seen_at=now,
        phase=slot.phase,
        phase_entries=slot.phase_entries,
        fresh_phase=not same_phase or (before.fresh_phase and not moved),
        stepped=before.stepped or (moved and _has_stepped(slot)),
        step_at=now if stepping else before.step_at,
        interrupted=before.interrupted and not moved,
        gaps=gaps,
        phase_at=now if seam else before.phase_at,
        longest=longest,
        saves_ended=slot.saves_ended,
        saved_at=now if slot.saves_ended != before.saves_ended else before.saved_at,
    )


def _learn(
    ring: tuple[float, ...], first_s: float | None, poll_s: float, steps: int
) -> tuple[float, ...]:
    """The gaps of one poll; the first polls count every step that they saw.

    Several steps in one poll have gaps no longer than the time since the poll before: a fast
    training is known after seconds, not after as many polls as there are gaps to learn. The gap
    before the first of these steps is `first_s`, None if it holds start-up.
    """
    wanted = max(0, LEARN_QUICKLY - len(ring))
    quick = (poll_s,) * min(steps - 1, wanted)
    return (*ring, *(() if first_s is None else (first_s,)), *quick)[-RING:]


def is_saving(
    candidates: tuple[RankTrack, ...], track: Track, sample: Sample, detection: Detection
) -> bool:
    """Whether a save makes progress: a kill during it costs more than any limit.

    The other ranks wait for it. After the phase's hard limit it no longer counts.
    """
    most_s = busy_s("checkpoint", detection)
    return track.quiet_windows == 0 and any(
        rank.phase == "checkpoint" and sample.at - rank.changed_at <= most_s for rank in candidates
    )


def by_output(rank: RankTrack, track: Track, detection: Detection) -> RankTrack:
    """Before any step that a hook counts: the rank with regular output as its steps.

    Unchanged if the rank has steps or the output is irregular.
    """
    gaps = track.log_gaps
    if rank.phase not in _BEFORE_STEPS or len(gaps) < detection.learn_after:
        return rank
    typical_s = sorted(gaps)[len(gaps) // 2]
    if sum(gaps) < LOOP_LEAST_S or robust_quantile(gaps) > LOOP_EVEN_FACTOR * typical_s:
        return rank
    return _replace(
        rank,
        words=(len(gaps),),
        changed_at=max(rank.changed_at, track.log_at),
        phase="unknown",
        fresh_phase=False,
        stepped=True,
        gaps={"unknown": gaps},
    )


def _world(world: World, sample: Sample) -> World:
    slots = [m.slot for m in sample.members if m.slot is not None]
    slots = [slot for slot in slots if slot.role in ("rank", "other")]
    seen = {slot.rank for slot in slots if slot.rank is not None}
    named = max([world.size or 0, *(slot.world_size or 0 for slot in slots)])
    local = max([0, *(slot.local_world or 0 for slot in slots)])
    numbers = world.numbers if seen <= world.numbers else world.numbers | seen
    if len(numbers) > MOST_RANKS:
        numbers = world.numbers
    present = max(world.present, len(numbers), len(slots), local)
    return World(present=present, numbers=numbers, size=named or None)
