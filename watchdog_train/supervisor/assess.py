"""What the looks at one attempt amount to: its verdict, its pace, what gets worse, what runs out.

The rules are those of core; here is only the memory that they need from one look to the next.
"""

from __future__ import annotations

import os

from watchdog_train.core.actions import Sleep
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.detection.detect import Signs, Verdict, signs, verdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Ahead, Phase, Sample, SaveRecord, Straggler
from watchdog_train.core.notices import ahead as outlooks
from watchdog_train.core.notices import pace as paces
from watchdog_train.core.notices import straggler as stragglers
from watchdog_train.core.starting.jobs import is_part_of_more
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.room_watch import RoomWatch


class Assessor:
    """The memory of one attempt's looks."""

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self._part_of_more = is_part_of_more(context.environment)
        self._room_watch = RoomWatch()
        self._track = tracks.new_track(now)
        self._pace = paces.Pace()
        self._standing = stragglers.Standing()
        self._outlook = outlooks.Outlook()
        self.verdict = Verdict(kind="alive")
        self.signs = Signs()
        self.busy_at = now
        """When the processes were last seen to work."""

    def begin(self, state: State, now: float) -> None:
        """Another attempt: phases and totals start anew; what was said of the run stays said."""
        self._track = tracks.new_track(now)
        self._pace = paces.Pace()
        self._standing = stragglers.Standing(open=state.straggler)
        self._outlook = outlooks.resumed(state.warned, now) if state.warned else outlooks.Outlook()
        self.verdict = Verdict(kind="alive")

    @property
    def progress_at(self) -> float:
        """When any rank was last seen to progress; 0: never."""
        return self._track.progress_at

    def lengthen(self, phase: Phase) -> None:
        """A stall recovered by itself: that phase gets longer budgets from now on."""
        self._track = tracks.lengthen(self._track, phase)

    def advance(
        self,
        sample: Sample,
        state: State,
        now: float,
        saves: tuple[SaveRecord, ...] | None,
        *,
        all_heard: bool = True,
    ) -> None:
        """One look more; `saves` while there is a training that saves."""
        context = self._context
        detection = context.policy.detection
        self._track = tracks.advance(self._track, sample, detection)
        self._pace = paces.advance(self._pace, sample)
        self._standing = stragglers.advance(self._standing, sample)
        if saves is not None:
            self._look_ahead(sample, now, saves)
        activity = self._track.activity
        self.busy_at = activity.quiet_since if activity.quiet_windows else now
        self.signs = signs(self._track, sample, detection)
        self.verdict = verdict(
            self._track,
            sample,
            detection,
            elsewhere_quiet=self._elsewhere_quiet(state, all_heard=all_heard),
        )

    def _elsewhere_quiet(self, state: State, *, all_heard: bool) -> bool:
        """Whether no rank of the world works where we do not look, as far as is known."""
        if state.crew is not None:
            return all_heard
        nodes = state.launcher.nodes if state.launcher is not None else 1
        return self.signs.whole is not False or (nodes == 1 and not self._part_of_more)

    @property
    def quiet(self) -> bool:
        """Whether the newest windows were quiet ones."""
        return self._track.quiet_windows > 0

    @property
    def straggler(self) -> Straggler | None:
        """The rank that comes last in most steps, while one does."""
        return self._standing.open

    @property
    def ahead(self) -> tuple[Ahead, ...]:
        """What goes wrong if nobody acts."""
        return self._outlook.open

    def steps_s(self, now: float) -> float | None:
        """The present pace, steps a second."""
        return paces.steps_s(self._pace, now)

    def slept(self) -> Sleep | None:
        """The newest time in which nobody looked."""
        track = self._track
        if track.slept_at is None:
            return None
        return Sleep(at=track.slept_at, seconds=track.slept_s, machine=track.slept_machine)

    def _look_ahead(self, sample: Sample, now: float, saves: tuple[SaveRecord, ...]) -> None:
        places = [self._context.cwd, str(self._context.directory.path)]
        places += [os.path.dirname(save.path) for save in saves[-1:]]
        room = self._room_watch.newest(now, places)
        self._outlook = outlooks.advance(self._outlook, sample, room, saves=saves)
