"""Quiet windows: whether a whole tree does anything that could be work. Pure.

A signal that the system hides is never taken for silence; what is then needed instead is said in
`required_windows`.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model import MemberSample, Sample, Value
from watchdog_train.core.policy import Detection

_replace = msgspec.structs.replace

LEAVES_AT = 2.0
"""Times the CPU time that a quiet window may hold: with so much a quiet job is not quiet any more.
A rank that polls the store of a rendezvous uses about 1.6 % of a core (measured), in some windows
more than the 2 % that are called quiet; each of them ended the suspicion."""
ANSWER_CPU_S = 0.25
"""What a rank may use in a window in which we asked it ourselves, and still be quiet. Its torch
puts a whole Flight Recorder into words for it, twice a look: 70 to 100 ms each with 2,000
collectives in it (measured, torch 2.13), more than a quiet window may hold. Every look ended its
own suspicion."""
STATES_FOR_CPU = 5
"""Windows without a running process that weigh as much as one in which CPU time stood still: a
process that uses a quarter of a core is seen running in every fourth look."""


class Window(Value):
    """Totals at the start of the running window."""

    at: float
    cpu_s: float | None
    io_bytes: int | None
    tcp_bytes: int | None
    births: int
    deaths: int
    uninterruptible: bool
    """Some member was in D state during the window."""
    running: bool
    """Some member was in R state at a look, or in one that is not known."""
    cpu_wait_s: float | None = None
    """As first told in the window."""
    asked: bool = False
    """We asked the processes for something during the window."""
    gpu_works: bool = False
    """A GPU of the job was seen to compute during the window."""


class Activity(Value):
    """How long the tree has been quiet, in whole windows up to now."""

    window: Window | None = None
    quiet_windows: int = 0
    """In a row, nothing in them that could be work."""
    quiet_since: float = 0.0
    """When the first of them began."""
    stuck_windows: int = 0
    """In a row, nothing in them but processes in D state."""
    stuck_since: float = 0.0
    """When the first of them began."""
    spinning_windows: int = 0
    """In a row, nothing in them but CPU time, and no GPU that is seen to compute."""
    spinning_since: float = 0.0
    """When the first of them began."""
    starved_windows: int = 0
    """In a row, it wanted to run and others had the CPUs."""
    tcp_bytes: int | None = None
    talked_at: float | None = None
    """When a byte of a TCP connection was last seen to move, below the threshold or above."""


def restarted(activity: Activity) -> Activity:
    """After progress, or a sleep: only what follows is counted."""
    counted = activity.quiet_windows or activity.stuck_windows or activity.spinning_windows
    if activity.window is None and not counted:
        return activity
    return _replace(activity, window=None, quiet_windows=0, stuck_windows=0, spinning_windows=0)


def advance(activity: Activity, sample: Sample, detection: Detection) -> Activity:
    """The memory after one more poll."""
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
    # A job that waits for a CPU and gets hardly any of it does not spin: it may yet work.
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
    """More windows where the system hides a signal that could have shown life."""
    unknown = (sample.io_bytes is None) + (sample.tcp_bytes is None)
    cpu = 1 if sample.cpu_s is not None else STATES_FOR_CPU
    return detection.quiet_windows * (cpu + unknown)


def is_quiet(activity: Activity, sample: Sample, detection: Detection) -> bool:
    """Enough windows in a row without anything that could be work."""
    return activity.quiet_windows >= required_windows(sample, detection)


def is_stuck(activity: Activity, sample: Sample, detection: Detection) -> bool:
    """Quiet but for processes in D state: they wait for a disk, a network file system, a driver."""
    return activity.stuck_windows >= required_windows(sample, detection)


def is_starved(activity: Activity) -> bool:
    """It wants to run and does not get a CPU: the newest window says so."""
    return activity.starved_windows > 0


def is_spinning(activity: Activity, sample: Sample, detection: Detection) -> bool:
    """Nothing moves but CPU time, and no GPU works: a CUDA wait keeps a core busy, too."""
    return activity.spinning_windows >= required_windows(sample, detection)


def quiet_cpu_share(sample: Sample, detection: Detection) -> float:
    """Of one core: what a tree of this size may use and still be called quiet."""
    return max(detection.quiet_cpu_fraction, detection.quiet_cpu_per_process * len(sample.members))


def opened(sample: Sample, states: set[str | None]) -> Window:
    """A window that begins with this poll."""
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
    """The window with what this look has shown; the same object where that is nothing new."""
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
    """Somebody was seen running, or nobody's state is known."""
    return "R" in states or not members or states == {None}


def _no_cpu(window: Window, sample: Sample, detection: Detection, *, factor: float = 1.0) -> bool:
    """Whether no CPU time worth the name was used; where it is unknown, states take its place.

    A total that shrinks was not counted right: no silence can be told from it.
    """
    if window.cpu_s is None or sample.cpu_s is None:
        # A total that was lost for one look could have shown work in it.
        return not window.running and window.cpu_s is sample.cpu_s
    used_s = sample.cpu_s - window.cpu_s
    allowed_s = factor * quiet_cpu_share(sample, detection) * (sample.at - window.at)
    return 0 <= used_s <= allowed_s


def _stands_in_line(window: Window, sample: Sample, detection: Detection) -> bool:
    """Whether it wanted to run for much of the window, and others had the CPUs."""
    if window.cpu_wait_s is None or sample.cpu_wait_s is None:
        return False
    waited_s = sample.cpu_wait_s - window.cpu_wait_s
    return waited_s > detection.quiet_cpu_wait_fraction * (sample.at - window.at)


def _only_answered(window: Window, sample: Sample, detection: Detection) -> bool:
    """No more CPU time than the ranks need to answer us."""
    if window.cpu_s is None or sample.cpu_s is None:
        return False
    ranks = sum(member.member.role == "rank" for member in sample.members)
    usual_s = LEAVES_AT * quiet_cpu_share(sample, detection) * (sample.at - window.at)
    return 0 <= sample.cpu_s - window.cpu_s <= usual_s + ANSWER_CPU_S * ranks


def _moved(window: Window, sample: Sample, detection: Detection) -> bool:
    """Whether a GPU computed, or anything was born, ended, written, read or talked.

    What is unknown adds no life.
    """
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
"""It counts what the tree does of late, not how it has started."""
LEAST_STILL_WINDOWS = 4


class OutputWindows(Value):
    """What a tree in which nobody sends a heartbeat looks like while it writes output.

    A host that sleeps at one per cent of a core while its GPU works, where nobody can see the GPU,
    is as quiet at work as it would be when it hangs. Then quiet is no evidence: an evaluation of a
    quarter of an hour without a line of output was called a stall (twice in 2,249 simulated hours).
    """

    window: Window | None = None
    log_bytes: int = 0
    still: tuple[bool, ...] = ()
    """For each of the newest windows in which it wrote: nothing else in it could have been work."""

    @property
    def is_quiet_at_work(self) -> bool:
        """It wrote while nothing else showed that it works, at least half of the time."""
        return sum(self.still) >= max(LEAST_STILL_WINDOWS, (len(self.still) + 1) // 2)

    def restarted(self) -> OutputWindows:
        """After a sleep or a stop, which are no work and no silence."""
        return self if self.window is None else _replace(self, window=None)

    def advanced(self, sample: Sample, detection: Detection) -> OutputWindows:
        """The memory after one more poll."""
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
