"""The judgement of a moment: verdict(track, sample, detection). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from watchdog_train.core import rank_gone
from watchdog_train.core.budgets import Budget, budget_for
from watchdog_train.core.model import Basis, Phase, Sample, Value
from watchdog_train.core.policy import Detection
from watchdog_train.core.track import RankTrack, Track, judged

_replace = msgspec.structs.replace

OVER: tuple[Phase, ...] = ("finishing", "finished")
"""Phases in which the training itself is over."""


class Verdict(Value, frozen=True, kw_only=True):
    """The judgement of one moment."""

    kind: Literal["alive", "suspect", "stall", "stopped", "input"]
    basis: Basis = "quiet"
    phase: Phase = "unknown"
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    age_s: float = 0.0
    soft_s: float = 0.0
    stepped: bool = False
    unsaved_s: float = 0.0
    """Work that a false alarm would throw away: since the last finished save."""
    may_be_through: bool = False
    """A rank has ended, maybe well: the others may be saving what is complete."""
    progress_at: float = 0.0
    why: str = ""


def required_windows(sample: Sample, detection: Detection) -> int:
    """More windows where the system hides a signal that could have shown life."""
    unknown = (sample.io_bytes is None) + (sample.tcp_bytes is None)
    return detection.quiet_windows * (1 + unknown)


def verdict(track: Track, sample: Sample, detection: Detection) -> Verdict:
    """What to think of the attempt at this moment."""
    alive = Verdict(kind="alive", progress_at=track.progress_at)
    if not any(member.state not in ("Z", "X") for member in sample.members):
        return alive
    special = _stopped(track, sample, detection) or _waits_for_input(track, sample)
    if special is not None:
        return _replace(special, progress_at=track.progress_at)
    # A rank that is through waits for the others: it is judged when all are through.
    unfinished = tuple(rank for rank in track.ranks if rank.phase not in OVER)
    candidates = unfinished or track.ranks or (_whole_tree(track),)
    expected = {slot.pid: slot.expect_until_ns / 1e9 for _, slot in judged(sample)}
    budgets = {rank.pid: _budget(track, rank, detection) for rank in candidates}
    quiet = track.quiet_windows >= required_windows(sample, detection)
    failed = rank_gone.waits_in_vain(
        track,
        sample,
        detection,
        budgets=budgets,
        expecting=frozenset(pid for pid, until in expected.items() if until > sample.at),
        quiet=quiet,
    )
    if failed is not None:
        return _rank_gone(failed, candidates, track, sample)
    over = [
        (rank, budgets[rank.pid])
        for rank in candidates
        if sample.at - rank.changed_at > budgets[rank.pid].soft_s
        and expected.get(rank.pid, 0.0) <= sample.at
    ]
    limited = _user_limit(candidates, track, sample, detection, expected)
    if limited is not None:
        return limited
    if not over:
        return alive
    worst, budget = max(over, key=lambda pair: sample.at - pair[0].changed_at)
    age_s = sample.at - worst.changed_at
    found = Verdict(
        kind="suspect",
        basis=_basis("quiet", worst.phase),
        phase=worst.phase,
        ranks=tuple(sorted({rank.rank for rank, _ in over})),
        pids=tuple(rank.pid for rank, _ in over),
        age_s=age_s,
        soft_s=budget.soft_s,
        stepped=worst.stepped,
        unsaved_s=sample.at - min(rank.saved_at for rank in candidates),
        progress_at=track.progress_at,
        why=_quiet_words(worst, budget, age_s, has_slot=bool(track.ranks)),
    )
    if quiet:
        return _left_behind(found, track, sample)
    if age_s > budget.hard_s:
        why = (
            f"no progress for {age_s:.0f} s in phase {worst.phase} (limit {budget.hard_s:.0f} s), "
            "but the job is busy"
        )
        return _replace(found, basis="hard-budget", why=why)
    return alive


def _rank_gone(
    gone: rank_gone.Gone, candidates: tuple[RankTrack, ...], track: Track, sample: Sample
) -> Verdict:
    """A rank has failed and the others wait for it: nothing is gained by waiting longer."""
    longest = min(gone.others, key=lambda rank: rank.changed_at)
    verb = "has" if len(gone.others) == 1 else "have"
    return Verdict(
        kind="stall",
        basis="rank-gone",
        phase=longest.phase,
        ranks=(gone.end.rank,),
        pids=(gone.end.pid,),
        age_s=gone.idle_s,
        stepped=longest.stepped,
        unsaved_s=sample.at - min(rank.saved_at for rank in candidates),
        progress_at=track.progress_at,
        why=(
            f"{rank_gone.how_it_ended(gone.end)}; {rank_gone.names(gone.others)} {verb} stood "
            f"still for {gone.idle_s:.0f} s since, and nothing has ended or restarted the others"
        ),
    )


def _left_behind(found: Verdict, track: Track, sample: Sample) -> Verdict:
    """The same silence, with the rank that has ended before it: maybe it is waited for."""
    gone = rank_gone.left_behind(track, sample, found.pids)
    if gone is None or found.basis == "finishing":
        return found
    early = rank_gone.left_early(gone, sample)
    return _replace(
        found,
        basis="rank-gone",
        ranks=(gone.end.rank,),
        may_be_through=not early and not rank_gone.has_failed(gone.end),
        why=f"{found.why}; {rank_gone.how_it_ended(gone.end)}, {gone.idle_s:.0f} s ago",
    )


def _basis(basis: Basis, phase: Phase) -> Basis:
    """A hang after the training was finished is its own case: ended, and never restarted."""
    return "finishing" if phase in OVER else basis


def _budget(track: Track, rank: RankTrack, detection: Detection) -> Budget:
    return budget_for(
        rank.phase,
        rank.gaps.get(rank.phase, ()),
        fresh_phase=rank.fresh_phase,
        factor=track.factors.get(rank.phase, 1.0),
        detection=detection,
    )


def _whole_tree(track: Track) -> RankTrack:
    """The job as one suspect when no heartbeat reaches us: only its output shows progress."""
    return RankTrack(
        pid=0,
        rank=0,
        words=(),
        changed_at=max(track.log_at, track.started_at),
        phase="unknown",
        phase_entries=0,
        fresh_phase=True,
        stepped=False,
        gaps={},
        saves_ended=0,
        saved_at=track.started_at,
    )


def _quiet_words(rank: RankTrack, budget: Budget, age_s: float, *, has_slot: bool) -> str:
    source = "learnt from this run" if budget.learnt else "default"
    what = f"rank {rank.rank} made no progress" if has_slot else "no output and no heartbeat"
    return (
        f"{what} for {age_s:.0f} s in phase {rank.phase} (limit {budget.soft_s:.0f} s, {source}), "
        "and the whole job is quiet: no CPU, no I/O, no process born or ended"
    )


def _stopped(track: Track, sample: Sample, detection: Detection) -> Verdict | None:
    if track.stopped_since is None:
        return None
    pids = tuple(m.member.pid for m in sample.members if m.state in ("T", "t"))
    age_s = sample.at - track.stopped_since
    limit_s = detection.stopped_timeout_s
    stalled = limit_s is not None and age_s > limit_s
    over = bool(track.ranks) and all(rank.phase in OVER for rank in track.ranks)
    return Verdict(
        kind="stall" if stalled else "stopped",
        basis="finishing" if over else "stopped",
        phase=track.ranks[0].phase if track.ranks else "unknown",
        ranks=tuple(sorted({rank.rank for rank in track.ranks})),
        pids=pids,
        age_s=age_s,
        why=f"stopped by a signal or a debugger for {age_s:.0f} s: pid "
        + ", ".join(map(str, pids[:8])),
    )


def _waits_for_input(track: Track, sample: Sample) -> Verdict | None:
    waiting = [m for m in sample.members if m.waits_for_input and m.member.role != "keeper"]
    if not waiting:
        return None
    last = max([rank.changed_at for rank in track.ranks] or [track.log_at])
    if sample.at - last < 2.0:
        return None
    return Verdict(
        kind="input",
        pids=tuple(m.member.pid for m in waiting),
        age_s=sample.at - last,
        why=f"pid {waiting[0].member.pid} waits for a person to type something",
    )


def _user_limit(
    candidates: tuple[RankTrack, ...],
    track: Track,
    sample: Sample,
    detection: Detection,
    expected: Mapping[int, float],
) -> Verdict | None:
    for rank in candidates:
        limit_s = detection.stall_timeout_s if rank.stepped else detection.startup_timeout_s
        since = rank.changed_at if rank.stepped else track.started_at
        if limit_s is None or sample.at - since <= limit_s:
            continue
        if expected.get(rank.pid, 0.0) > sample.at:
            continue  # the script has announced this silence: it is nearer than the option
        option = "--stall-timeout" if rank.stepped else "--startup-timeout"
        age_s = sample.at - since
        what = "no progress" if rank.stepped else "no first step"
        return Verdict(
            kind="stall",
            basis=_basis("user-limit", rank.phase),
            phase=rank.phase,
            ranks=(rank.rank,),
            pids=(rank.pid,) if rank.pid else (),
            age_s=age_s,
            soft_s=limit_s,
            stepped=rank.stepped,
            progress_at=track.progress_at,
            why=f"rank {rank.rank}: {what} for {age_s:.0f} s, over your {option} {limit_s:.0f} s",
        )
    return None
