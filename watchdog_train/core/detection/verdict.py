"""The judgement of one moment as a value, and the reason of each kind of silence. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from watchdog_train.core.detection.budgets import Budget
from watchdog_train.core.detection.device_wait import DeviceWait
from watchdog_train.core.detection.track import RankTrack
from watchdog_train.core.model import Basis, Phase, Sample, Value, Why, WhyCode

OVER: tuple[Phase, ...] = ("finishing", "finished")
"""Phases after the training itself."""
BUSY: dict[Basis, Literal["busy", "uninterruptible"]] = {
    "hard-budget": "busy",
    "device-wait": "busy",
    "uninterruptible": "uninterruptible",
}
"""Suspicions that are never a stall without a second sign, and their word in messages."""


class Verdict(Value):
    kind: Literal["alive", "suspect", "stall"]
    basis: Basis = "quiet"
    phase: Phase = "unknown"
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    age_s: float = 0.0
    soft_s: float = 0.0
    hard_s: float = 0.0
    steady: bool = False
    """All are in training steps, whose length is known."""
    stirs: bool = False
    """There are signs of life too weak to be work."""
    prints: bool = False
    """Its output continued in the newer half of the silence: alive, without progress."""
    quiet_s: float = 0.0
    """How long the complete job has done no work; at most age_s."""
    spins_s: float = 0.0
    """How long all have been silent while nothing of the job but CPU time has moved."""
    survived_s: float = 0.0
    """The longest such recent silence that ended without help, plus a margin."""
    unsaved_s: float = 0.0
    """Work that a false alarm would lose: from the last finished save to the last progress.
    The silence itself is no work."""
    may_be_through: bool = False
    """A rank has exited, maybe well: the others may be saving what is complete."""
    progress_at: float = 0.0
    moved_at: float = 0.0
    """When a rank, or the output of a job without ranks, last moved."""
    alone: bool = False
    """Only this tree is quiet: the rest of the job works, or is unknown."""
    quiet_at_work: bool = False
    """The tree is as quiet when it works: only its stacks can prove a hang."""
    early: bool = False
    """Before the third step."""
    device: DeviceWait | None = None
    """The ranks may only wait for their GPUs: their stacks decide."""
    stopped: tuple[Why, ...] = ()
    """Processes stopped by a signal, a frozen cgroup or a debugger."""
    why: Why = Why("unknown")


def quiet_why(
    rank: RankTrack, budget: Budget, age_s: float, *, has_slot: bool, prints: bool = False
) -> Why:
    code: WhyCode = "no-progress" if has_slot else "no-output"
    if rank.phase in OVER:
        code = "not-exited"
    because = (Why("prints"),) if prints else ()
    return Why(
        code,
        rank=rank.rank,
        phase=rank.phase,
        seconds=age_s,
        because=(
            Why("learnt-limit" if budget.learnt else "default-limit", limit_s=budget.soft_s),
            Why("job-idle"),
            *because,
        ),
    )


def alone_why(found: Verdict) -> Why:
    """Silent and quiet in this tree; ranks of the same world may work elsewhere."""
    seen = (Why("tree-idle") if one.code == "job-idle" else one for one in found.why.because)
    return msgspec.structs.replace(found.why, because=tuple(seen))


def long_why(found: Verdict, more: Why) -> Why:
    return Why(
        "job-no-progress",
        phase=found.phase,
        seconds=found.age_s,
        because=(Why("limit", limit_s=found.hard_s), more),
    )


def busy_why(sample: Sample, found: Verdict, *, quiet: bool, starved: bool = False) -> Why:
    code: WhyCode = "job-busy"
    if quiet:
        code = "other-in-limit"
    elif found.prints:
        code = "only-prints"
    elif starved:
        code = "starved"
    elif sample.cpu_s is None:
        code = "cpu-unknown"
    return long_why(found, Why(code))


def device_why(sample: Sample, found: Verdict, device: DeviceWait) -> Why:
    """It seems busy, but computes nothing, or that is unknown."""
    gpu = sample.gpu
    if gpu is None or not device.runs:
        return busy_why(sample, found, quiet=False)
    spin = Why("gpus-spin", number=gpu.util or 0.0, before=100 * (gpu.power or 0.0))
    return long_why(found, spin)


def stuck_why(sample: Sample, found: Verdict) -> Why:
    pids = tuple(m.member.pid for m in sample.members if m.state == "D")
    return Why(
        "job-no-progress",
        phase=found.phase,
        seconds=found.age_s,
        because=(Why("in-kernel", pids=pids),),
    )
