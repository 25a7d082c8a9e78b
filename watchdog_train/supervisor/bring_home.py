"""Evidence that lies in memory because the disk was full goes to its run directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.supervisor.context import Context


def bring_home(context: Context, state: State) -> Iterator[e.EvidenceMoved]:
    """Evidence that a full disk had refused: before a launch there is room."""
    for stall in state.stalls:
        if stall.dir is None or not Path(stall.dir).is_relative_to(context.staging_dir):
            continue
        from watchdog_train.evidence import bundle

        home = context.directory.stall(stall.id)
        if stall.collected and bundle.bring_home(Path(stall.dir), home):
            yield e.EvidenceMoved(stall_id=stall.id, dir=str(home))
