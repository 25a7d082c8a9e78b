"""The judgement of a moment: verdict(track, sample, detection). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from watchdog_train.core.detection import rank_gone
from watchdog_train.core.detection.activity import (
    is_quiet,
    is_spinning,
    is_starved,
    is_stuck,
    required_windows,
)
from watchdog_train.core.detection.budgets import EARLY_STEPS, Budget, budget_for
from watchdog_train.core.detection.device_wait import device_wait
from watchdog_train.core.detection.track import (
    SAID_AFTER_S,
    RankTrack,
    Track,
    by_output,
    is_saving,
    survived_s,
)
from watchdog_train.core.detection.verdict import (
    BUSY,
    OVER,
    Verdict,
    alone_why,
    busy_why,
    device_why,
    long_why,
    quiet_why,
    stuck_why,
)
from watchdog_train.core.model import Basis, Member, Phase, ProcessId, Sample, Value, Why
from watchdog_train.core.model.waits import Stopped
from watchdog_train.core.policy import Detection

__all__ = ["BUSY", "OVER", "Signs", "Verdict", "required_windows", "signs", "verdict"]

_replace = msgspec.structs.replace

SELDOM_STEPS: tuple[Phase, ...] = ("unknown", "eval", "checkpoint")
"""Phases in which a quiet wait is usual though no known step precedes it."""
RECENT_SHARE = 0.5
"""Of a silence: a weak sign of life older than this share no longer counts."""
TAIL_WINDOWS = 2
"""After the last progress: activity in them belongs to the end of a step, not to the silence."""
SURVIVED_FACTOR = 1.5
"""A quiet silence that ended without help may return and last somewhat longer."""


class Signs(Value):
    quiet: bool = False
    """Enough windows without work, all after the last progress."""
    age_s: float | None = None
    """Since the last progress; None: none was seen."""
    step: int | None = None
    ranks: int = 0
    """Ranks of this attempt that are or were in these trees."""
    world: int | None = None
    """The largest WORLD_SIZE seen in their processes."""

    @property
    def whole(self) -> bool | None:
        """Whether all ranks of their world are in these trees; None: unknown."""
        return None if self.world is None else self.world <= self.ranks


def signs(track: Track, sample: Sample, detection: Detection) -> Signs:
    slots = [slot for _, slot in sample.judged]
    steps = [slot.step for slot in slots if slot.step is not None]
    candidates = _candidates(track, detection)
    budgets = {rank.who: _budget(track, rank, detection) for rank in candidates}
    silent = len(_over(candidates, budgets, sample)) == len(candidates)
    return Signs(
        quiet=silent and is_quiet(track.activity, sample, detection),
        age_s=sample.at - track.progress_at if track.progress_at else None,
        step=max(steps, default=None),
        ranks=track.world.present,
        world=track.world.size,
    )


def verdict(
    track: Track, sample: Sample, detection: Detection, *, elsewhere_quiet: bool = True
) -> Verdict:
    """The verdict at this moment.

    Args:
        track: the memory, this poll included.
        sample: this poll.
        detection: the limits.
        elsewhere_quiet: no rank of the same world works outside our tree, as far as is known.
    """
    if not any(member.state not in ("Z", "X") for member in sample.members):
        return Verdict(kind="alive", progress_at=track.progress_at)
    found = _judge(track, sample, detection, elsewhere_quiet=elsewhere_quiet)
    held = _stopped(track, sample)
    return _replace(found, stopped=held) if held else found


def _judge(track: Track, sample: Sample, detection: Detection, *, elsewhere_quiet: bool) -> Verdict:
    candidates = _candidates(track, detection)
    moved = (one.changed_at for one in candidates if one.changed_at != track.fresh_at)
    alive = Verdict(
        kind="alive",
        progress_at=track.progress_at,
        moved_at=max(moved, default=0.0),
    )
    limited = _over_users_limit(candidates, track, sample, detection)
    if limited is not None and not is_saving(candidates, track, sample, detection):
        return limited
    if not _may_be_over(candidates, sample, detection):
        return alive
    quiet = is_quiet(track.activity, sample, detection)
    stuck = is_stuck(track.activity, sample, detection)
    budgets = {rank.who: _budget(track, rank, detection) for rank in candidates}
    failed = rank_gone.waits_in_vain(
        track,
        sample,
        detection,
        budgets=budgets,
        expecting=_announced(sample),
        quiet=quiet,
    )
    if failed is not None:
        return _rank_gone(failed, candidates, track)
    over = _over(candidates, budgets, sample)
    if not over:
        return alive
    silent = len(over) == len(candidates)
    worst = _worst(over, sample)
    age_s = sample.at - worst.changed_at
    too_long = age_s > budgets[worst.who].hard_s
    held = silent and stuck and not quiet
    device = None
    if silent:
        device = device_wait(
            track, sample, candidates, detection.devices, elsewhere_quiet=elsewhere_quiet
        )
    first_s = detection.devices.first_sample_s
    sampled = device is not None and not device.lacks and age_s >= first_s
    if (held and age_s <= detection.stuck_s) or not (
        held or too_long or sampled or (silent and quiet)
    ):
        return alive
    found = _suspect(track, sample, detection, candidates, budgets)
    if device is not None and not found.prints and (device.runs or not quiet):
        found = _replace(found, device=device)
    if quiet and silent:
        return _silent_and_quiet(
            found, track, sample, elsewhere_quiet=elsewhere_quiet, too_long=too_long
        )
    if held:
        return _replace(
            found,
            basis="uninterruptible",
            quiet_s=min(age_s, sample.at - track.activity.stuck_since),
            alone=not elsewhere_quiet,
            why=stuck_why(sample, found),
        )
    if found.device is not None and (found.device.runs or sampled):
        return _replace(found, basis="device-wait", why=device_why(sample, found, found.device))
    if not too_long:
        return alive
    spins = silent and is_spinning(track.activity, sample, detection) and sample.gpu is None
    if spins and elsewhere_quiet and not found.prints:
        spins_s = min(age_s, sample.at - track.activity.spinning_since)
        found = _replace(found, spins_s=spins_s)
    why = busy_why(sample, found, quiet=quiet, starved=is_starved(track.activity))
    return _replace(found, basis="hard-budget", why=why)


def _silent_and_quiet(
    found: Verdict, track: Track, sample: Sample, *, elsewhere_quiet: bool, too_long: bool
) -> Verdict:
    """All processes in our tree are silent, and the tree is quiet."""
    basis: Basis = "hard-budget" if too_long else found.basis
    if not track.ranks and track.output.is_quiet_at_work:
        return _replace(
            found, basis=basis, quiet_at_work=True, why=found.why.plus(Why("quiet-at-work"))
        )
    # A rank within its own limit may be the one that the others rightly wait for.
    if elsewhere_quiet:
        return _left_behind(found, track, sample)
    if too_long:
        return _replace(found, basis=basis, why=long_why(found, Why("elsewhere-unknown")))
    return _replace(found, alone=True, why=alone_why(found))


def _candidates(track: Track, detection: Detection) -> tuple[RankTrack, ...]:
    """Who is judged: ranks that are not finished; a finished rank waits for the others.

    Without progress counters regular output counts instead. A service between two trainings is
    not judged.
    """
    if not track.ranks:
        return (by_output(_whole_tree(track), track, detection),)
    unfinished = tuple(rank for rank in track.ranks if rank.phase not in (*OVER, "idle"))
    if not any(any(rank.words) for rank in track.ranks):
        unfinished = tuple(by_output(rank, track, detection) for rank in unfinished)
    if unfinished or any(rank.phase == "idle" for rank in track.ranks):
        return unfinished
    return track.ranks


def _may_be_over(candidates: tuple[RankTrack, ...], sample: Sample, detection: Detection) -> bool:
    """Whether any silence is long enough for a limit. Saves time: most polls end here."""
    if sample.ended:
        return bool(candidates)
    return any(sample.at - rank.changed_at > detection.silence_s for rank in candidates)


def _suspect(
    track: Track,
    sample: Sample,
    detection: Detection,
    candidates: tuple[RankTrack, ...],
    budgets: Mapping[ProcessId, Budget],
) -> Verdict:
    """The silence of a quiet job, as it is known without stacks."""
    over = _over(candidates, budgets, sample)
    worst = _worst(over, sample)
    budget = budgets[worst.who]
    age_s = sample.at - worst.changed_at
    learnt = all(
        one.phase in ("train", "unknown") and budgets[one.who].learnt for one in candidates
    )
    steps = max(rank.steps for rank in candidates)
    survived = max(survived_s(track, rank.phase, sample.at) for rank in candidates)
    newest = max(rank.changed_at for rank in candidates)
    prints = _prints(track, newest, sample.at)
    return Verdict(
        kind="suspect",
        prints=prints,
        # A hang after the training finished is its own case: killed, never restarted.
        basis="finishing" if worst.phase in OVER or _is_through(sample) else "quiet",
        phase=worst.phase,
        ranks=tuple(sorted({rank.rank for rank in over})),
        pids=tuple(rank.pid for rank in over),
        age_s=age_s,
        soft_s=budget.soft_s,
        hard_s=budget.hard_s,
        steady=learnt,
        stirs=_stirs(track, newest, sample.at, phase=worst.phase),
        quiet_s=_quiet_s(age_s, track, sample, detection),
        survived_s=SURVIVED_FACTOR * survived,
        early=steps < EARLY_STEPS and worst.phase not in OVER,
        unsaved_s=_unsaved_s(candidates),
        progress_at=track.progress_at,
        why=quiet_why(worst, budget, age_s, has_slot=bool(track.ranks), prints=prints),
    )


def _is_through(sample: Sample) -> bool:
    """Only a launcher is left; its ranks have exited after all their steps."""
    return (
        not sample.judged
        and any(member.member.role == "launcher" for member in sample.members)
        and any(end.total_steps for end in sample.ended)
        and all((end.step or 0) >= (end.total_steps or 1) for end in sample.ended)
        and not any(map(rank_gone.has_failed, sample.ended))
    )


def _quiet_s(age_s: float, track: Track, sample: Sample, detection: Detection) -> float:
    """Of the silence; movement just after the last progress belongs to that progress."""
    quiet_s = sample.at - track.activity.quiet_since
    return age_s if age_s - quiet_s <= TAIL_WINDOWS * detection.window_s else quiet_s


def _over(
    candidates: Sequence[RankTrack], budgets: Mapping[ProcessId, Budget], sample: Sample
) -> list[RankTrack]:
    """Ranks silent for longer than the soft limit without having announced it."""
    announced = _announced(sample)
    return [
        rank
        for rank in candidates
        if sample.at - rank.changed_at > budgets[rank.who].soft_s and rank.who not in announced
    ]


def _worst(over: Sequence[RankTrack], sample: Sample) -> RankTrack:
    """A rank in a place where waiting is usual holds up the others, not the reverse."""
    return max(over, key=lambda rank: (rank.phase in SELDOM_STEPS, sample.at - rank.changed_at))


def _unsaved_s(ranks: tuple[RankTrack, ...]) -> float:
    newest = max(rank.changed_at for rank in ranks)
    return max(0.0, newest - min(rank.saved_at for rank in ranks))


def _stirs(track: Track, newest: float, now: float, *, phase: Phase) -> bool:
    """Output in the newer half of the silence; outside training also network traffic.

    In training the ranks' keep-alives are such traffic. An evaluation that asks a remote judge
    has traffic when the silence begins and when it ends.
    """
    if _prints(track, newest, now):
        return True
    talked_at = track.activity.talked_at
    if phase == "train" or talked_at is None:
        return False
    since = newest if phase == "eval" else newest + RECENT_SHARE * (now - newest)
    return talked_at >= since


def _prints(track: Track, newest: float, now: float) -> bool:
    return bool(track.ranks) and track.log_at > newest + RECENT_SHARE * (now - newest)


def _rank_gone(gone: rank_gone.Gone, candidates: tuple[RankTrack, ...], track: Track) -> Verdict:
    """A rank has failed and the others wait for it: waiting longer gains nothing."""
    longest = min(gone.others, key=lambda rank: rank.changed_at)
    return Verdict(
        kind="stall",
        basis="rank-gone",
        phase=longest.phase,
        ranks=(gone.end.rank,),
        pids=(gone.end.pid,),
        age_s=gone.idle_s,
        unsaved_s=_unsaved_s(candidates),
        progress_at=track.progress_at,
        why=Why(
            "rank-ended",
            end=gone.end,
            because=(
                Why(
                    "others-wait",
                    ranks=tuple(sorted({rank.rank for rank in gone.others})),
                    seconds=gone.idle_s,
                ),
            ),
        ),
    )


def _left_behind(found: Verdict, track: Track, sample: Sample) -> Verdict:
    """The same silence, with the rank that exited before it: it may be the one waited for."""
    gone = rank_gone.left_behind(track, sample, found.pids)
    if gone is None or found.basis == "finishing":
        return found
    early = rank_gone.left_early(gone, sample)
    through = not early and not rank_gone.has_failed(gone.end)
    return _replace(
        found,
        basis="rank-gone",
        ranks=(gone.end.rank,),
        may_be_through=through,
        why=found.why.plus(
            Why("rank-ended-before", end=gone.end, seconds=gone.idle_s),
            *((Why("others-may-finish"),) if through else ()),
        ),
    )


def _budget(track: Track, rank: RankTrack, detection: Detection) -> Budget:
    return budget_for(
        rank.phase,
        rank.gaps.get(rank.phase, ()),
        fresh_phase=rank.fresh_phase,
        factor=track.factors.get(rank.phase, 1.0),
        detection=detection,
    )


def _whole_tree(track: Track) -> RankTrack:
    """The job as one suspect if no heartbeat arrives: only its output shows progress."""
    since = max(track.log_at, track.started_at)
    return RankTrack(
        who=ProcessId(0, 0), rank=0, changed_at=since, step_at=since, saved_at=track.started_at
    )


def _stopped(track: Track, sample: Sample) -> tuple[Why, ...]:
    """Why processes may not run, once per reason. Processes that wait for them are still judged."""
    if track.stopped_since is None or sample.at - track.stopped_since < SAID_AFTER_S:
        return ()
    by: dict[Stopped, list[Member]] = {}
    for one in sample.members:
        if one.state in ("T", "t"):
            by.setdefault(one.held or Stopped(traced=one.state == "t"), []).append(one.member)
    seconds = sample.at - track.stopped_since
    return tuple(
        Why(
            "stopped",
            pids=tuple(member.pid for member in members),
            rank=members[0].rank if len(members) == 1 else None,
            seconds=seconds,
            held=held,
        )
        for held, members in by.items()
    )


def _announced(sample: Sample) -> frozenset[ProcessId]:
    return frozenset(
        one.member.identity for one, slot in sample.judged if slot.expect_until_ns > 1e9 * sample.at
    )


def _over_users_limit(
    candidates: Iterable[RankTrack], track: Track, sample: Sample, detection: Detection
) -> Verdict | None:
    """Over `--stall-timeout` or `--startup-timeout`, if set: nothing else is checked."""
    if detection.stall_timeout_s is None and detection.startup_timeout_s is None:
        return None
    announced = _announced(sample)
    for rank in candidates:
        limit_s, since = detection.stall_timeout_s, rank.changed_at
        if not rank.stepped:
            limit_s, moves = detection.startup_timeout_s, len(rank.gaps.get(rank.phase, ()))
            since = track.started_at if moves < detection.learn_after else rank.changed_at
        # A silence that the script announced has priority over the option.
        if limit_s is None or sample.at - since <= limit_s or rank.who in announced:
            continue
        age_s = sample.at - since
        return Verdict(
            kind="stall",
            basis="finishing" if rank.phase in OVER else "user-limit",
            phase=rank.phase,
            ranks=(rank.rank,),
            pids=(rank.pid,) if rank.pid else (),
            age_s=age_s,
            soft_s=limit_s,
            progress_at=track.progress_at,
            why=Why(
                "over-stall-timeout" if rank.stepped else "over-startup-timeout",
                rank=rank.rank,
                seconds=age_s,
                limit_s=limit_s,
            ),
        )
    return None
