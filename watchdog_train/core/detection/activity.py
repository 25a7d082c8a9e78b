"""Quiet windows: whether a tree does anything that could be work. Pure.

A signal that the system hides is never taken for silence; `required_windows` has the substitute.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model import MemberSample, Sample, Value
from watchdog_train.core.policy import Detection

_replace = msgspec.structs.replace

LEAVES_AT = 2.0
"""Factor of the CPU time of a quiet window at which a quiet job is no longer quiet.
A rank that polls the store of a rendezvous uses about 1.6 % of a core (measured), in some
windows above the quiet limit of 2 %; each of those would have ended the suspicion."""
ANSWER_CPU_S = 0.25
"""Seconds of CPU time that a quiet rank may use in a window in which wtrain asked it. Its torch
writes out a complete Flight Recorder, twice per sample: 70 to 100 ms each for 2,000
collectives (measured, torch 2.13), above the limit of a quiet window. Each sample ended its
own suspicion."""
STATES_FOR_CPU = 5
"""Windows without a running process that equal one without CPU time: a process that uses
a quarter of a core is seen running in every fourth sample."""


class Window(Value):
    """The running window: totals at its start, and what its samples have shown."""

    at: float
    cpu_s: float | None
    io_bytes: int | None
    tcp_bytes: int | None
    births: int
    deaths: int
    uninterruptible: bool
    """Some member was in D state during the window."""
    running: bool
    """At some sample a member was in R state, or no state was known."""
    cpu_wait_s: float | None = None
    """The first value known in the window."""
    asked: bool = False
    """wtrain asked the processes for something during the window."""
    gpu_works: bool = False
    """A GPU of the job was seen to compute during the window."""


class Activity(Value):
    """How long the tree has been quiet, in complete windows."""

    window: Window | None = None
    quiet_windows: int = 0
    """In a row, without any sign of work."""
    quiet_since: float = 0.0
    stuck_windows: int = 0
    """In a row, with nothing but processes in D state."""
    stuck_since: float = 0.0
    spinning_windows: int = 0
    """In a row, with nothing but CPU time, and no GPU seen to compute."""
    spinning_since: float = 0.0
    starved_windows: int = 0
    """In a row, ready to run while others had the CPUs."""
    tcp_bytes: int | None = None
    talked_at: float | None = None
    """When a byte of a TCP connection last moved, below the threshold or above."""


def restarted(activity: Activity) -> Activity:
    """After progress or a sleep: count only what follows."""
    counted = activity.quiet_windows or activity.stuck_windows or activity.spinning_windows
    if activity.window is None and not counted:
        return activity
    return _replace(activity, window=None, quiet_windows=0, stuck_windows=0, spinning_windows=0)


def advance(activity: Activity, sample: Sample, detection: Detection) -> Activity:
    if sample.tcp_bytes is not None and sample.tcp_bytes != activity.tcp_bytes:
        talked = activity.tcp_bytes is not None and sample.tcp_bytes > activity.tcp_bytes
        activity = _replace(
            activity,
            tcp_bytes=sample.tcp_bytes,
            talked_at=sample.at if talked else activity.talked_at,
        )
    states = {member.state for member in sample.members}
    window = activity.window
    if window is None:
        return _replace(activity, window=opened(sample, states))
    seen = looked(window, sample, states)
    if sample.at - window.at < detection.window_s:
        return activity if seen is window else _replace(activity, window=seen)
    moved = _moved(seen, sample, detection)
    starved = _stands_in_line(seen, sample, detection)
    idle = _no_cpu(seen, sample, detection)
    still = idle and not (moved or starved)
    # A job that waits for a CPU and hardly gets one does not spin: it may still do work.
    spun = not (moved or seen.uninterruptible or (starved and idle))
    quiet_windows = activity.quiet_windows + 1 if still and not seen.uninterruptible else 0
    silent = not (moved or starved or seen.uninterruptible)
    if silent and not still and is_quiet(activity, sample, detection):
        hardly = _no_cpu(seen, sample, detection, factor=LEAVES_AT) or (
            seen.asked and _only_answered(seen, sample, detection)
        )
        quiet_windows = activity.quiet_windows if hardly else 0
    return _replace(
        activity,
        window=opened(sample, states),
        quiet_windows=quiet_windows,
        quiet_since=activity.quiet_since if activity.quiet_windows else window.at,
        stuck_windows=activity.stuck_windows + 1 if still else 0,
        stuck_since=activity.stuck_since if activity.stuck_windows else window.at,
        spinning_windows=activity.spinning_windows + 1 if spun else 0,
        spinning_since=activity.spinning_since if activity.spinning_windows else window.at,
        starved_windows=activity.starved_windows + 1 if starved else 0,
    )


def required_windows(sample: Sample, detection: Detection) -> int:
    """More windows if the system hides a signal of life."""
    unknown = (sample.io_bytes is None) + (sample.tcp_bytes is None)
    cpu = 1 if sample.cpu_s is not None else STATES_FOR_CPU
    return detection.quiet_windows * (cpu + unknown)


def is_quiet(activity: Activity, sample: Sample, detection: Detection) -> bool:
    return activity.quiet_windows >= required_windows(sample, detection)


def is_stuck(activity: Activity, sample: Sample, detection: Detection) -> bool:
    """Quiet except for processes in D state: for a disk, NFS or a driver."""
    return activity.stuck_windows >= required_windows(sample, detection)


def is_starved(activity: Activity) -> bool:
    """Ready to run without a CPU, by the newest window."""
    return activity.starved_windows > 0


def is_spinning(activity: Activity, sample: Sample, detection: Detection) -> bool:
    """Only CPU time is used, and no GPU works: a CUDA wait keeps a core busy, too."""
    return activity.spinning_windows >= required_windows(sample, detection)


def quiet_cpu_share(sample: Sample, detection: Detection) -> float:
    """Share of one core that a quiet tree of this size may use."""
    return max(detection.quiet_cpu_fraction, detection.quiet_cpu_per_process * len(sample.members))


def opened(sample: Sample, states: set[str | None]) -> Window:
    return Window(
        at=sample.at,
        cpu_s=sample.cpu_s,
        io_bytes=sample.io_bytes,
        tcp_bytes=sample.tcp_bytes,
        births=sample.births,
        deaths=sample.deaths,
        uninterruptible="D" in states,
        running=_may_run(sample.members, states),
        cpu_wait_s=sample.cpu_wait_s,
        asked=sample.asked,
        gpu_works=sample.gpu is not None and sample.gpu.works,
    )


def looked(window: Window, sample: Sample, states: set[str | None]) -> Window:
    """The window with what this sample adds; the same object if that is nothing."""
    seen = _replace(
        window,
        uninterruptible=window.uninterruptible or "D" in states,
        running=window.running or _may_run(sample.members, states),
        cpu_wait_s=sample.cpu_wait_s if window.cpu_wait_s is None else window.cpu_wait_s,
        asked=window.asked or sample.asked,
        gpu_works=window.gpu_works or (sample.gpu is not None and sample.gpu.works),
    )
    return window if seen == window else seen


def _may_run(members: tuple[MemberSample, ...], states: set[str | None]) -> bool:
    """A process was seen running, or no state is known."""
    return "R" in states or not members or states == {None}


def _no_cpu(window: Window, sample: Sample, detection: Detection, *, factor: float = 1.0) -> bool:
    """Whether hardly any CPU time was used; if that is unknown, states decide.

    A total that shrinks was not counted correctly and proves no silence.
    """
    if window.cpu_s is None or sample.cpu_s is None:
        # A total that was missing for one sample could have shown work in it.
        return not window.running and window.cpu_s is sample.cpu_s
    used_s = sample.cpu_s - window.cpu_s
    allowed_s = factor * quiet_cpu_share(sample, detection) * (sample.at - window.at)
    return 0 <= used_s <= allowed_s


def _stands_in_line(window: Window, sample: Sample, detection: Detection) -> bool:
    """Whether it was ready to run for much of the window while others had the CPUs."""
    if window.cpu_wait_s is None or sample.cpu_wait_s is None:
        return False
    waited_s = sample.cpu_wait_s - window.cpu_wait_s
    return waited_s > detection.quiet_cpu_wait_fraction * (sample.at - window.at)


def _only_answered(window: Window, sample: Sample, detection: Detection) -> bool:
    """No more CPU time than the ranks need to answer wtrain."""
    if window.cpu_s is None or sample.cpu_s is None:
        return False
    ranks = sum(member.member.role == "rank" for member in sample.members)
    usual_s = LEAVES_AT * quiet_cpu_share(sample, detection) * (sample.at - window.at)
    return 0 <= sample.cpu_s - window.cpu_s <= usual_s + ANSWER_CPU_S * ranks


def _moved(window: Window, sample: Sample, detection: Detection) -> bool:
    """Whether a GPU computed, or there were births, exits, I/O or traffic; unknown counts as no."""
    seconds = sample.at - window.at
    if window.gpu_works or window.births != sample.births or window.deaths != sample.deaths:
        return True
    return any(
        before is not None and after is not None and after - before > limit * seconds
        for before, after, limit in (
            (window.io_bytes, sample.io_bytes, detection.quiet_io_bytes_s),
            (window.tcp_bytes, sample.tcp_bytes, detection.quiet_tcp_bytes_s),
        )
    )


# -- trees without heartbeats ---------------------------------------------------------------------

OUTPUT_WINDOW_S = 20.0
OUTPUT_WINDOWS_KEPT = 16
"""Only recent behaviour counts, not the start."""
LEAST_STILL_WINDOWS = 4


class OutputWindows(Value):
    """Windows in which a tree without heartbeats writes output.

    A process at 1 % of a core whose GPU cannot be seen is as quiet at work as in a hang, so quiet
    is no evidence: an evaluation of 15 minutes without output was called a stall (twice in
    2,249 simulated hours).
    """

    window: Window | None = None
    log_bytes: int = 0
    still: tuple[bool, ...] = ()
    """Of each of the newest windows with output: nothing else in it could have been work."""

    @property
    def is_quiet_at_work(self) -> bool:
        """At least half of the time it wrote without any other sign of work."""
        return sum(self.still) >= max(LEAST_STILL_WINDOWS, (len(self.still) + 1) // 2)

    def restarted(self) -> OutputWindows:
        """After a sleep or a stop, which are neither work nor silence."""
        return self if self.window is None else _replace(self, window=None)

    def advanced(self, sample: Sample, detection: Detection) -> OutputWindows:
        states = {member.state for member in sample.members}
        if self.window is None:
            return _replace(self, window=opened(sample, states), log_bytes=sample.log_bytes)
        window = looked(self.window, sample, states)
        if sample.at - window.at < OUTPUT_WINDOW_S:
            return self if window is self.window else _replace(self, window=window)
        still = self.still
        if sample.log_bytes != self.log_bytes:
            # Nothing in a window that ends with this poll could have been work.
            busy = _moved(window, sample, detection) or _stands_in_line(window, sample, detection)
            was_still = not busy and _no_cpu(window, sample, detection)
            still = (*still, was_still)[-OUTPUT_WINDOWS_KEPT:]
        return OutputWindows(window=opened(sample, states), log_bytes=sample.log_bytes, still=still)
