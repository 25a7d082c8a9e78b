"""One short function per action: do it, and yield the events that say so.

An action with an outside effect yields its intent first; the loop makes that durable before it
asks for the next event, so a supervisor that dies in between leaves an open intent, never an
unrecorded deed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import folder_of
from watchdog_train.core.model import JointAnswer, Survey, said, written
from watchdog_train.core.recovery.kill import nobody_left
from watchdog_train.evidence.request import JointRequest
from watchdog_train.store.slots import read_note, read_saves
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import Hands
from watchdog_train.supervisor.observe import SAVES_CAP, Observer
from watchdog_train.supervisor.outbox import run_before_restart
from watchdog_train.supervisor.saved_checkpoints import (
    OutputDirectories,
    note_present,
    resumed_places,
    start_copy,
    start_restore,
)
from watchdog_train.supervisor.tasks import Tasks
from watchdog_train.system.protocol import PASSING

SURVEY_S, SURVEY_AGAIN_S = 60.0, 180.0
"""Limits of a scan of checkpoints, and of the next one after it failed; reading complete files
gets half of it, so that an answer always comes.
"""
JOINT_S = 10.0
"""For reading the bundles of all tasks; on a busy machine most of it is the start of Python."""
AROUND_KILL_S = 10.0
"""What was saved this shortly before the end of an attempt is always checked in full."""


class Performer:
    def __init__(self, context: Context, observer: Observer, hands: tuple[Hands, ...]) -> None:
        self._context = context
        self._hands = {each.host: each for each in hands}
        self._observer = observer
        self._output_dirs: set[str] = set()
        self._save_dirs: set[str] = set()
        self._claims = OutputDirectories(context.directory.run_id, context.cwd, context.system)
        self._world_size: int | None = None

    def perform(  # noqa: PLR0912 - one arm per action
        self, action: a.Action, state: State, observation: a.Observation
    ) -> Iterator[e.AnyEvent]:
        """Perform it; yields events, each intent before its action."""
        match action:
            case a.Several():
                for each in action.actions:
                    yield from self.perform(each, state, observation)
            case a.Record():
                yield from action.events
                of: dict[str, Iterable[Hands | Tasks]] = {
                    "look": self._hands.values(),
                    "evidence": (self._hands[action.host],),
                }
                for name in action.consumes:
                    for holder in of.get(name, (self._context.tasks,)):
                        holder.discard(name)
            case a.Launch():
                yield from bring_home(self._context, state)
                yield from self._launch(action, state)
            case a.StartLook():
                self._hands[action.host].collect(action, state)
            case a.StartEvidence():
                yield from self._evidence(action, state)
            case a.StartJoint():
                self._context.tasks.ask(
                    "joint",
                    JointRequest(bundles=action.bundles),
                    self._context.staging_dir,
                    JointAnswer,
                    lambda problem: JointAnswer(explanation=None, problem=problem),
                    deadline_s=JOINT_S,
                )
            case a.StartSurvey():
                self._survey(action, state, observation)
            case a.RunCommands():
                yield from run_before_restart(self._context, action, state)
            case a.KeepCopy():
                start_copy(self._context, action, state)
            case a.RestoreCopy():
                start_restore(self._context, action)
            case a.Signal():
                yield from self._signal(action)
            case a.AskStop() | a.AskSave():
                yield self._ask(action, state)
            case a.CleanUp():
                yield self._hands[action.host].clean_up(state)
            case a.Wait():
                return

    def _ask(self, action: a.AskStop | a.AskSave, state: State) -> e.StopAsked | e.SaveRequested:
        control = self._context.control
        if isinstance(action, a.AskSave):
            # The page of a run continued after a reboot is new, its numbers are not.
            number = max(action.number, state.save_requested + 1)
            sequence = control.request_save(number) if control is not None else 0
            # All ranks have to hear of it under one number.
            action = msgspec.structs.replace(action, number=sequence or number)
        for each in self._hands.values():
            each.ask(action)
        if isinstance(action, a.AskSave):
            return e.SaveRequested(
                by=action.by,
                sequence=sequence,
                can_be_asked=action.can_be_asked,
            )
        return e.StopAsked(
            sequence=control.request_stop() if control is not None else 0,
            can_be_asked=action.can_be_asked,
            why=action.why,
            step=action.step,
            expects_save=action.expects_save,
        )

    def _launch(self, action: a.Launch, state: State) -> Iterator[e.AnyEvent]:
        token, hosts = os.urandom(16).hex(), action.hosts
        if not state.attempts:
            named = self._context.policy.recovery.checkpoints
            note_present(self._context.directory, state.argv, state.cwd, named)
        where = hosts if hosts != ("",) else msgspec.UNSET
        yield e.AttemptLaunching(token=token, plan=action.plan, where=where)
        for host in hosts:
            yield from self._launch_on(host, action, token, state)

    def _launch_on(
        self, host: str, action: a.Launch, token: str, state: State
    ) -> Iterator[e.AnyEvent]:
        try:
            self._hands[host].launch(action.plan, token, state)
        except OSError as error:
            # At the first launch a person is there to read it.
            if state.attempts and error.errno in PASSING and len(action.hosts) == 1:
                yield e.LaunchPostponed(why=said(error.strerror or str(error)))
                return
            yield e.AttemptExited(
                where=written(host),
                code=None,
                signal=None,
                how_known="not-started",
                step=None,
                error=said(str(error)),
            )

    def _evidence(self, action: a.StartEvidence, state: State) -> Iterator[e.AnyEvent]:
        yield e.EvidenceCollecting(
            where=written(action.host),
            stall_id=action.stall_id,
            why=action.bundle_why,
            dir=folder_of(str(self._context.directory.stall(action.stall_id)), action.host),
        )
        self._hands[action.host].collect(action, state)

    def _survey(self, action: a.StartSurvey, state: State, observation: a.Observation) -> None:
        # With all formats of checkpoints, which most runs never ask for.
        from watchdog_train.checkpoints.find import place_options
        from watchdog_train.checkpoints.survey import SurveyRequest

        context = self._context
        self.note_training(observation)
        saves = [
            save
            for attempt in state.attempts
            for save in read_saves(context.directory.attempt(attempt.attempt), SAVES_CAP)
        ]
        if context.slot_dir is not None:  # what the run directory had no room for
            saves += read_saves(context.slot_dir, SAVES_CAP)
        named = context.policy.recovery.checkpoints
        places = named or tuple(sorted(self._output_dirs | resumed_places(state)))
        if not (places or saves or place_options(state.argv, state.cwd)):
            # Nowhere to look: that is an answer, and no scan that could fail.
            context.tasks.survey = Survey(findings=(), directories=())
            return
        deadline_s = SURVEY_AGAIN_S if action.again else SURVEY_S
        attempt = state.attempt
        is_empty = nobody_left(observation)
        ended = attempt is None or attempt.tree_gone or (attempt.ended and is_empty)
        trees = [tree for each in state.attempts for tree in each.trees]
        now = observation.wall if ended else 0.0
        ended_at = max((tree.gone_at or now for tree in trees), default=0.0)
        request = SurveyRequest(
            directories=places,
            only_directories=bool(named),
            saves=tuple(sorted(saves, key=lambda save: save.t)),
            argv=state.argv,
            cwd=state.cwd,
            level=action.level,
            full_since=ended_at - AROUND_KILL_S if ended_at else None,
            world_size=self._world_size,
            # An earlier leader may have begun the training: what was there before is unknown then.
            began=state.started_at if state.attempts and state.attempts[0].token else None,
            present=str(context.directory.present),
            running=observation.training,
            kept=state.kept,
            settle_s=0.0 if ended else 2.0,
            budget_s=deadline_s / 2,
        )
        number = attempt.attempt if attempt is not None else 0
        try:
            context.tasks.scan_checkpoints(
                request,
                context.staging_dir,
                keep=context.directory.attempt(number) / "survey.json",
                deadline_s=deadline_s,
            )
        except OSError as error:
            self._observer.could_not_start(error.strerror or str(error), observation.now)

    def note_training(self, observation: a.Observation) -> None:
        """Record what only a living training shows: its output folders, its world size."""
        slot_dir = self._context.slot_dir
        if slot_dir is None:
            return
        self._save_dirs.update(os.path.dirname(save.path) for save in observation.saves[-1:])
        for member, slot in observation.sample.judged:
            self._world_size = slot.world_size or self._world_size
            note = read_note(slot_dir, member.member.pid)
            if note is not None:
                self._output_dirs.update(note.output_dirs[:16])

    def claim_directories(self, state: State) -> Iterator[e.CheckpointsShared]:
        """Claim directories where the training is known to write; an event for each conflict."""
        context = self._context
        job = state.task.job if state.task is not None else None
        known = (*context.policy.recovery.checkpoints, *sorted(self._output_dirs | self._save_dirs))
        yield from self._claims.claim(known, job=job)

    def close(self) -> None:
        self._claims.release()

    def _signal(self, action: a.Signal) -> Iterator[e.AnyEvent]:
        yield e.Signalling(
            where=written(action.host),
            sequence=action.sequence,
            stage=action.stage,
            targets=action.targets,
            signal=action.signal,
            why=action.why,
        )
        if action.signal:
            sent = tuple(self._hands[action.host].signal(action))
            yield e.Signalled(where=written(action.host), sent=sent)


def bring_home(context: Context, state: State) -> Iterator[e.EvidenceMoved]:
    """Evidence that a full disk had refused: before a launch there is room."""
    for stall in state.stalls:
        if stall.dir is None or not Path(stall.dir).is_relative_to(context.staging_dir):
            continue
        from watchdog_train.evidence import bundle

        home = context.directory.stall(stall.id)
        if stall.collected and bundle.bring_home(Path(stall.dir), home):
            yield e.EvidenceMoved(stall_id=stall.id, dir=str(home))
