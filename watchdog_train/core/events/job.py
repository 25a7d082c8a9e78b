"""Only in a run that is one of several tasks of a job."""

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import ProcessId, Why
from watchdog_train.core.starting.jobs import JobTask


class TaskJoined(Event):
    """This run is one task of a job; the first one leads, and the others are its agents."""

    task: JobTask
    host: str = ""
    """Where this one is now: an ended run may be continued elsewhere."""


class MachineHeard(TreeEvent):
    """An agent has said who it is, for the first time or after another one took its place."""

    hostname: str
    place: str
    """Within which a pid means something."""
    run_dir: str
    agent: ProcessId
    silent_s: float = 0.0
    """How long it was not heard, where that was recorded."""


class MachineSilent(TreeEvent):
    """Nothing is heard of a machine at present: what it does is unknown; machine_heard ends it."""

    since: float
    """Unix seconds."""


class MachineLost(TreeEvent):
    """Nothing was heard of a machine for too long: what runs there is unknown."""

    why: Why


class Ordered(Event):
    """Intent, of an agent: an order is carried out once, by this record."""

    epoch: int
    """Of the leader: one that takes the run up has a later one, and older orders are refused."""
    number: int


JobEvent = TaskJoined | MachineHeard | MachineSilent | MachineLost | Ordered
"""Only in a run that is one of several tasks of a job."""
