"""A rank that ended while others live: do they wait for a rank that will not come? Pure.

A rank that failed takes the job with it: its launcher kills the others, or restarts all of them.
If neither happens, the others block as soon as they need it. A rank that exited well is no sign
alone: rank 0 may save, merge or upload for minutes after the others have finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watchdog_train.core.detection.budgets import LEARNING_PHASES, Budget, robust_quantile
from watchdog_train.core.detection.track import RankTrack, Track
from watchdog_train.core.model import Phase, ProcessId, RankEnd, Sample, Value, signal_name
from watchdog_train.core.policy import Detection

ALONE: tuple[Phase, ...] = ("download", "load", "compile", "eval", "checkpoint")
"""Phases that one rank may do for the others: it gets its usual time for them."""
NEVER: tuple[Phase, ...] = ("idle", "finishing", "finished")
ALONE_FACTOR = 2
"""Factor on `detection.silence_s`: the work of such a rank would be lost."""
NOT_CAUSED_BY_PEERS = (4, 7, 8, 9, 11)
"""SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV."""
STEPS_MISSED = 2
"""A rank that needs the failed one stops within a step; one more for jitter."""


class Gone(Value):
    """A rank that has exited, and those present at its exit that still live."""

    end: RankEnd
    others: tuple[RankTrack, ...]
    idle_s: float
    """Since any of them moved, was born or exited."""


def has_failed(end: RankEnd) -> bool | None:
    """Whether a rank failed; None if unknown.

    A crash at interpreter exit (a destructor of a driver or communicator) is no failure: its
    script was through.
    """
    if end.code is not None:
        return end.code != 0
    if end.said == "exception":
        return True
    if end.signal is not None:
        return end.said != "quiet"
    return None


def unanswered(ends: Iterable[RankEnd]) -> RankEnd | None:
    """The failure behind an exit code of 0: of a process that trained, if none succeeded after it.

    A shell behind a pipe, or a script that ignores a status, exits with 0. A process whose exit
    was not seen may have succeeded. If no process has made a step, all of them count.
    """
    known = tuple(ends)
    trained = [end for end in known if end.step is not None] or known
    good_at = max((end.at for end in trained if not has_failed(end)), default=float("-inf"))
    failed = (end for end in trained if has_failed(end) and end.at > good_at)
    return min(failed, key=lambda end: end.at, default=None)


MERGING_S = 90.0
"""Seconds of work without a step that a busy job may have after a rank has failed."""


def how_it_ended(end: RankEnd) -> str:
    """`rank 1 (pid 4243) was killed by SIGKILL at step 25`."""
    return f"rank {end.rank} (pid {end.pid}) {ending(end)}"


def ending(end: RankEnd) -> str:
    """`ended with exit code 1 at step 25`."""
    where = f"at step {end.step}" if end.step is not None else f"in phase {end.phase}"
    if end.signal is not None:
        through = ", after its script was through" if end.said == "quiet" else ""
        return f"was killed by {signal_name(end.signal)} {where}{through}"
    if end.said == "exception":
        return f"ended with an exception {where}"
    if end.code is not None:
        return f"ended with exit code {end.code} {where}"
    if end.said == "quiet":
        return f"ended by itself {where}"
    return f"is gone, last seen {where}; whether it was killed, nothing tells"


def _with_others(track: Track, sample: Sample) -> Iterator[tuple[RankEnd, tuple[RankTrack, ...]]]:
    """Each exit, with the ranks of the same job that were alive at it and still are.

    Without an exit whose place another process has taken: a launcher has restarted the ranks.
    """
    sizes = {
        member.member.identity: member.slot.world_size
        for member in sample.members
        if member.slot is not None and member.member.role == "rank"
    }
    worlds: dict[int | None, list[RankTrack]] = {}
    for rank in track.ranks:
        worlds.setdefault(sizes.get(rank.who), []).append(rank)
    there = {(size, rank.rank) for size, same in worlds.items() for rank in same}
    for end in sample.ended:
        if (end.world_size or 1) > 1 and (end.world_size, end.rank) not in there:
            same = worlds.get(end.world_size, [])
            yield end, tuple(rank for rank in same if rank.born_at < end.at)


def waits_in_vain(
    track: Track,
    sample: Sample,
    detection: Detection,
    *,
    budgets: dict[ProcessId, Budget],
    expecting: frozenset[ProcessId],
    quiet: bool,
) -> Gone | None:
    """A failed rank whose peers make no progress, after the launcher had its time to react.

    Args:
        track: what the detector remembers.
        sample: the poll of this moment.
        detection: the limits.
        budgets: of each living rank now.
        expecting: those that have announced their silence.
        quiet: whether the complete job is quiet. A busy job gets more time: NCCL waits spin,
            but the others may also be merging what is already complete.
    """
    moments = (*(end.at for end in sample.ended), *(rank.born_at for rank in track.ranks))
    newest = max(moments, default=sample.at)
    if sample.at - newest <= min(detection.rank_gone_s, detection.rank_gone_launcher_s):
        return None  # thousands of exits in a row must not cost a comparison of all pairs
    launcher = any(member.member.role == "launcher" for member in sample.members)
    for end, others in _with_others(track, sample):
        if (
            not others
            or not has_failed(end)
            or any(
                rank.phase in NEVER or rank.interrupted or rank.who in expecting for rank in others
            )
        ):
            continue
        last = max(newest, *(rank.changed_at for rank in others))
        short = end.unnoticed or not launcher
        reaction_s = detection.rank_gone_s if short else detection.rank_gone_launcher_s
        if not quiet:
            reaction_s = max(reaction_s, MERGING_S)
        idle_s = sample.at - last
        if all(idle_s > max(reaction_s, _usual_s(rank, budgets, detection)) for rank in others):
            return Gone(end=end, others=others, idle_s=idle_s)
    return None


def left_behind(track: Track, sample: Sample, pids: tuple[int, ...]) -> Gone | None:
    """The rank that exited before one of these: a failed one, else the first."""
    found = [
        Gone(end=end, others=others, idle_s=sample.at - end.at)
        for end, others in _with_others(track, sample)
        if any(rank.pid in pids for rank in others)
    ]
    return min(found, key=lambda gone: (not has_failed(gone.end), gone.end.at), default=None)


def left_early(gone: Gone, sample: Sample) -> bool:
    """Whether the training is known to have had steps left when the rank exited."""
    totals = [
        member.slot.total_steps
        for member in sample.members
        if member.slot is not None and member.slot.total_steps is not None
    ]
    return bool(totals) and gone.end.step is not None and gone.end.step < max(totals)


def _usual_s(rank: RankTrack, budgets: dict[ProcessId, Budget], detection: Detection) -> float:
    """How long this rank is usually silent."""
    if rank.phase in ALONE:
        return max(budgets[rank.who].soft_s, ALONE_FACTOR * detection.silence_s)
    gaps = rank.gaps.get(rank.phase, ()) if rank.phase in LEARNING_PHASES else ()
    return STEPS_MISSED * robust_quantile(gaps) if gaps else 0.0


def missing_ranks(sample: Sample) -> tuple[RankEnd, ...]:
    """Ranks that have exited and were not replaced."""
    dead = {end.identity for end in sample.ended}
    living = {
        member.member.rank
        for member in sample.members
        if member.member.role == "rank" and member.member.identity not in dead
    }
    return tuple(end for end in sample.ended if end.rank not in living)
