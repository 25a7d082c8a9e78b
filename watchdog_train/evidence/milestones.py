"""Where a training process says that it is on its way; its own words, read once and bounded."""

from __future__ import annotations

import os

from watchdog_train.client import layout
from watchdog_train.core.model import Milestone, ProcessId
from watchdog_train.core.notices.notes import NOTE_BYTES, decode_note
from watchdog_train.trusted_files import read_regular


def read_milestones(slot_dir: str | None, who: ProcessId) -> tuple[Milestone, ...]:
    """The milestones of this very process; empty when it has written none down."""
    if slot_dir is None:
        return ()
    found = read_regular(os.path.join(slot_dir, f"{who.pid}{layout.NOTE_SUFFIX}"), NOTE_BYTES + 1)
    note = decode_note(found[0], who.pid) if found is not None else None
    return note.milestones if note is not None and note.start in (0, who.start) else ()
