"""Slow steps and slow ranks in words, with what is different about them. Pure."""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.model import Difference, DifferenceKind, StepPlace, Straggler
from watchdog_train.core.notices.slowdown import SLOW_S, Slow
from watchdog_train.report.words import clean, listed

_PLACES: dict[StepPlace, str] = {
    "batch": "has its batch",
    "backward": "has its batch in time, and begins the backward pass",
    "backward-end": "begins the backward pass in time, and ends it",
}
_PHRASES: dict[DifferenceKind, str] = {
    "gpu-shared": "the GPU is shared with {who}",
    "gpu-clock": "the GPU's clock is at {now} instead of {usual}{by}",
    "gpu-held": "the GPU is held down by {who}",
    "gpu-util": "the GPU is used {now} of the time instead of {usual}: it waits for the host",
    "swap": "the machine swaps, {now}",
    "memory": "processes of this machine wait for memory {now} of the time instead of {usual}",
    "storage": "processes of this machine wait for storage {now} of the time instead of {usual}",
    "cpu": "processes of this machine wait for a CPU {now} of the time instead of {usual}{busy}",
    "disk": "it is held by the kernel (state D) at {now} of the looks instead of {usual}",
    "cpu-line": "it waits for a CPU {now} of the time instead of {usual}{busy}",
    "computes": "it uses {now} of a CPU instead of {usual}",
    "io": "it reads and writes {now} instead of {usual}",
}
_BYTES: tuple[DifferenceKind, ...] = ("swap", "io")


def slow_words(slow: Slow | e.Slowdown) -> str:
    """How slow the steps are, and what has changed."""
    why = _all(slow.changed) or "nothing that we can see has changed"
    return (
        f"steps take {slow.step_s:.3g} s instead of {slow.usual_s:.3g} s, {slow.factor:.1f} times "
        f"as long, for {SLOW_S / 60:.0f} minutes of training: {why}"
    )


def straggler_words(lags: Straggler | None) -> str:
    """Who is late, what that costs, and what is different about it."""
    if lags is None:
        return "no rank comes last in most steps any more"
    why = _all(lags.differs) or "CPU, I/O and GPU show no reason"
    return (
        f"rank {lags.rank} (pid {lags.pid}) {_PLACES[lags.place]} {lags.behind_s:.2g} s after the "
        f"others, {100 * lags.lost:.0f} % of each step "
        f"({100 * lags.share:.0f} % of what late ranks cost): {why}"
    )


def difference_words(difference: Difference) -> str:
    """One thing that is different."""
    now, usual = (
        "unknown" if value is None
        else f"{value / 1e6:.0f} MB/s" if difference.kind in _BYTES
        else f"{100 * value:.0f} %"
        for value in (difference.now, difference.usual)
    )  # fmt: skip
    who = listed([clean(name, 120) for name in difference.who])
    return _PHRASES[difference.kind].format(
        now=now,
        usual=usual,
        who=who,
        by=f" ({who})" if who else "",
        busy=f" (the CPUs are used by {who})" if who else "",
    )


def _all(differences: tuple[Difference, ...]) -> str:
    return "; ".join(map(difference_words, differences))
