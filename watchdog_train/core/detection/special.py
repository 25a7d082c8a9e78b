"""What is known without a look: who is stopped, what was announced, the user's own limit."""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_train.core.detection.track import SAID_AFTER_S, RankTrack, Track
from watchdog_train.core.detection.verdict import OVER, Verdict
from watchdog_train.core.model import Member, ProcessId, Sample, Why
from watchdog_train.core.model.waits import Stopped
from watchdog_train.core.policy import Detection


def stopped(track: Track, sample: Sample) -> tuple[Why, ...]:
    """Who is held, a reason for each that holds. It hides nothing: who waits for them is judged."""
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


def announced_until(sample: Sample) -> dict[ProcessId, float]:
    """Per process, until when the script itself has announced its silence, monotonic seconds."""
    said = ((member, slot.expect_until_ns) for member, slot in sample.judged)
    return {one.member.identity: until_ns / 1e9 for one, until_ns in said if until_ns}


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
        limit_s, since = detection.stall_timeout_s, rank.changed_at
        if not rank.stepped:
            limit_s, moves = detection.startup_timeout_s, len(rank.gaps.get(rank.phase, ()))
            since = track.started_at if moves < detection.learn_after else rank.changed_at
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
