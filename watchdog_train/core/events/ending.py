"""What was asked of a training, and what was sent to it."""

from typing import Literal

from watchdog_train.core.events.base import Event, TreeEvent
from watchdog_train.core.model import ProcessId, Value, Why


class StopRequested(Event):
    by: str
    mode: Literal["soft", "now"]
    exit_code: int
    """77 for stop and SIGTERM, 130 for Ctrl-C."""
    relayed: bool = False
    """Asked of another task of the job, which `by` names."""


class SaveRequested(Event):
    by: str
    sequence: int
    can_be_asked: bool


class SaveProven(Event):
    """A checkpoint that was finished after the request has been found whole."""

    sequence: int
    path: str
    step: int | None
    request: Literal["save", "stop"] = "save"


class StopAsked(Event):
    """The control page's stop-request was raised."""

    sequence: int
    can_be_asked: bool
    why: Why
    step: int | None = None
    """The newest step at that moment."""
    expects_save: bool = False
    """It saves before it ends."""


class RequestAnswered(Event):
    """A rank has taken a request from the control page, at the end of a step."""

    request: Literal["save", "stop"]
    sequence: int
    step: int | None


class RequestRefused(Event):
    """The ranks of several supervisors have found no step at which all of them could act."""

    request: Literal["save", "stop"]
    sequence: int
    step: int | None


KillStage = Literal["ask", "root", "freeze", "terminate", "kill", "helpers", "launchers", "keeper"]


KillSequence = Literal["hang", "stop", "now", "sweep"]


class Signalling(TreeEvent):
    """Intent: one stage of a kill sequence begins."""

    sequence: KillSequence
    stage: KillStage
    targets: tuple[ProcessId, ...]
    signal: int
    why: Why


class SentSignal(Value):
    pid: int
    start: int
    signal: int
    role: str
    result: Literal["sent", "gone", "denied", "not-ours", "ordered"]
    """ordered: its agent was told to send it."""


class Signalled(TreeEvent):
    """What one order has sent; an event for each process was 24,553 for 1,024 machines."""

    sent: tuple[SentSignal, ...]


class SurvivedKill(TreeEvent):
    pids: tuple[int, ...]
    why: Why
