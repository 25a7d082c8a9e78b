"""Limits of a run: every threshold of detection, how long each kind of wait may take, and timing.

A field with a description is also a setting, which a user may change. All others are constants:
only a test passes other values. The event `run_started` records all of them. Times are seconds.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from watchdog_train.core.model import Value
from watchdog_train.core.model.gpu import IDLE_POWER_SHARE


def setting(text: str, flag: str = "", **bounds: Any) -> Meta:
    """Makes a field a setting: what it is, its flag and metavar, and bounds as of msgspec.Meta."""
    return Meta(description=text, extra={"flag": flag}, **bounds)


class DeviceWaits(Value):
    """When ranks that wait for their GPUs are called a stall."""

    least_s: float = 300.0
    """From the last progress: collectives over a slow network take seconds, kernels that run long
    at low power (eigenvalues, scans) minutes."""
    steps: float = 10.0
    """Factor on the longest step of this attempt, if that gives more."""
    seldom_least_s: float = 3600.0
    """In an evaluation, a save and before the third step: generation and a search for the fastest
    kernel (88 and 100 s measured) are long, and no step has shown how long."""
    seldom_times: float = 3.0
    """Factor on the longest evaluation, save or step seen, if that gives more."""
    samples: int = 5
    """Stack samples in a row that show the same."""
    every_s: float = 60.0
    """Between two of them: each stops the process for up to 0.4 s (measured on an H100)."""
    tail_s: float = 10.0
    """After the last progress, or the longest step: queued kernels still run then, and a reading of
    a GPU is up to 7 s old."""
    idle_power: float = IDLE_POWER_SHARE
    own_power: float = 0.7
    """Of the median of the job's own steps: clearly below. 127 W in a wait against 500 to 690 W in
    training; what is nearer is noise, or the same work."""
    draws: int = 8
    """Readings in steady training before their median is known."""
    bytes_s: float = 8e6
    """Over PCIe or InfiniBand. Assumed: an idle device shows up to some MB/s of the driver's own,
    an all-reduce over 1 Gbit/s shows 100 MB/s."""
    other_cpu: float = 0.02
    """Of a core for each rank, by threads that do not wait for a GPU: NCCL's watchdog and wtrain's
    wake some times a second; hung trees used 1.3 %, work at least 26 % (measured)."""

    @property
    def first_sample_s(self) -> float:
        """After the last progress, so that the last of the samples is due at the shortest limit."""
        return 0.98 * self.least_s - (self.samples - 1) * self.every_s


class Detection(Value):
    """When silence becomes a suspicion, and a suspicion a stall."""

    poll_s: Annotated[
        float, setting("time between samples of the processes; one takes a millisecond", gt=0)
    ] = 1.0
    window_s: float = 2.0
    """Length of one idle window; processes that poll alternate within a second."""
    quiet_windows: Annotated[
        int, setting("consecutive idle windows, all after the last progress", ge=1)
    ] = 3
    quiet_cpu_fraction: float = 0.02
    """Of one core, all processes together. Hung jobs use up to 1.3 %, healthy ones 26 %."""
    quiet_cpu_per_process: float = 0.001
    """The same for each process, if that gives more: many idle processes add up."""
    quiet_cpu_wait_fraction: float = 0.3
    """Of the time, waiting for a CPU that others use. Hung jobs: 0 to 0.15, starved ones 0.6."""
    quiet_io_bytes_s: float = 64_000.0
    """Processes that poll a lock file make up to 4.5 kB/s, slow writers 220 kB/s."""
    quiet_tcp_bytes_s: float = 2048.0
    """Keep-alives send some bytes; the slowest download worth sparing has 10 kB/s."""
    silence_s: Annotated[
        float, setting("silence of an idle job after which its stacks are sampled", gt=0)
    ] = 12.0
    busy_s: float = 900.0
    """Silence after which a busy job is dumped and reported. It is longer in some phases."""
    learn_after: int = 8
    """Step intervals that are needed to learn limits from them."""
    learnt_factor: float = 2.5
    """`silence_s` is at least this times about the 98th percentile of the step intervals."""
    learnt_hard_factor: float = 30.0
    """A busy job in training may be silent for this times that percentile."""
    learnt_hard_floor_s: float = 120.0
    """No learnt limit of a busy job is below this."""
    learnt_cap_s: float = 7200.0
    """No learnt limit is above this."""
    stuck_s: float = 300.0
    """Silence in state D (a disk, a driver) after which it is reported."""
    stuck_stall_s: float | None = 900.0
    """Silence in state D, with everything else idle, that is a stall. None: never."""
    stopped_timeout_s: Annotated[
        float | None, setting("a job stopped by SIGSTOP for this long is a stall; null: never")
    ] = None
    rank_gone_s: float = 10.0
    """After a rank has failed and the others are idle: their time to react."""
    rank_gone_launcher_s: Annotated[
        float, setting("time for a launcher to kill the other ranks of a failed one", gt=0)
    ] = 45.0  # torchrun takes 30 s
    gpu: Annotated[
        Literal["auto", "on", "off"],
        setting(
            "whether a helper process watches NVIDIA GPUs: a host that sleeps while "
            "a GPU works is no hang; on: even where no device file is found"
        ),
    ] = "auto"
    late_s: float = 5.0
    """A sample later than this means that wtrain did not run: that gap is no silence."""
    late_polls: float = 5.0
    """The same in times of `poll_s`, if that is more: App Nap and swapping delay samples."""
    stall_timeout_s: Annotated[
        float | None,
        setting("longest silence after the first step; null: automatic", "--stall-timeout"),
    ] = None
    startup_timeout_s: Annotated[
        float | None,
        setting("longest silence before the first step; null: automatic", "--startup-timeout"),
    ] = None
    devices: DeviceWaits = DeviceWaits()
    """When ranks that wait for their GPUs are called a stall."""


class WaitLimits(Value):
    """How long an idle job is given, by what the one process waits for that all others wait for."""

    proven_s: float = 20.0
    """Nothing can end the wait: a deadlock, seen twice."""
    proven_saving_s: float = 45.0
    """The same in a save or an evaluation, where a false alarm costs more. Also the lock file of a
    dead process, which lock libraries break after 30 s, and a FIFO without another end."""
    proven_early_s: float = 60.0
    """The same before the third step, where little is known of the job."""
    nobody_left_s: float = 60.0
    """All processes that could end the wait are idle, or all ranks are in one collective without
    traffic. A hand-over takes milliseconds, but nothing proves that it is lost."""
    unknown_s: float = 75.0
    """An unknown wait; healthy idle moments of 60 s exist."""
    unknown_early_s: float = 150.0
    """The same before the third step: a slow first step can look idle for a minute."""
    cost_most_s: float = 900.0
    """An unknown wait that may end gets as long as a false alarm would cost, at most this."""
    network_s: Annotated[
        float,
        setting(
            "another machine is to answer, three times this in an evaluation: clients give up "
            "after 5 to 10 minutes, and a judge model may take long",
            gt=0,
        ),
    ] = 600.0
    poll_s: Annotated[
        float,
        setting(
            "it polls, sleeps again at the same line, or listens; or a living process outside "
            "of the job is to act or let go",
            gt=0,
        ),
    ] = 900.0
    longest_sleep_s: float = 1800.0
    """A sleep is waited out unless it ends later than this."""
    live_lock_s: Annotated[
        float | None,
        setting(
            "over the hard limit, busy with nothing but asking if something has "
            "happened, in 20 samples: this long from the first; null: reported, and never a stall"
        ),
    ] = None
    again_s: float = 900.0
    """A restart that falls silent at the same place gets this long: it may only pause."""
    again_later_s: float = 3600.0
    """From the third time on, if the wait can end without help."""
    again_most_s: float = 5400.0
    """At most this much longer for one place in one run."""


class Timing(Value):
    """How long other things may take or are apart."""

    look_s: float = 8.0
    """One stack sample of a suspicion, all processes together."""
    ask_most_s: float = 1800.0
    """For a training that was asked to stop and cannot have answered yet: a long step, an
    evaluation."""
    outlive_s: float = 30.0
    """Processes that outlive a successful exit are killed after being idle this long."""
    outlive_working_s: float = 900.0
    """Working processes that outlive a successful exit (an uploader) get this long."""
    backoff_first_s: float = 2.0
    """Before the same plan is tried again; doubles. A first restart has no delay."""
    progress_s: float = 30.0
    """Between progress events in the log; after hours they are up to 4 min apart."""
    metrics_s: float = 15.0
    """Between two times that numbers for Prometheus are written."""


class Limits(Value):
    """All limits of a run."""

    detection: Detection = Detection()
    patience: WaitLimits = WaitLimits()
    timing: Timing = Timing()
