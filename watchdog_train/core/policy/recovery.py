"""Settings of how a tree is ended, and of what happens after a stall or a crash."""

from typing import Annotated, Literal

from msgspec import Meta

from watchdog_train.core.policy.base import Section, non_negative


class Stopping(Section):
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
        float,
        non_negative(
            "after SIGTERM to the ranks of a hung job, which seldom act on it; then for resource "
            "trackers and shared-memory managers to clean up and end"
        ),
    ] = 5.0
    outlive_s: Annotated[
        float, non_negative("what outlives a successful exit is killed when it is idle this long")
    ] = 30.0
    outlive_working_s: Annotated[
        float,
        non_negative("what outlives a successful exit and works (an uploader) may take this long"),
    ] = 900.0
    leave: Annotated[
        tuple[str, ...],
        Meta(
            description="never kill a process with one of these shell patterns in its command "
            "line, such as tensorboard; ranks, launchers and workers do not count"
        ),
    ] = ()
    take: Annotated[
        tuple[str, ...],
        Meta(
            description="kill with the training what left its session and has one of these shell "
            "patterns in its command line; leave comes first"
        ),
    ] = ()


class Recovery(Section):
    """What happens after a stall or a crash."""

    on_stall: Annotated[
        Literal["restart", "stop", "report"],
        Meta(description="what to do about a stall; report: words only"),
    ] = "restart"
    on_crash: Annotated[
        Literal["restart", "stop"], Meta(description="what to do about a crash")
    ] = "restart"
    observe: Annotated[bool, Meta(description="report only: no remedy and no signal")] = False
    max_restarts: Annotated[
        int,
        Meta(ge=0, le=50, description="restarts since the last newer step or checkpoint"),
    ] = 5
    backoff_first_s: Annotated[
        float,
        non_negative(
            "before a plan is tried again after a failure; doubles; a first restart is at once"
        ),
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
            "descriptors, and for a scan of checkpoints that fails, then the run ends with 75; and "
            "for room for the next save where the last one is half-written"
        ),
    ] = 600.0
    checkpoints: Annotated[
        tuple[str, ...], Meta(description="where checkpoints are, when it is not found by itself")
    ] = ()
    resume_arg: Annotated[
        str | None,
        Meta(
            description="arguments to add on a restart, {checkpoint} stands for the path, a script "
            "that finds its checkpoint itself needs none; auto: the option of the script's own "
            "parser (argparse) by which it resumes"
        ),
    ] = "auto"
    keep_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="largest checkpoint file of which the last whole version is kept when the "
            "script overwrites it in place, and put back where a torn one is found; 0: none",
        ),
    ] = 4 * 1024**3
    on_not_resumed: Annotated[
        Literal["stop", "continue"],
        Meta(
            description="what to do about a restart that by its own count began at a lower step "
            "than the checkpoint it was to resume from; stop: before its first save"
        ),
    ] = "stop"
    with_remedies: Annotated[
        tuple[str, ...],
        Meta(description="remedies applied from the first attempt: ids, or ID=N with a number"),
    ] = ()
    without_remedies: Annotated[tuple[str, ...], Meta(description="remedies never applied")] = ()
    allow: Annotated[
        tuple[str, ...],
        Meta(description="training or device remedies that may be applied: ids, or a whole kind"),
    ] = ()
    duplicates: Annotated[
        Literal["refuse", "ignore"],
        Meta(description="when the same training already runs under wtrain"),
    ] = "refuse"
