"""Settings of when silence is a suspicion and when a stall; a section a struct."""

from typing import Annotated, Literal

from msgspec import Meta

from watchdog_train.core.policy.base import Section, non_negative, positive


class Detection(Section):
    """When silence becomes a suspicion, and a suspicion a stall."""

    poll_s: Annotated[
        float, positive("time between looks at the tree; one look costs about a millisecond")
    ] = 1.0
    window_s: Annotated[
        float, positive("length of one quiet window; pollers alternate within a second")
    ] = 2.0
    quiet_windows: Annotated[
        int, Meta(ge=1, description="consecutive quiet windows, all after the last progress")
    ] = 3
    quiet_cpu_fraction: Annotated[
        float,
        non_negative("of one core, whole tree; hung jobs use up to 1.3 %, healthy ones 26 % up"),
    ] = 0.02
    quiet_cpu_per_process: Annotated[
        float,
        non_negative("the same for each process, where that is more: many idle ones add up"),
    ] = 0.001
    quiet_cpu_wait_fraction: Annotated[
        float,
        non_negative(
            "of the time, in line for a CPU that others have; hung jobs 0 to 0.15, starved ones 0.6"
        ),
    ] = 0.3
    quiet_io_bytes_s: Annotated[
        float, non_negative("lock pollers make up to 4.5 kB/s, slow writers 220 kB/s")
    ] = 64_000.0
    quiet_tcp_bytes_s: Annotated[
        float,
        non_negative("keep-alives make some bytes; the slowest download worth sparing 10 kB/s"),
    ] = 2048.0
    silence_s: Annotated[
        float, positive("silence in a quiet job after which we sample what it waits for")
    ] = 12.0
    busy_s: Annotated[
        float,
        positive(
            "silence after which a busy job is dumped and said; twice as long in a load, a save "
            "and the first step, 4 times in a compilation, a download and an evaluation, 8 times "
            "without heartbeats"
        ),
    ] = 900.0
    learn_after: Annotated[
        int, Meta(ge=2, description="step intervals that are needed to learn limits from them")
    ] = 8
    learnt_factor: Annotated[
        float, positive("silence_s is at least this times about the 98th percentile of intervals")
    ] = 2.5
    learnt_hard_factor: Annotated[
        float, positive("a busy job in training may be silent for this times that percentile")
    ] = 30.0
    learnt_hard_floor_s: Annotated[float, positive("no learnt limit of a busy job below this")] = (
        120.0
    )
    learnt_cap_s: Annotated[float, positive("no learnt limit above this")] = 7200.0
    stuck_s: Annotated[
        float, positive("silence in state D (a disk, a driver) after which it is said")
    ] = 300.0
    stuck_stall_s: Annotated[
        float | None,
        Meta(description="state D with everything else idle for so long is a stall; null: never"),
    ] = 900.0
    stopped_timeout_s: Annotated[
        float | None, Meta(description="a job stopped (SIGSTOP) this long is a stall; null: never")
    ] = None
    rank_gone_s: Annotated[
        float,
        positive("a rank has failed and the others stand still, quietly: this long they may react"),
    ] = 10.0
    rank_gone_launcher_s: Annotated[
        float,
        positive("the same where a launcher saw it: torchrun ends the others within 30 s"),
    ] = 45.0
    gpu: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="whether NVIDIA GPUs are looked at, by a process of its own: a host that "
            "sleeps while a GPU works is no hang; on: even where no device file is found"
        ),
    ] = "auto"
    late_poll_s: Annotated[
        float, positive("a poll later than this means that we slept: that gap is no silence")
    ] = 5.0
    stall_timeout_s: Annotated[
        float | None,
        Meta(
            description="the user's own hard limit on silence after the first step; null: automatic"
        ),
    ] = None
    startup_timeout_s: Annotated[
        float | None, Meta(description="the same before the first step; null: automatic")
    ] = None
