"""After an attempt: checkpoint, plan, wait, and the result."""

from typing import Literal

from watchdog_train.core.events.base import Event
from watchdog_train.core.model import GuiltyNode, Outcome, Plan, ResumeVerdict, Why
from watchdog_train.core.model.gpu import GpuHolder


class CheckpointChosen(Event):
    path: str
    format: str
    step: int | None
    how_checked: str
    why: Why


class CheckpointsShared(Event):
    """Another run of this user writes to the same directory: nothing there is resumed from."""

    directory: str
    run_id: str
    """Of the other run; empty: not known."""
    pid: int
    why: Why


class CheckpointRejected(Event):
    path: str
    format: str
    why: Why
    torn: bool = False
    """It is not known to be valid; otherwise it is passed over for another reason."""


class CheckpointKept(Event):
    """A file that the script overwrites in place was copied after a save of it had ended."""

    path: str
    copy: str
    format: str
    step: int | None
    saved_at: float
    """Unix seconds of the file that was copied."""
    how: Literal["reflink", "copy"]
    seconds: float


class CheckpointNotKept(Event):
    path: str
    why: Why


class CheckpointRestored(Event):
    """A kept copy was put back to the path of a file that was torn."""

    path: str
    copy: str
    aside: str | None
    """Where the torn file is now."""
    problem: str | None
    """Why nothing was changed."""


class PlanMade(Event):
    plan: Plan


class GivenUp(Event):
    """No further attempt is made; `why` has the reason."""

    why: Why
    exit_code: int
    outcome: Outcome
    offers: tuple[str, ...] = ()
    """Remedies that the diagnosis names and that are not allowed."""
    guilty: tuple[GuiltyNode, ...] = ()
    """Machines with which the fault may lie; see core.job.machines."""


class BackingOff(Event):
    delay_s: float
    until_mono: float
    why: Why


class GpuMemoryHeld(Event):
    """The next attempt waits: memory of its GPUs is held. Repeated when the holders change."""

    ours: tuple[GpuHolder, ...]
    """Processes of the last attempt that the driver still lists."""
    others: tuple[GpuHolder, ...]
    unnamed: tuple[int, ...]
    """Devices in use by processes that the driver does not name."""
    why: Why


class GpuMemoryFree(Event):
    """What the next attempt waited for is over."""

    waited_s: float


class RemedyTaken(Event):
    """What the training process itself reported about a setting."""

    remedy: str
    pid: int
    took: bool
    why: Why


class ResumeVerified(Event):
    expected_step: int | None
    first_step: int | None
    ok: bool
    contradicted: bool = False
    """The training's own count began at a lower step."""
    why: Why

    @property
    def verdict(self) -> ResumeVerdict:
        if self.ok:
            return "verified"
        return "contradicted" if self.contradicted else "not-confirmed"
