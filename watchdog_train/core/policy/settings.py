"""Settings of a run: what a user may choose. The description of a field explains it to the user."""

from typing import Annotated, Literal

from msgspec import Meta

from watchdog_train.core.model import Value
from watchdog_train.core.policy.limits import (
    Detection,
    Limits,
    Timing,
    WaitLimits,
    described,
    non_negative,
    positive,
)


class Stopping(Value):
    """How the processes of a run are stopped."""

    grace_s: Annotated[
        float, non_negative("time to save after SIGTERM to the first process, on a user's stop")
    ] = 60.0
    ask_s: Annotated[
        float, non_negative("time for a training that can be asked to save and stop by itself")
    ] = 120.0
    hang_grace_s: Annotated[
        float,
        non_negative(
            "after SIGTERM to the ranks of a hung job, and again for their helpers to exit"
        ),
    ] = 5.0
    leave: Annotated[
        tuple[str, ...],
        described(
            "never kill a process with one of these shell patterns in its command line, such "
            "as tensorboard; ranks, launchers and workers do not count"
        ),
    ] = ()
    take: Annotated[
        tuple[str, ...],
        described(
            "kill with the training what left its session and has one of these shell patterns "
            "in its command line; leave comes first"
        ),
    ] = ()


class Recovery(Value):
    """What happens after a stall or a crash."""

    on_stall: Annotated[
        Literal["restart", "stop", "report"],
        described("what to do about a stall; report: words only"),
    ] = "restart"
    on_crash: Annotated[Literal["restart", "stop"], described("what to do about a crash")] = (
        "restart"
    )
    observe: Annotated[bool, described("report only: no remedy and no signal")] = False
    max_restarts: Annotated[
        int, Meta(ge=0, le=50, description="restarts since the last newer step or checkpoint")
    ] = 5
    backoff_cap_s: Annotated[
        float, non_negative("longest delay before the same plan is tried again; the first is 2 s")
    ] = 300.0
    gpu_wait_s: Annotated[
        float,
        non_negative(
            "wait before a restart for GPU memory that another process holds; then exit 75"
        ),
    ] = 300.0
    room_wait_s: Annotated[
        float,
        non_negative(
            "wait before a restart for room on the disk, for file descriptors, or for a "
            "scan of checkpoints that fails; then exit 75"
        ),
    ] = 600.0
    checkpoints: Annotated[
        tuple[str, ...], described("where checkpoints are, when it is not found by itself")
    ] = ()
    resume_arg: Annotated[
        str | None,
        described(
            "arguments to add on a restart, with {checkpoint} for the path if the script wants "
            "one; auto: the option of the script's own parser (argparse) by which it resumes"
        ),
    ] = "auto"
    keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="largest checkpoint file of which the last valid version is kept when the "
            "script overwrites it in place; 0: none",
        ),
    ] = 4 * 1024**3
    on_not_resumed: Annotated[
        Literal["stop", "continue"],
        described(
            "what to do when a restart begins at a lower step than its checkpoint; stop: before "
            "its first save"
        ),
    ] = "stop"
    with_remedies: Annotated[
        tuple[str, ...],
        described("remedies applied from the first attempt: ids, or ID=N with a number"),
    ] = ()
    without_remedies: Annotated[tuple[str, ...], described("remedies never applied")] = ()
    allow: Annotated[
        tuple[str, ...],
        described("training or device remedies that may be applied: ids, or a whole kind"),
    ] = ()
    duplicates: Annotated[
        Literal["refuse", "ignore"], described("when the same training already runs under wtrain")
    ] = "refuse"


class Job(Value):
    """A job of several tasks or nodes, each under its own wtrain (srun, mpirun, torchrun)."""

    nodes: Annotated[
        str | None,
        described(
            "supervise one node of this many, or as `slurm` or the environment (`auto`) tells; "
            "`auto` also leads several tasks of one machine; null: no nodes"
        ),
    ] = None
    node_rank: Annotated[
        int | None, described("which of the nodes this is, from 0; null: as the environment tells")
    ] = None
    coordination: Annotated[
        str | None,
        described(
            "address where the first task listens for those of other machines, "
            "tcp://HOST:PORT; null: all tasks are on one machine"
        ),
    ] = None
    gather_s: Annotated[
        float, positive("for all nodes to come before the first attempt; pods may start late")
    ] = 900.0
    lost_s: Annotated[
        float, positive("silence after which a machine is lost, once no other rank makes steps")
    ] = 900.0


class Evidence(Value):
    """How much time evidence may take."""

    total_s: Annotated[float, positive("a whole bundle; then it closes with what is there")] = 20.0
    process_s: Annotated[float, positive("one process with one tool")] = 10.0


class Output(Value):
    """Where the training's output goes."""

    log_cap_bytes: Annotated[
        int, Meta(ge=65536, description="of each captured stream; the newest are kept")
    ] = 64 * 1024 * 1024
    progress_line_s: Annotated[
        float | None,
        described(
            "time between lines of progress; in a terminal there is one at the bottom instead; "
            "null: no progress"
        ),
    ] = 300.0
    heartbeat_every: Annotated[
        int,
        Meta(ge=0, description="every rank writes a line on stderr after so many steps; 0: none"),
    ] = 0
    quiet: Annotated[
        bool, described("say nothing as long as all goes well: no opening, no progress")
    ] = False
    termination_log: Annotated[
        str | None,
        described(
            "file for the verdict in a few words, where a kubelet looks for it; auto: "
            "/dev/termination-log in a container of Kubernetes; null: nowhere"
        ),
    ] = "auto"


class Notify(Value):
    """Who gets messages of what happens."""

    urls: Annotated[
        tuple[str, ...],
        described(
            "where to tell of stalls, restarts and the end: an http(s) URL gets JSON, others are "
            "those of apprise; a URL can be a secret, so rather WTRAIN_NOTIFY"
        ),
    ] = ()
    every_s: Annotated[
        float,
        non_negative("between two messages; what happens meanwhile comes in one, the end at once"),
    ] = 60.0
    commands: Annotated[
        tuple[str, ...],
        described(
            "EVENT=COMMAND: run COMMAND in a shell when EVENT happens, with the event as JSON on "
            "its stdin; before_restart is waited for, other names are those of docs/events.md"
        ),
    ] = ()
    command_s: Annotated[
        float, positive("for each such command and all it starts; then they are killed")
    ] = 30.0


class Metrics(Value):
    """Numbers for Prometheus."""

    file: Annotated[
        str | None,
        described(
            "numbers for Prometheus go into this file, for the textfile collector of "
            "node_exporter, which wants a name in .prom; null: none"
        ),
    ] = None


class Policy(Value):
    """All settings of a run."""

    name: Annotated[str | None, described("name of the run; null: the script's")] = None
    runs_dir: Annotated[str | None, described("where run directories go; null: ./wtrain-runs")] = (
        None
    )
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
        """All limits, with those that are settings."""
        return Limits(detection=self.detection, patience=self.patience, timing=self.timing)
