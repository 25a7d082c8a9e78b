"""Settings of a run: what a user may choose.

A field is the one definition of its setting: the file, the flag, the variable, the checks and the
pages come from it. The first word of `flag` is the flag of `wtrain run`, the rest its metavar.
"""

from typing import Annotated, Literal

from watchdog_train.core.model import Value
from watchdog_train.core.policy.limits import Detection, Limits, Timing, WaitLimits, setting


class Stopping(Value):
    """How the processes of a run are stopped."""

    grace_s: Annotated[
        float, setting("time to save after SIGTERM to the first process, on a user's stop", ge=0)
    ] = 60.0
    ask_s: Annotated[
        float, setting("time for a training that can be asked to save and stop by itself", ge=0)
    ] = 120.0
    hang_grace_s: Annotated[
        float, setting("after SIGTERM to the ranks of a hung job, and then to their helpers", ge=0)
    ] = 5.0
    leave: Annotated[
        tuple[str, ...],
        setting(
            "never kill a process with one of these shell patterns in its command line, such "
            "as tensorboard; ranks, launchers and workers do not count"
        ),
    ] = ()
    take: Annotated[
        tuple[str, ...],
        setting(
            "kill with the training what left its session and has one of these shell patterns "
            "in its command line; leave comes first"
        ),
    ] = ()


class Recovery(Value):
    """What happens after a stall or a crash."""

    on_stall: Annotated[
        Literal["restart", "stop", "report"],
        setting("what to do about a stall; report: words only", "--on-stall"),
    ] = "restart"
    on_crash: Annotated[
        Literal["restart", "stop"], setting("what to do about a crash", "--on-crash")
    ] = "restart"
    observe: Annotated[bool, setting("report only: no remedy, no signal", "--observe")] = False
    max_restarts: Annotated[
        int,
        setting("restarts since the last newer step or checkpoint", "--max-restarts", ge=0, le=50),
    ] = 5
    backoff_cap_s: Annotated[
        float, setting("longest delay before a plan is tried again; the first is 2 s", ge=0)
    ] = 300.0
    gpu_wait_s: Annotated[
        float, setting("wait before a restart for GPU memory of others; then exit 75", ge=0)
    ] = 300.0
    room_wait_s: Annotated[
        float,
        setting(
            "wait before a restart for room on the disk, for file descriptors, or for a "
            "scan of checkpoints that fails; then exit 75",
            ge=0,
        ),
    ] = 600.0
    checkpoints: Annotated[
        tuple[str, ...],
        setting("where checkpoints are, when it is not found by itself", "--checkpoints DIR"),
    ] = ()
    resume_arg: Annotated[
        str | None,
        setting(
            "arguments to add on a restart, with {checkpoint} for the path if the script wants "
            "one; auto: the option of the script's own parser (argparse) by which it resumes",
            "--resume-arg ARGS",
        ),
    ] = "auto"
    keep_bytes: Annotated[
        int,
        setting(
            "largest checkpoint file of which the last valid version is kept when the "
            "script overwrites it in place; 0: none",
            ge=0,
        ),
    ] = 4 * 1024**3
    on_not_resumed: Annotated[
        Literal["stop", "continue"],
        setting(
            "what to do when a restart begins below the step of its checkpoint; "
            "stop: before its first save",
            "--on-not-resumed",
        ),
    ] = "stop"
    with_remedies: Annotated[
        tuple[str, ...],
        setting("remedies applied from the first attempt: ids, or ID=N with a number", "--with"),
    ] = ()
    without_remedies: Annotated[
        tuple[str, ...], setting("remedies never applied", "--without")
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        setting("training or device remedies that may be applied: ids, or a kind", "--allow"),
    ] = ()
    duplicates: Annotated[
        Literal["refuse", "ignore"],
        setting("when the same training already runs under wtrain", "--duplicates"),
    ] = "refuse"


class Job(Value):
    """A job of several tasks or nodes, each under its own wtrain (srun, mpirun, torchrun)."""

    nodes: Annotated[
        str | None,
        setting(
            "supervise one node of this many, or as `slurm` or the environment (`auto`) tells; "
            "`auto` also leads several tasks of one machine; null: no nodes",
            "--nodes N|auto|slurm",
        ),
    ] = None
    node_rank: Annotated[
        int | None,
        setting("number of this node, from 0; null: as the environment tells", "--node-rank"),
    ] = None
    coordination: Annotated[
        str | None,
        setting(
            "tcp://HOST:PORT of the first task, for other machines; null: all are on one",
            "--coordination tcp://HOST:PORT",
        ),
    ] = None
    gather_s: Annotated[
        float, setting("for all nodes to come before the first attempt; pods may be late", gt=0)
    ] = 900.0
    lost_s: Annotated[
        float, setting("silence after which a machine is lost, once no rank makes steps", gt=0)
    ] = 900.0


class Evidence(Value):
    """How much time evidence may take."""

    total_s: Annotated[float, setting("a bundle; then it closes with what is there", gt=0)] = 20.0
    process_s: Annotated[float, setting("one process with one tool", gt=0)] = 10.0


class Output(Value):
    """Where the training's output goes."""

    log_cap_bytes: Annotated[
        int, setting("of each captured stream; the newest are kept", ge=65536)
    ] = 64 * 1024 * 1024
    progress_line_s: Annotated[
        float | None,
        setting("time between lines of progress, where it is no terminal; null: no progress"),
    ] = 300.0
    heartbeat_every: Annotated[
        int,
        setting("steps between lines of every rank on stderr; 0: none", "--heartbeat-every", ge=0),
    ] = 0
    quiet: Annotated[
        bool, setting("say nothing while all goes well: no opening, no progress", "--quiet")
    ] = False
    termination_log: Annotated[
        str | None,
        setting(
            "file for the verdict in a few words, where a kubelet looks for it; auto: "
            "/dev/termination-log in a container of Kubernetes; null: nowhere",
            "--termination-log FILE",
        ),
    ] = "auto"


class Notify(Value):
    """Who gets messages of what happens."""

    urls: Annotated[
        tuple[str, ...],
        setting(
            "where to tell of stalls, restarts and the end: an http(s) URL gets JSON, others are "
            "those of apprise; a URL can be a secret, so rather WTRAIN_NOTIFY",
            "--notify URL",
        ),
    ] = ()
    every_s: Annotated[
        float, setting("between two messages; more become one, the end comes at once", ge=0)
    ] = 60.0
    commands: Annotated[
        tuple[str, ...],
        setting(
            "EVENT=COMMAND: run COMMAND in a shell when EVENT happens, with the event as JSON on "
            "its stdin; before_restart is waited for, other names are those of docs/events.md",
            "--on EVENT=COMMAND",
        ),
    ] = ()
    command_s: Annotated[
        float, setting("for such a command and all it starts; then they are killed", gt=0)
    ] = 30.0


class Metrics(Value):
    """Numbers for Prometheus."""

    file: Annotated[
        str | None,
        setting(
            "file for numbers for Prometheus, such as NAME.prom for the textfile collector of "
            "node_exporter; null: none",
            "--metrics-file FILE",
        ),
    ] = None


class Policy(Value):
    """All settings of a run."""

    name: Annotated[str | None, setting("name of the run; null: the script's", "--name NAME")] = (
        None
    )
    runs_dir: Annotated[
        str | None, setting("where run directories go; null: ./wtrain-runs", "--runs-dir DIR")
    ] = None
    detection: Detection = Detection()
    patience: WaitLimits = WaitLimits()
    timing: Timing = Timing()
    stopping: Stopping = Stopping()
    recovery: Recovery = Recovery()
    job: Job = Job()
    evidence: Evidence = Evidence()
    output: Output = Output()
    notify: Notify = Notify()
    metrics: Metrics = Metrics()

    @property
    def limits(self) -> Limits:
        return Limits(detection=self.detection, patience=self.patience, timing=self.timing)
