"""What a supervisor does to processes, one machine at a time; it decides nothing.

The core decides, the supervisor asks, hands act. `local` is this machine, inside this process;
`remote` orders the agent of another one.
No other part of the supervisor samples a training, signals it or starts a keeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # so that the process that carries a link loads no more than it needs
    from watchdog_train.core.actions import (
        AskSave,
        AskStop,
        Signal,
        StartEvidence,
        StartLook,
        TaskName,
        TreeSight,
    )
    from watchdog_train.core.events import SentSignal, TreeGone
    from watchdog_train.core.fold.state import State
    from watchdog_train.core.model import Plan
    from watchdog_train.core.model.gpu import GpuHold


class Hands(Protocol):
    host: str
    """Empty: this one."""

    @property
    def sight(self) -> TreeSight:
        """The newest sample, launch, exit and evidence."""

    @property
    def exit_known_at(self) -> float:
        """When the root's exit became known, 0 before; monotonic seconds."""

    def begin(self, now: float) -> None:
        """Another attempt begins: forget the last one."""

    def hear(self, state: State, now: float) -> None:
        """Read new reports about start and exit of the present attempt."""

    def sample(self, state: State, now: float, *, late_s: float, quiet: bool) -> None:
        """Sample every process of the present attempt, `late_s` later than planned.

        Recorded members are ours though their parents may be gone. `quiet`: the sample before found
        no work, so what is expensive to read is read, too.

        Raises:
            BlindError: no process can be sampled now.
        """

    def launch(self, plan: Plan, token: str, state: State) -> None:
        """Start a keeper that starts the plan's command; OSError if nothing was started."""

    def signal(self, action: Signal) -> Iterator[SentSignal]:
        """Send the signals of one stage of a kill, each to a verified identity."""

    def collect(self, action: StartLook | StartEvidence, state: State) -> None:
        """Start a stack sample, or the collection of a bundle."""

    def ask(self, action: AskStop | AskSave) -> None:
        """Ask its ranks to save or stop; this machine's are asked by our own control page."""

    def discard(self, name: TaskName) -> None:
        """Forget a stack sample, or evidence, that has been used."""

    def clean_up(self, state: State) -> TreeGone:
        """Remove what an exited tree has left in shared memory."""

    def gpu_hold(self, now: float) -> GpuHold | None:
        """Processes that hold GPU memory the next attempt needs; between attempts."""

    def close(self) -> None:
        """Stop helper processes and close what they used."""
