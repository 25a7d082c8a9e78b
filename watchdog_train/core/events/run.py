"""The run itself: beginning, end, supervisor, job, and messages to people and programs outside."""

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import GuiltyNode, Outcome, ProcessId, Value, Why
from watchdog_train.core.policy import Limits
from watchdog_train.core.starting.jobs import JobTask
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
    """Options of `wtrain run` as given, for the commands that are printed."""
    cwd: str
    run_dir: str
    slot_dir: str | None
    wtrain_version: str
    launcher: Launcher | None = None
    """What starts the ranks; None: the command does not name it."""
    resume: Why | None = None
    """How a restart will resume, by the command alone."""
    report_only: bool = False
    """--observe: nothing is killed and nothing is restarted."""
    max_restarts: int | None = None
    """None: unknown, or the settings never restart."""
    limits: Limits = Limits()
    """What the run is judged by; an adopting supervisor and `wtrain replay` use the same."""


class Adopted(Event):
    pid: int
    start: int
    boot_id: str | None
    previous_pid: int
    why: Why


class Reopened(Event):
    """A finished run continues: the user restarted it, or its job was requeued."""

    pid: int
    start: int
    boot_id: str | None
    slot_dir: str | None
    with_remedies: tuple[str, ...]
    allow: tuple[str, ...]
    why: Why
    fresh_budget: bool = True
    """False: used restarts stay used."""


class SupervisorLeft(Event):
    """The supervisor exited with the training alive (a bug of wtrain, or asked to)."""

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
    """Machines with which the fault may lie; only with exit code 75. See core.job.machines."""


class TaskJoined(Event):
    """This run is one task of a job; the first one leads, and the others are its agents."""

    task: JobTask
    host: str = ""
    """Its present host: an ended run may be continued elsewhere."""


class MachineHeard(TreeEvent):
    """An agent has reported itself, for the first time or after a change of agent."""

    hostname: str
    place: str
    """Within which a pid means something."""
    run_dir: str
    agent: ProcessId
    silent_s: float = 0.0
    """How long it did not report, if that was recorded."""


class MachineSilent(TreeEvent):
    """A machine does not report: its state is unknown until machine_heard."""

    since: float
    """Unix seconds."""


class MachineLost(TreeEvent):
    """A machine did not report for too long: its state is unknown."""

    why: Why


class Ordered(Event):
    """Intent, of an agent: an order is carried out once, by this record."""

    epoch: int
    """Of the leader: a newer leader has a later one, and older orders are refused."""
    number: int


JobEvent = TaskJoined | MachineHeard | MachineSilent | MachineLost | Ordered
"""Only in a run that is one of several tasks of a job."""


BEFORE_RESTART = "before_restart"
"""Not an event of the log: the moment before the next attempt of a run is launched."""


class Notified(Event):
    """A message to a person was sent on one channel, or could not be."""

    channel: str
    """Its scheme and number, as `https #1`: the rest of a URL can be a secret."""
    topics: tuple[str, ...]
    sent: bool
    why: Why | None
    """Why it was not sent."""


class CommandResult(Value):
    """The result of one of the user's commands."""

    number: int
    """Which of the settings' commands, from 1; its text can be a secret."""
    ok: bool
    seconds: float
    code: int | None = None
    signal: int | None = None
    why: Why | None = None
    """Why it is not ok."""
    output: str = ""
    """The end of its output, without secrets."""


class CommandsStarting(Event):
    """Intent: the user's commands for an event are started."""

    for_event: str
    for_attempt: int
    """The next attempt for `before_restart`, else the present one."""
    numbers: tuple[int, ...]


class CommandsRan(Event):
    """The user's commands for an event have ended, or were killed at their deadline."""

    for_event: str
    for_attempt: int
    results: tuple[CommandResult, ...]
