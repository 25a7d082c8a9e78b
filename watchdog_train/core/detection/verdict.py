"""The judgement of one moment as a value, and the words for each kind of silence. Pure."""

from __future__ import annotations

from typing import Literal

from watchdog_train.core.detection.budgets import Budget
from watchdog_train.core.detection.track import RankTrack
from watchdog_train.core.model import Basis, Phase, Sample, Value

OVER: tuple[Phase, ...] = ("finishing", "finished")
"""Phases in which the training itself is over."""
BUSY: dict[Basis, Literal["busy", "uninterruptible"]] = {
    "hard-budget": "busy",
    "uninterruptible": "uninterruptible",
}
"""Suspicions that are never a stall by themselves, and the word that is said about them."""


class Verdict(Value, frozen=True, kw_only=True):
    """The judgement of one moment."""

    kind: Literal["alive", "suspect", "stall", "stopped", "input"]
    basis: Basis = "quiet"
    phase: Phase = "unknown"
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    age_s: float = 0.0
    soft_s: float = 0.0
    hard_s: float = 0.0
    steady: bool = False
    """All are in their training steps, and the length of those is known."""
    stirs: bool = False
    """There are signs of life that are too weak to be work."""
    prints: bool = False
    """Its output went on in the newer half of the silence: alive, though nothing progresses."""
    quiet_s: float = 0.0
    """How long nothing in the whole job has been work; never more than age_s."""
    least_s: float = 0.0
    """No stall before it was quiet for so long, whatever patience says, unless stacks prove it."""
    unsaved_s: float = 0.0
    """Work that a false alarm would throw away: from the last finished save to the last progress.
    The silence itself is no work."""
    may_be_through: bool = False
    """A rank has ended, maybe well: the others may be saving what is complete."""
    progress_at: float = 0.0
    alone: bool = False
    """Quiet is this tree only: elsewhere in the job somebody works, or nothing is known."""
    quiet_at_work: bool = False
    """The tree is as quiet when it works: only its stacks can prove that it hangs."""
    why: str = ""


def quiet_words(
    rank: RankTrack, budget: Budget, age_s: float, *, has_slot: bool, prints: bool = False
) -> str:
    """Silent and quiet."""
    source = "learnt from this run" if budget.learnt else "default"
    what = f"rank {rank.rank} made no progress" if has_slot else "no output and no heartbeat"
    if rank.phase in OVER:
        what = f"training is over, but rank {rank.rank} has not ended, without a sign of progress"
    return (
        f"{what} for {age_s:.0f} s in phase {rank.phase} (limit {budget.soft_s:.0f} s, {source}), "
        "and the whole job is quiet: no CPU, no I/O, no process born or ended"
        + ("; only its output goes on" if prints else "")
    )


def alone_words(found: Verdict) -> str:
    """Silent and quiet, as far as we see; ranks of the same world may work elsewhere."""
    seen = "all that we see of the job is quiet"
    return found.why.replace("the whole job is quiet", seen, 1)


def usual_words(found: Verdict) -> str:
    """Silent and quiet, by signals that were as quiet while it worked."""
    return f"{found.why}; it has been as quiet while it worked, so only its stacks can prove a hang"


def elsewhere_words(found: Verdict) -> str:
    """The same over the hard limit."""
    return (
        f"no progress for {found.age_s:.0f} s in phase {found.phase} (limit {found.hard_s:.0f} s), "
        "but the job is busy elsewhere, or its other ranks tell us nothing"
    )


def busy_words(sample: Sample, found: Verdict, *, quiet: bool, starved: bool = False) -> str:
    """Over the hard limit, but not quiet everywhere."""
    why = f"no progress for {found.age_s:.0f} s in phase {found.phase} (limit {found.hard_s:.0f} s)"
    if quiet:
        return f"{why}, but another rank is within its own limit"
    if found.prints:
        return f"{why}, but the job is alive: its output goes on while no step is counted"
    if starved:
        return f"{why}, but the job wants to run: other programs have this machine's CPUs"
    if sample.cpu_s is None:
        return f"{why}, and nothing tells whether the job works: its CPU time is not known"
    return f"{why}, but the job is busy"


def frozen_words(sample: Sample, found: Verdict) -> str:
    """Busy to look at, but nothing is computed."""
    util = sample.gpu.util if sample.gpu is not None else None
    power = sample.gpu.power if sample.gpu is not None else None
    return (
        f"no progress for {found.age_s:.0f} s in phase {found.phase} (limit {found.hard_s:.0f} s), "
        f"and the GPUs only spin: {util or 0:.0f} % utilisation at {100 * (power or 0):.0f} % of "
        "the power limit, as in a collective that never completes; no I/O, no process born or ended"
    )


def stuck_words(sample: Sample, found: Verdict) -> str:
    """Held by the kernel."""
    pids = [str(m.member.pid) for m in sample.members if m.state == "D"]
    return (
        f"no progress for {found.age_s:.0f} s in phase {found.phase}, and the job waits in the "
        "kernel (state D) for a disk, a network file system or a driver: pid "
        + (", ".join(pids[:8]) or "unknown")
        + "; no signal ends such a wait"
    )
