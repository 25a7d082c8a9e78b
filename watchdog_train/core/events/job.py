"""Only in a run that is one of several tasks of a job."""

from typing import Literal

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import ProcessId, Why
from watchdog_train.core.starting.jobs import JobTask


class TaskJoined(Event, frozen=True, kw_only=True):
    """This run is one task of a job; the first one leads, and the others are its agents."""

    task: JobTask


class MachineHeard(TreeEvent, frozen=True, kw_only=True):
    """An agent has said who it is, for the first time or after another one took its place."""

    hostname: str
    place: str
    """Within which a pid means something."""
    run_dir: str
    agent: ProcessId
    attempts: int = 0
    """The newest attempt that it had begun before it was led."""


class MachineLost(TreeEvent, frozen=True, kw_only=True):
    """Nothing was heard of a machine for too long: what runs there is unknown."""

    why: Why


class Ordered(Event, frozen=True, kw_only=True):
    """Intent, of an agent: an order is carried out once, by this record."""

    epoch: int
    """Of the leader: one that takes the run up has a later one, and older orders are refused."""
    number: int


class TasksCoupled(Event, frozen=True, kw_only=True):
    """Whether the tasks of the job train one world: then they act together from now on."""

    together: bool
    world: int | None
    why: Why


class PeerAnnounced(Event, frozen=True, kw_only=True):
    """A peer has found why the attempt has to end; this task follows it."""

    task: int
    kind: Literal["stall", "crash", "left"]
    """left: its supervisor has ended without success."""
    firm: bool
    over: bool
    """Its training was finished already."""
    why: Why
    code: int | None = None
    signal: int | None = None


class PeerRetracted(Event, frozen=True, kw_only=True):
    """What a peer had announced is over: nothing has to be done for it."""

    task: int
    why: Why


class BarrierReached(Event, frozen=True, kw_only=True):
    """The evidence of all tasks is on disk: the killing may begin."""

    tasks: tuple[int, ...]
    waited_s: float


class BarrierMissed(Event, frozen=True, kw_only=True):
    """Not all tasks have their evidence in time: the killing begins all the same."""

    missing: tuple[int, ...]
    waited_s: float
    why: Why


class PlanReceived(Event, frozen=True, kw_only=True):
    """The plan of the next attempt, as another task has made it; plan_made follows."""

    proposer: int
    plan_attempt: int
    digest: str


class CheckpointUnseen(Event, frozen=True, kw_only=True):
    """The checkpoint of the leader's plan is not to be seen on the machine of a task."""

    task: int
    path: str
    why: Why


class PeerLost(Event, frozen=True, kw_only=True):
    """Intent: a peer's supervisor is gone, another one takes up its run."""

    task: int
    pid: int
    run_id: str
    why: Why


JobEvent = (
    TaskJoined
    | TasksCoupled
    | PeerAnnounced
    | PeerRetracted
    | BarrierReached
    | BarrierMissed
    | PlanReceived
    | CheckpointUnseen
    | PeerLost
    | MachineHeard
    | MachineLost
    | Ordered
)
"""Only in a run that is one of several tasks of a job."""
