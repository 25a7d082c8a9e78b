"""Silences with a plain reason of their own: stopped, waiting for a person, over a user's limit."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.core.detection.track import RankTrack, Track, judged
from watchdog_train.core.detection.verdict import OVER, Verdict
from watchdog_train.core.model import ProcessId, Sample, Why
from watchdog_train.core.policy import Detection

SAID_AFTER_S = 2.0
"""Stopped, or waiting for input, for less than this is not worth a word."""


def stopped(track: Track, sample: Sample, detection: Detection) -> Verdict | None:
    """Somebody holds it: a debugger, or SIGSTOP."""
    if track.stopped_since is None or sample.at - track.stopped_since < SAID_AFTER_S:
        return None  # a debugger that has a look holds it for milliseconds
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
        why=Why("stopped", seconds=age_s, pids=pids),
    )


def waits_for_input(track: Track, sample: Sample) -> Verdict | None:
    """A process reads from a terminal, and nothing moves meanwhile."""
    waiting = [m for m in sample.members if m.waits_for_input and m.member.role != "keeper"]
    if not waiting:
        return None
    last = max([rank.changed_at for rank in track.ranks] or [track.log_at])
    if sample.at - last < SAID_AFTER_S:
        return None
    return Verdict(
        kind="input",
        pids=tuple(m.member.pid for m in waiting),
        age_s=sample.at - last,
        why=Why("input", pid=waiting[0].member.pid),
    )


def announced_until(sample: Sample) -> dict[ProcessId, float]:
    """Per process, until when the script itself has announced its silence, monotonic seconds."""
    judged_now = judged(sample)
    return {m.member.identity: slot.expect_until_ns / 1e9 for m, slot in judged_now}


def over_users_limit(
    candidates: Iterable[RankTrack], track: Track, sample: Sample, detection: Detection
) -> Verdict | None:
    """Longer than `--stall-timeout` or `--startup-timeout`, where one is set: no question is asked.

    Args:
        candidates: who is judged.
        track: the memory.
        sample: this poll.
        detection: the limits.
    """
    if detection.stall_timeout_s is None and detection.startup_timeout_s is None:
        return None
    expected = announced_until(sample)
    for rank in candidates:
        limit_s = detection.stall_timeout_s if rank.stepped else detection.startup_timeout_s
        since = rank.changed_at if rank.stepped else track.started_at
        if limit_s is None or sample.at - since <= limit_s:
            continue
        if expected.get(rank.who, 0.0) > sample.at:
            continue  # the script has announced this silence: it is nearer than the option
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
