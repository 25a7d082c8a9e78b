"""Look at everything once: exits, requests, finished tasks, slots and the tree. Sends nothing."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from watchdog_train.core.actions import Observation, Request, Told, TreeSight
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.detection.detect import Signs, Verdict, signs, verdict
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import (
    Phase,
    Sample,
    SaveRecord,
    newest_checkpoint,
    together,
)
from watchdog_train.core.model.gpu import GpuHold
from watchdog_train.core.notices import pace as paces
from watchdog_train.core.notices import straggler as stragglers
from watchdog_train.core.notices import warnings as outlooks
from watchdog_train.core.requests.asking import awaits_proof
from watchdog_train.core.starting.jobs import is_part_of_more
from watchdog_train.core.trace import TraceWriter
from watchdog_train.store.side_files import SideFiles
from watchdog_train.store.slots import read_saves
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import Hands
from watchdog_train.supervisor.master_port import NextPort
from watchdog_train.supervisor.resources import ResourceMeter, RestartRoom
from watchdog_train.supervisor.saved_checkpoints import SavesSeen
from watchdog_train.system.protocol import BlindError
from watchdog_train.trusted_files import names


class Assessor:
    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self._part_of_more = is_part_of_more(context.environment)
        self._resources = ResourceMeter()
        self.begin(State(), now)
        self.signs = Signs()
        self.busy_at = now
        """When the processes last worked."""

    def begin(self, state: State, now: float) -> None:
        """Another attempt: phases and totals start again; a straggler and given warnings stay."""
        self.track = tracks.new_track(now)
        self.pace = paces.Pace()
        self.standing = stragglers.Standing(open=state.straggler)
        self.outlook = outlooks.resumed(state.warned, now) if state.warned else outlooks.Outlook()
        self.verdict = Verdict(kind="alive")

    def lengthen(self, phase: Phase) -> None:
        """A stall recovered by itself: that phase gets longer limits from now on."""
        self.track = tracks.lengthen(self.track, phase)

    def advance(
        self,
        sample: Sample,
        state: State,
        now: float,
        saves: tuple[SaveRecord, ...] | None,
        *,
        all_heard: bool = True,
    ) -> None:
        """Assess one more sample; `saves` while there is a training that saves."""
        context = self._context
        detection = context.policy.detection
        self.track = tracks.advance(self.track, sample, detection)
        self.pace = paces.advance(self.pace, sample)
        self.standing = stragglers.advance(self.standing, sample)
        if saves is not None:
            places = [context.cwd, str(context.directory.path)]
            places += [os.path.dirname(save.path) for save in saves[-1:]]
            room = self._resources.newest(now, places)
            self.outlook = outlooks.advance(self.outlook, sample, room, saves=saves)
        activity = self.track.activity
        self.busy_at = activity.quiet_since if activity.quiet_windows else now
        self.signs = signs(self.track, sample, detection)
        self.verdict = verdict(
            self.track,
            sample,
            detection,
            elsewhere_quiet=self._elsewhere_quiet(state, all_heard=all_heard),
        )

    def _elsewhere_quiet(self, state: State, *, all_heard: bool) -> bool:
        """Whether no rank of another machine works, if known."""
        if state.crew is not None:
            return all_heard
        nodes = state.launcher.nodes if state.launcher is not None else 1
        return self.signs.whole is not False or (nodes == 1 and not self._part_of_more)


CALM_S = 120.0
"""After such a time with progress in every sample, samples are half as frequent."""
QUICK_LOOK_S = 0.01
"""Minimum time between samples while processes are started or stopped; see QUICK_LOOK_SHARE."""
QUICK_LOOK_SHARE = 0.2
"""Maximum share of a core for them: among thousands of processes one may take 100 ms."""
SAVES_CAP = 1000


class Observer:
    """Makes observations; keeps only what one attempt needs."""

    def __init__(self, context: Context, hands: tuple[Hands, ...]) -> None:
        self._context = context
        self._hands = hands
        self._attempt = -1
        self._next_look = 0.0
        self._interval_s = 0.0
        self._quick_look_s = QUICK_LOOK_S
        now = context.system.monotonic()
        self._assessor = Assessor(context, now)
        self._room = RestartRoom(context.directory.path)
        self._sample = together((), at=now)
        self._bundles = 0
        self._side_files = SideFiles(context.slot_dir)
        self._ends_heard = self._looks_heard = 0
        self._blind: str | None = None
        self._blind_since = 0.0
        """Since the first sample that failed."""
        self._calm_since = 0.0
        """Since the newest sample without progress."""
        self._trace: TraceWriter | None = None
        self.requests: deque[Request] = deque()
        self._next_port = NextPort(context.environment)
        self._saves = SavesSeen(context)

    def could_not_start(self, why: str, now: float) -> None:
        self._room.met(why, now)

    def lengthen(self, state: State, stall_id: str) -> None:
        """A stall recovered by itself: that phase gets longer limits from now on."""
        stall = state.stall(stall_id)
        if stall is not None:
            self._assessor.lengthen(stall.phase)

    def sample_by(self, moment: float) -> None:
        """Take the next sample at that time, if not before."""
        self._next_look = min(self._next_look, moment)

    @property
    def rests_until(self) -> float:
        """The next sample, while every one of two minutes has found progress; else 0."""
        return self._next_look if self._is_calm else 0.0

    @property
    def _is_calm(self) -> bool:
        return self._sample.at - self._calm_since > CALM_S

    def close(self) -> None:
        for each in self._hands:
            each.close()

    def observe(self, state: State) -> Observation:
        context = self._context
        context.children.poll()
        context.tasks.poll()
        now = context.system.monotonic()
        attempt = state.attempt
        self._follow(state, now)
        if context.machines is not None:
            context.machines.poll(state, now)
        idle = attempt is None or attempt.tree_gone
        for each in self._hands[1:] if idle else self._hands:
            each.hear(state, now)
        sights = self._sights()
        if attempt is not None and not idle:
            self._hear_ends(sights)
            # A sample from before the exit would show its root alive, as if it outlived the exit.
            known_at = max(each.exit_known_at for each in self._hands)
            thorough = not attempt.ended or self._sample.empty_looks > 0
            if self._sample.at < known_at or (self._sample.at == known_at and not thorough):
                self.sample_by(now)
            elif is_hurried(state):
                # What begins to end is not left until a healthy run's next look.
                self.sample_by(self._sample.at + self._quick_look_s)
            self._hear_looks(sights, now)
            if now >= self._next_look:
                sights = self._look(state, attempt, now)
                taken_s = context.system.monotonic() - now
                self._quick_look_s = max(QUICK_LOOK_S, taken_s / QUICK_LOOK_SHARE)
        told = [sight.told for sight in sights]
        judged = [slot.resumed_step for _, slot in self._sample.judged]
        resumed = [step for step in judged if step is not None]
        tasks = context.tasks
        between = attempt is not None and attempt.ended and not state.finished
        short = no_room = no_save_room = None
        if between:
            short = self._room.short(now) or _lacking(sights, lambda told: told.short)
        if _waits_for_launch(state):
            no_room, no_save_room = self._room.look(state, now)
            no_room = no_room or _lacking(sights, lambda told: told.no_room)
        return Observation(
            now=now,
            wall=time.time(),
            trees=sights,
            sample=self._sample,
            verdict=self._assessor.verdict,
            request=self.requests.popleft() if self.requests else None,
            running=tasks.running,
            survey=tasks.survey,
            joint=tasks.joint,
            kept=tasks.keep,
            restored=tasks.restore,
            commands=tasks.commands,
            saves=self._saves.look(attempt, now),
            other_port=self._next_port.port(state) if idle and state.next_plan is None else None,
            settings=(
                *self._side_files.settings(self._sample, attempt),
                *chain.from_iterable(each.settings for each in told),
            ),
            places=(*self._side_files.places(), *chain.from_iterable(each.places for each in told)),
            hooks=(*self._side_files.hooks(), *chain.from_iterable(each.hooks for each in told)),
            training=self._side_files.training(),
            resume_options=self._side_files.resume_options(),
            tasks=self._side_files.tasks(),
            not_resumed=self._side_files.not_resumed()
            or next((each.not_resumed for each in told if each.not_resumed), None),
            last_save=self._last_save(state, attempt),
            bundles=self._bundles,
            resumed_step=max(resumed, default=None),
            signs=self._assessor.signs,
            busy_at=self._assessor.busy_at,
            slept=self._assessor.track.slept,
            straggler=self._assessor.standing.open,
            ahead=self._assessor.outlook.open,
            gpu_hold=self._gpu_hold(state, now),
            short=short,
            no_room=no_room,
            no_save_room=no_save_room,
            gpu_trouble=_lacking(sights, lambda told: told.gpu_trouble),
            blind=self._blind,
            steps_s=paces.steps_s(self._assessor.pace, now),
        )

    def _gpu_hold(self, state: State, now: float) -> GpuHold | None:
        """Of the machine that the launch has to wait for, if any."""
        if not _waits_for_launch(state):
            return None
        holds = [hold for each in self._hands if (hold := each.gpu_hold(now)) is not None]
        return next((hold for hold in holds if not hold.is_free), holds[0] if holds else None)

    def _follow(self, state: State, now: float) -> None:
        """Forget the last attempt when a new one begins: phases and totals start again."""
        attempt = state.attempt
        number = attempt.attempt if attempt is not None else 0
        if number == self._attempt:
            return
        self._attempt = number
        for each in self._hands:
            each.begin(now)
        self._assessor.begin(state, now)
        self._sample = together((), at=now)
        self._next_look = 0.0
        self._ends_heard = self._looks_heard = 0
        self._side_files.forget()
        self._saves.forget()

    def _sights(self) -> tuple[TreeSight, ...]:
        """Computed once: for a thousand machines they cost more than all the rest."""
        return tuple(each.sight for each in self._hands)

    def _look(self, state: State, attempt: AttemptRecord, now: float) -> tuple[TreeSight, ...]:
        context = self._context
        detection = context.policy.detection
        planned = self._blind_since or self._next_look
        late_s = max(0.0, now - planned) if planned else 0.0
        poll_s = 2 * detection.poll_s if self._is_calm else detection.poll_s
        self._interval_s = self._quick_look_s if is_hurried(state) else poll_s
        self._next_look = now + self._interval_s
        self._bundles = _largest_number(context.directory.stalls)
        try:
            for each in self._hands:
                each.sample(state, now, late_s=late_s, quiet=self._assessor.track.quiet_windows > 0)
        except BlindError as error:  # what was seen last stays what is known
            self._blind, self._blind_since = error.strerror, planned or now
            return self._sights()
        self._blind, self._blind_since = None, 0.0
        sights = self._sights()
        self._sample = together([sight.sample for sight in sights], at=now)
        self._side_files.look(sights[0].sample)
        self._hear_ends(sights)
        saves = self._saves.look(attempt, now) if attempt.launched and not attempt.ended else None
        heard = all(sight.is_heard for sight in sights)
        self._assessor.advance(self._sample, state, now, saves, all_heard=heard)
        if self._assessor.track.progress_at != now:
            self._calm_since = now
            self.sample_by(now + detection.poll_s)
        self._keep(state, attempt)
        return sights

    def _hear_looks(self, sights: tuple[TreeSight, ...], now: float) -> None:
        """Results of a stack sample count together with a sample of the processes after it."""
        looks = sum(sight.look is not None for sight in sights)
        if looks > self._looks_heard:
            self.sample_by(now)
        self._looks_heard = looks

    def _hear_ends(self, sights: tuple[TreeSight, ...]) -> None:
        """Once a machine: what its training has written between the last sample and its exit."""
        ends = sum(sight.exit is not None for sight in sights)
        if ends > self._ends_heard:
            self._side_files.look_once_more()
        self._ends_heard = ends

    def _keep(self, state: State, attempt: AttemptRecord) -> None:
        context = self._context
        if not attempt.launched:
            return
        if self._trace is None:
            # Times continue those of the previous supervisor, though its clock may be gone.
            age_s = max(0.0, time.time() - (state.started_at or time.time()))
            origin = self._sample.at - age_s
            self._trace = TraceWriter(origin=origin, poll_s=context.policy.detection.poll_s)
        line = self._trace.line(self._sample, attempt.attempt, state.look)
        if line is not None:
            context.trace.append(line)

    def _last_save(self, state: State, attempt: AttemptRecord | None) -> SaveRecord | None:
        if attempt is None or not awaits_proof(state):
            return None
        folder = self._context.directory.attempt(attempt.attempt)
        return newest_checkpoint(save for save in read_saves(folder, SAVES_CAP) if save.files)


def _lacking(sights: tuple[TreeSight, ...], what: Callable[[Told], str | None]) -> str | None:
    """Of the first machine that has the problem; another machine than this is named."""
    lacking = ((sight.host, what(sight.told)) for sight in sights)
    found = (f"{host}: {text}" if host else text for host, text in lacking if text)
    return next(found, None)


def _waits_for_launch(state: State) -> bool:
    attempt = state.attempt
    led = state.task is not None and state.task.task > 0  # its leader has the plan
    return (led or state.next_plan is not None) and attempt is not None and attempt.tree_gone


def is_hurried(state: State) -> bool:
    """Whether the attempt is being started or stopped: then it is sampled more often."""
    attempt = state.attempt
    if attempt is None or attempt.tree_gone:
        return False
    return state.kill is not None or attempt.ended or not attempt.launched


def _largest_number(stalls: Path) -> int:
    try:
        return max((int(name) for name in names(stalls) if name.isdigit()), default=0)
    except OSError:
        return 0
