"""The side file of a training process, decoded and bounded: what it says in words. Pure.

It is written by the training and therefore untrusted: what does not fit is left out.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core.model import Milestone, Value

NOTE_BYTES = 64 << 10
MILESTONES = 128
MILESTONE_NAME = 80
LONGEST_UPTIME_S = 1e9


class SettingAnswer(msgspec.Struct, frozen=True):
    took: bool
    why: str = ""


class TrainingNote(Value):
    home: str
    """Its output path, or another identity that survives restarts."""
    nth: int | None = None
    ordinal: int | None = None
    signature: str | None = None


class TaskNote(Value):
    name: str
    late: bool
    """It is acknowledged when it is done, not before it begins."""
    rejects: bool
    """It returns to the queue when its worker dies."""


class Note(Value):
    pid: int
    start: int = 0
    attempt: int = 0
    role: str = "unknown"
    hooks: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    settings: dict[str, SettingAnswer] = {}  # noqa: RUF012
    output_dirs: tuple[str, ...] = ()
    can_save: bool = False
    notes: tuple[str, ...] = ()
    changes: int = 0
    """The slot's milestone word when this was written."""
    milestones: tuple[Milestone, ...] = ()
    options: tuple[str, ...] = ()
    """Arguments by which the script resumes, {checkpoint} for the path of one."""
    training: TrainingNote | None = None
    task: TaskNote | None = None


_decoder = msgspec.json.Decoder(Note)


def decode_note(data: bytes, pid: int) -> Note | None:
    """The side file of this process; None if it is unreadable or another's."""
    if len(data) > NOTE_BYTES:
        return None
    try:
        note = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if note.pid != pid:
        return None
    return msgspec.structs.replace(note, milestones=_bounded(note.milestones))


def _bounded(said: tuple[Milestone, ...]) -> tuple[Milestone, ...]:
    """Valid milestones: names of a bounded length, times of a clock that began at a boot."""
    return tuple(
        msgspec.structs.replace(one, name=one.name[:MILESTONE_NAME])
        for one in said[:MILESTONES]
        if 0.0 <= one.begin < LONGEST_UPTIME_S
        and (one.end is None or one.begin <= one.end < LONGEST_UPTIME_S)
    )
