"""What the rooms of one supervisor share; built once by a run or an adoption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.remedies import Remedies
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.store.control import ControlPage
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.store.trace_file import TraceFile
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.display import Display
from watchdog_train.supervisor.hands.launch import LaunchedKeeper
from watchdog_train.supervisor.hands.streams import Ends
from watchdog_train.supervisor.signals import SignalQueue
from watchdog_train.supervisor.tasks import Tasks
from watchdog_train.supervisor.terminal import Terminal
from watchdog_train.system.protocol import ProcessSystem

if TYPE_CHECKING:
    from watchdog_train.supervisor.hands.link.peers import Link
    from watchdog_train.supervisor.hands.remote import Machines


class Context(msgspec.Struct):
    directory: RunDirectory
    policy: Policy
    system: ProcessSystem
    log: EventLog
    trace: TraceFile
    children: ChildTable
    tasks: Tasks
    signals: SignalQueue
    remedies: Remedies
    scope: str
    cwd: str
    slot_dir: Path | None
    """None: there is no place for heartbeats, which the log says."""
    control: ControlPage | None
    staging_dir: Path
    """Local and private, for evidence before it reaches the run directory."""
    terminal: Terminal
    display: Display
    environment: dict[str, str]
    """The user's environment at the start of the run."""
    foreground: bool = True
    """Output is shown, and Ctrl-C reaches us."""
    ignore_hup: bool = False
    """Started with nohup."""
    oom_kills_before: int | None = None
    unled: JobTask | None = None
    """A step without a leader: its tasks may be a sweep, or train one world."""
    link: Link | None = None
    """To the other tasks of a job that has a leader."""
    machines: Machines | None = None
    """The agents of a leader; None for any other supervisor."""
    keeper: LaunchedKeeper | None = None
    """Keeper of the present attempt, if this supervisor started it."""

    ends: Ends | None = None
    """Our ends of the attempt's streams, so that training can write on without its keeper."""

    def launched(self, keeper: LaunchedKeeper) -> None:
        """A new attempt's keeper; the streams of the previous one are closed."""
        self.let_go()
        self.keeper, self.ends = keeper, keeper.ends

    def let_go(self) -> None:
        """Close our ends of the training's output."""
        if self.ends is not None:
            self.ends.close_reads()
            self.ends = None
