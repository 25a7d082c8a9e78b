"""The event log's vocabulary: one frozen struct per type, encoded as one flat JSON object a line.

State is a fold over these (core.fold.evolve). docs/events.md is checked against this module.
An event is a fact that has happened or, for the types marked intent, is about to be tried;
after a supervisor's death every open intent is settled by looking.
"""

from functools import cache
from typing import Any

import msgspec

from watchdog_train.core.events.attempt import *
from watchdog_train.core.events.base import *
from watchdog_train.core.events.recovery import *
from watchdog_train.core.events.run import *
from watchdog_train.core.events.stall import *

AnyEvent = (
    RunStarted | AttemptLaunching
    | AttemptLaunched | LaunchPostponed | FirstBeat | FirstStep | Progress
    | Milestones | HookNotArmed | RankEnded | Suspected | Looked | SuspicionEnded
    | StallDeclared | StallRecovered | Noticed
    | Straggling | Warned | EvidenceCollecting | EvidenceCollected | EvidenceMoved
    | StallExplained | StopRequested | SaveRequested | SaveProven | StopAsked | RequestAnswered
    | RequestRefused | Signalling | Signalled | SurvivedKill | DaemonsJudged | TreeGone
    | AttemptExited | CheckpointChosen | CheckpointRejected | CheckpointsShared | CheckpointKept
    | CheckpointNotKept | CheckpointRestored | PlanMade | WouldHaveKilled | GivenUp
    | BackingOff | GpuMemoryHeld | GpuMemoryFree | RemedyTaken | ResumeVerified | Adopted
    | Reopened | SupervisorLeft | LogBehind | Notified | CommandsStarting | CommandsRan
    | JobEvent | RunFinished
)  # fmt: skip

LIFECYCLE = (
    RunStarted, AttemptLaunching, AttemptLaunched, StallDeclared, EvidenceCollected,
    EvidenceMoved, DaemonsJudged, Signalling, TreeGone, AttemptExited, PlanMade, Adopted,
    Reopened, RunFinished, Ordered, MachineLost,
)  # fmt: skip
"""Types that are flushed to disk (fsync) before the loop continues."""

_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    """Made when a log is read: it takes 5 ms, and most of a run only writes."""
    return msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """One line without its newline."""
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    """The event of one line.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: not an event of this schema.
    """
    event: AnyEvent = _decoder().decode(line)
    return event


def to_builtins(event: Event) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(event)
    return result
