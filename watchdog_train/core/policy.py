"""Every threshold and choice of a run, typed, each with its unit and its reason.

`config.yaml`, the presets and docs/config.md are this module in other clothes: the text of each
field is its `Annotated` description, so it is written once. All times are seconds.
"""

from typing import Annotated, Literal

from msgspec import Meta

from watchdog_train.core.policy_base import Section, non_negative, positive
from watchdog_train.core.policy_telling import Metrics, Notify, Output


class PhaseBudget(Section, frozen=True, kw_only=True):
    """How long one phase may be silent."""

    soft_s: Annotated[float, positive("silence in a quiet job after which we look at the stacks")]
    hard_s: Annotated[
        float, positive("silence after which even a busy job is dumped and shown as suspected")
    ]


class Phases(Section, frozen=True, kw_only=True):
    """First-run budgets per phase, used until the run's own timings are known."""

    unknown: Annotated[
        PhaseBudget,
        Meta(description="no heartbeat reaches us: output and activity tell, and patience grows"),
    ] = PhaseBudget(soft_s=90.0, hard_s=7200.0)
    startup: Annotated[
        PhaseBudget,
        Meta(description="imports and process start; cold imports from a slow disk take a minute"),
    ] = PhaseBudget(soft_s=40.0, hard_s=900.0)
    download: Annotated[
        PhaseBudget,
        Meta(description="a stalled connection recovers or fails within its own timeouts, 10-60 s"),
    ] = PhaseBudget(soft_s=90.0, hard_s=3600.0)
    load: Annotated[
        PhaseBudget, Meta(description="reading weights or building a dataset; busy while healthy")
    ] = PhaseBudget(soft_s=40.0, hard_s=1800.0)
    compile: Annotated[
        PhaseBudget, Meta(description="max-autotune compiles for tens of minutes, always busy")
    ] = PhaseBudget(soft_s=90.0, hard_s=3600.0)
    first_step: Annotated[
        PhaseBudget,
        Meta(description="first batch with spawned workers and first kernels; busy while healthy"),
    ] = PhaseBudget(soft_s=25.0, hard_s=1800.0)
    train: Annotated[
        PhaseBudget, Meta(description="before step times are learnt; then the learnt budget rules")
    ] = PhaseBudget(soft_s=25.0, hard_s=900.0)
    eval: Annotated[
        PhaseBudget,
        Meta(description="an evaluation of 500 steps' length is normal, a quiet one is not"),
    ] = PhaseBudget(soft_s=90.0, hard_s=3600.0)
    checkpoint: Annotated[
        PhaseBudget, Meta(description="a slow save writes or waits in D state; both count as life")
    ] = PhaseBudget(soft_s=90.0, hard_s=1800.0)
    finishing: Annotated[
        PhaseBudget, Meta(description="final save, merge, upload, exit handlers")
    ] = PhaseBudget(soft_s=90.0, hard_s=1800.0)


class Detection(Section, frozen=True, kw_only=True):
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
    learn_after: Annotated[
        int, Meta(ge=2, description="step intervals before a learnt budget replaces the default")
    ] = 8
    learnt_factor: Annotated[
        float, positive("learnt soft budget = this times about the 98th percentile of intervals")
    ] = 2.5
    learnt_hard_factor: Annotated[float, positive("the same for the hard budget")] = 30.0
    learnt_soft_floor_s: Annotated[
        float,
        positive("no soft budget below this: quiet moments of 15 s that nothing explains exist"),
    ] = 12.0
    learnt_hard_floor_s: Annotated[float, positive("no hard budget below this")] = 120.0
    learnt_cap_s: Annotated[float, positive("no learnt budget above this")] = 7200.0
    patience_factor: Annotated[
        float,
        non_negative("a wait that may end is given this times the cost of a false alarm"),
    ] = 1.0
    patience_floor_s: Annotated[
        float, non_negative("and at least this long when the stacks do not prove a deadlock")
    ] = 20.0
    patience_cap_s: Annotated[float, positive("and at most this long")] = 900.0
    early_silence_s: Annotated[
        float,
        non_negative(
            "no stall before so much quiet while steps are not learnt, unless stacks prove it: "
            "a first step of a minute may leave no trace but time"
        ),
    ] = 150.0
    quiet_eval_s: Annotated[
        float, non_negative("patience with a quiet evaluation that shows no sign of life at all")
    ] = 240.0
    remote_wait_s: Annotated[
        float,
        non_negative("patience with an evaluation that waits for the network: a remote judge"),
    ] = 1800.0
    stuck_s: Annotated[
        float, positive("silence in state D (a disk, a driver) after which it is said, not ended")
    ] = 300.0
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
    phases: Phases = Phases()


class Stopping(Section, frozen=True, kw_only=True):
    """How a tree is brought down."""

    grace_s: Annotated[
        float, non_negative("after the root got SIGTERM on a user's stop: time to save")
    ] = 60.0
    ask_s: Annotated[
        float, non_negative("time for a training that can be asked to save and stop by itself")
    ] = 120.0
    ask_most_s: Annotated[
        float,
        non_negative("the same while it cannot have answered yet: a long step, an evaluation"),
    ] = 1800.0
    hang_grace_s: Annotated[
        float, non_negative("after SIGTERM to the ranks of a hung job; they seldom act on it")
    ] = 5.0
    helpers_s: Annotated[
        float, non_negative("for resource trackers and shared-memory managers to clean up and end")
    ] = 5.0
    keeper_s: Annotated[
        float, non_negative("for the keeper to see the last process end and to end itself")
    ] = 3.0
    kill_s: Annotated[
        float, positive("after SIGKILL; what lives longer is in the kernel and is called so")
    ] = 20.0
    outlive_s: Annotated[
        float, non_negative("what outlives a successful exit (an uploader) is ended after this")
    ] = 30.0


class Recovery(Section, frozen=True, kw_only=True):
    """What happens after a stall or a crash."""

    on_stall: Annotated[
        Literal["restart", "stop", "report"],
        Meta(description="what to do about a stall; report: words only"),
    ] = "restart"
    on_crash: Annotated[
        Literal["restart", "stop"], Meta(description="what to do about a crash")
    ] = "restart"
    observe: Annotated[
        bool, Meta(description="report only: no remedy and no signal but what a dump needs")
    ] = False
    max_restarts: Annotated[
        int,
        Meta(ge=0, le=50, description="restarts since the last newer step or checkpoint"),
    ] = 5
    backoff_first_s: Annotated[
        float, non_negative("before the second attempt of a plan that failed early; doubles")
    ] = 2.0
    backoff_cap_s: Annotated[float, non_negative("longest backoff")] = 300.0
    gpu_wait_s: Annotated[
        float,
        non_negative(
            "before a restart, for GPU memory that a process of ours or of somebody else holds; "
            "then the run ends with 75"
        ),
    ] = 300.0
    room_wait_s: Annotated[
        float,
        non_negative(
            "before a restart, for room on the disk of the run directory and for free file "
            "descriptors, then the run ends with 75; and for room for the next save where the last "
            "one is half-written"
        ),
    ] = 600.0
    checkpoints: Annotated[
        tuple[str, ...], Meta(description="where checkpoints are, when it is not found by itself")
    ] = ()
    resume_arg: Annotated[
        str | None,
        Meta(
            description="arguments to add on a restart, {checkpoint} stands for the path; auto: "
            "the option of the script's own parser (argparse) by which it resumes"
        ),
    ] = None
    keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="largest checkpoint file of which the last whole version is kept when the "
            "script overwrites it in place; 0: none is kept",
        ),
    ] = 4 * 1024**3
    with_remedies: Annotated[
        tuple[str, ...], Meta(description="remedies applied from the first attempt")
    ] = ()
    without_remedies: Annotated[tuple[str, ...], Meta(description="remedies never applied")] = ()
    allow: Annotated[
        tuple[str, ...],
        Meta(description="training or device remedies that may be applied: ids, or a whole kind"),
    ] = ()
    duplicates: Annotated[
        Literal["refuse", "kill", "ignore"],
        Meta(description="when the same training already runs under wtrain"),
    ] = "refuse"


class Job(Section, frozen=True, kw_only=True):
    """A job of several tasks or nodes, each under its own wtrain (srun, mpirun, torchrun)."""

    tasks: Annotated[
        Literal["auto", "together", "separate"],
        Meta(
            description="whether the tasks of a job are ended and restarted together; "
            "auto: when their ranks are seen to train one world"
        ),
    ] = "auto"
    silent_s: Annotated[
        float, positive("a peer's word older than this tells nothing; one comes every second")
    ] = 10.0
    barrier_s: Annotated[
        float, positive("for all tasks to have their evidence before anything is killed")
    ] = 30.0
    plan_s: Annotated[
        float,
        positive("for all tasks to end their ranks and agree to a plan; a survey takes a minute"),
    ] = 180.0
    nodes: Annotated[
        str | None,
        Meta(
            description="supervise one node of this many, or as `slurm` or the environment "
            "(`auto`) tells; null: no nodes"
        ),
    ] = None
    node_rank: Annotated[
        int | None,
        Meta(description="which of the nodes this is, from 0; null: as the environment tells"),
    ] = None
    coordination: Annotated[
        str | None,
        Meta(
            description="where the supervisors of all machines meet: a directory on a file system "
            "that they share, or tcp://HOST:PORT, a store that the first task holds at HOST; null: "
            "only tasks of one machine do"
        ),
    ] = None
    guilty_nodes: Annotated[
        str | None,
        Meta(
            description="a run that ends with 75 leaves in this directory a file, called as the "
            "machine, for each one that should not be used again, with the reason; null: nowhere"
        ),
    ] = None
    gather_s: Annotated[
        float, positive("for all nodes to come before the first attempt; pods may start late")
    ] = 900.0
    lost_s: Annotated[
        float,
        positive(
            "a supervisor on another machine that is silent for so long is lost with its ranks; "
            "long, for until then they may work"
        ),
    ] = 900.0


class Evidence(Section, frozen=True, kw_only=True):
    """How much time evidence may take."""

    look_s: Annotated[float, positive("the cheap look at a suspicion, all processes")] = 8.0
    total_s: Annotated[float, positive("a whole bundle; then it closes with what is there")] = 20.0
    process_s: Annotated[float, positive("one process with one tool")] = 10.0
    log_tail_lines: Annotated[int, Meta(ge=0, description="output lines kept in a bundle")] = 200
    rules_dirs: Annotated[
        tuple[str, ...],
        Meta(description="folders with rule files of your own, see docs/rules.md"),
    ] = ()


class Policy(Section, frozen=True, kw_only=True):
    """All settings of a run."""

    name: Annotated[str | None, Meta(description="name of the run; null: the script's")] = None
    runs_dir: Annotated[
        str | None, Meta(description="where run directories go; null: ./wtrain-runs")
    ] = None
    keep_awake: Annotated[
        bool,
        Meta(
            description="keep the machine from going to sleep while the run is watched "
            "(systemd-inhibit, caffeinate, SetThreadExecutionState); said where it cannot be"
        ),
    ] = False
    detection: Detection = Detection()
    stopping: Stopping = Stopping()
    recovery: Recovery = Recovery()
    job: Job = Job()
    evidence: Evidence = Evidence()
    output: Output = Output()
    notify: Notify = Notify()
    metrics: Metrics = Metrics()
