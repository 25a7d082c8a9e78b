"""The run itself: its beginning and end, who watches it, what it found and could not write."""

from watchdog_train.core.events.base import Event
from watchdog_train.core.model import GuiltyNode, Outcome, Why
from watchdog_train.core.starting.launchers import Launcher


class RunStarted(Event):
    run_id: str
    name: str
    boot_id: str | None
    host: str
    pid: int
    start: int
    argv: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Of `wtrain run`, as they were given, for the commands that are printed."""
    cwd: str
    run_dir: str
    slot_dir: str | None
    wtrain_version: str
    launcher: Launcher | None = None
    """What starts the ranks, where the command tells."""
    resume: Why | None = None
    """How a restart will resume, as far as the command tells."""


class Adopted(Event):
    pid: int
    start: int
    boot_id: str | None
    previous_pid: int
    why: Why


class Reopened(Event):
    """A finished run goes on: at the user's wish, or because its job was requeued."""

    pid: int
    start: int
    boot_id: str | None
    slot_dir: str | None
    with_remedies: tuple[str, ...]
    allow: tuple[str, ...]
    why: Why
    fresh_budget: bool = True
    """False: what was used up of its restarts stays used up."""


class SupervisorLeft(Event):
    """The supervisor ended on purpose with training alive (a bug of ours, or asked to)."""

    why: Why


class LogBehind(Event):
    behind_s: float
    spill: str | None
    why: Why


class RunFinished(Event):
    outcome: Outcome
    exit_code: int
    warning: Why | None
    why: Why
    guilty: tuple[GuiltyNode, ...] = ()
    """Machines with which the fault may lie; only with exit code 75. See core.job.guilty."""
