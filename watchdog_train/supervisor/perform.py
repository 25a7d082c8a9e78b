"""One short function per action: do it, and yield the events that say so.

An action with an outside effect yields its intent first; the loop makes that durable before it
asks for the next event, so a supervisor that dies in between leaves an open intent, never an
unrecorded deed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.detection.track import judged
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Plan, ProcessId, Survey, said
from watchdog_train.core.recovery.giving_up import stops_what_began_anew
from watchdog_train.core.starting.launchers import rank_streams
from watchdog_train.report.why_text import why_text, with_text
from watchdog_train.store.slots import read_note, read_saves, sweep_slots
from watchdog_train.supervisor.bring_home import bring_home
from watchdog_train.supervisor.commands import run_before_restart
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.deliver import deliver
from watchdog_train.supervisor.directories import (
    MOST_PLACES,
    OutputDirectories,
    places_of_all,
    resumed_places,
    runs_of_peers,
)
from watchdog_train.supervisor.evidence_requests import EvidenceRequests, joint_request
from watchdog_train.supervisor.job import replace_supervisor
from watchdog_train.supervisor.keeping import start_copy, start_restore
from watchdog_train.supervisor.launch import LaunchContext, start_keeper
from watchdog_train.supervisor.observe import SAVES_CAP, Observer
from watchdog_train.system.protocol import PASSING
from watchdog_train.trusted_files import make_folder
from watchdog_train.whole_files import replace_whole

SURVEY_S, SURVEY_AGAIN_S = 60.0, 180.0
"""Deadline of a scan of checkpoints, and of the next one after it failed; reading whole files gets
half of it, so that an answer always comes."""
JOINT_S = 10.0
"""For reading the bundles of all tasks; on a busy machine most of it is the start of Python."""
AROUND_KILL_S = 10.0
"""What was saved this shortly before the end of an attempt is always checked in full."""


class Performer:
    """Performs actions for one run."""

    def __init__(self, context: Context, observer: Observer) -> None:
        self._context = context
        self._observer = observer
        self._output_dirs: set[str] = set()
        self._save_dirs: set[str] = set()
        self._claims = OutputDirectories(context.run_id, context.cwd)
        self._world_size: int | None = None
        self._ended_wall: float | None = None

    def perform(  # noqa: PLR0912 - one arm per action
        self, action: a.Action, state: State, observation: a.Observation
    ) -> Iterator[e.AnyEvent]:
        """Do it; yields events, intents before their deeds."""
        match action:
            case a.Record():
                yield from action.events
                for name in action.consumes:
                    self._context.tasks.discard(name)
            case a.Launch():
                yield from bring_home(self._context, state)
                yield from self._launch(action.plan, state)
            case a.StartLook():
                self._look(action, state, observation)
            case a.StartEvidence():
                yield from self._evidence(action, state, observation)
            case a.StartJoint():
                self._diagnose_together(action)
            case a.StartSurvey():
                self._survey(action, state, observation)
            case a.RunCommands():
                yield from run_before_restart(self._context, action, state)
            case a.KeepCopy():
                start_copy(self._context, action, state)
            case a.RestoreCopy():
                start_restore(self._context, action)
            case a.Signal():
                yield from self._signal(action, observation)
            case a.AskStop() | a.AskSave():
                yield self._ask(action, state)
            case a.CleanUp():
                self._ended_wall = time.time()
                yield self._clean_up(state)
            case a.TakeOver():
                yield from self._take_over(action)
            case a.Wait():
                return

    def _ask(self, action: a.AskStop | a.AskSave, state: State) -> e.StopAsked | e.SaveRequested:
        """Through the control page."""
        control = self._context.control
        if isinstance(action, a.AskSave):
            # The page of a run that goes on after a reboot is new, its numbers are not.
            number = max(action.number, state.save_requested + 1)
            sequence = control.request_save(number) if control is not None else 0
            return e.SaveRequested(
                by=action.by,
                relayed=action.relayed,
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

    def _take_over(self, action: a.TakeOver) -> Iterator[e.AnyEvent]:
        yield e.PeerLost(task=action.task, pid=action.pid, run_id=action.run_id, why=action.why)
        problem = replace_supervisor(action, self._context.children)
        if problem is not None:
            self._context.display.say(
                f"wtrain: {why_text(action.why)}, and cannot be replaced: {problem}"
            )

    def _launch(self, plan: Plan, state: State) -> Iterator[e.AnyEvent]:
        context = self._context
        token = os.urandom(16).hex()
        yield e.AttemptLaunching(token=token, plan=plan)
        attempt_dir = context.directory.attempt(plan.attempt)
        if context.control is not None:
            # Requests to the attempt before must not make this one save and stop at its first step.
            job = context.job
            context.control.begin_attempt(job.task.tasks if job is not None else 1)
        run = LaunchContext(
            run_id=context.run_id,
            token=token,
            scope=context.scope,
            run_dir=context.directory.path,
            cwd=Path(context.cwd),
            slot_dir=context.slot_dir,
            log_cap_bytes=context.policy.output.log_cap_bytes,
            ignore_hup=context.ignore_hup,
            rank_streams=rank_streams(state.launcher) if context.policy.output.rank_logs else 0,
            is_shown=context.foreground,
            environment=context.environment,
            hold_saves=stops_what_began_anew(context.policy),
        )
        try:
            make_folder(attempt_dir)
            # Of a keeper that was killed while it started.
            (attempt_dir / "keeper.json").unlink(missing_ok=True)
            replace_whole(
                context.directory.plan(plan.attempt),
                msgspec.json.format(msgspec.json.encode(with_text(plan))),
            )
            launched = start_keeper(run, plan, attempt_dir, context.terminal, context.children)
        except OSError as error:
            # At the first launch somebody is there to be told.
            if state.attempts and error.errno in PASSING:
                yield e.LaunchPostponed(why=said(error.strerror or str(error)))
                return
            yield e.AttemptExited(
                code=None, signal=None, how_known="not-started", step=None, error=said(str(error))
            )
            return
        context.launched(launched)
        if context.foreground:
            context.display.follow(launched.streams, gates=launched.ends.take_gates())

    def _look(self, action: a.StartLook, state: State, observation: a.Observation) -> None:
        requests = self._requests(state, observation)
        self._context.tasks.collect(requests.look(action.verdict))

    def _evidence(
        self, action: a.StartEvidence, state: State, observation: a.Observation
    ) -> Iterator[e.AnyEvent]:
        request = self._requests(state, observation).bundle(action)
        yield e.EvidenceCollecting(
            stall_id=action.stall_id, why=action.bundle_why, dir=request.out_dir
        )
        self._context.tasks.collect(request)

    def _requests(self, state: State, observation: a.Observation) -> EvidenceRequests:
        others = self._observer.gpu_others()
        return EvidenceRequests(self._context, state, observation, gpu_others=others)

    def _diagnose_together(self, action: a.StartJoint) -> None:
        request, folder = joint_request(self._context, action), self._context.staging_dir
        self._context.tasks.diagnose_together(request, folder, deadline_s=JOINT_S)

    def _survey(self, action: a.StartSurvey, state: State, observation: a.Observation) -> None:
        # With all formats of checkpoints, which most runs never ask for.
        from watchdog_train.checkpoints.find import place_options
        from watchdog_train.checkpoints.records import Running
        from watchdog_train.checkpoints.survey import SurveyRequest

        context = self._context
        self.note_training(observation)
        saves = [
            save
            for directory in (context.directory, *runs_of_peers(observation, state))
            for attempt in state.attempts
            for save in read_saves(directory.attempt(attempt.attempt), SAVES_CAP)
        ]
        if context.slot_dir is not None:  # what the run directory had no room for
            saves += read_saves(context.slot_dir, SAVES_CAP)
        named = context.policy.recovery.checkpoints
        places = named or places_of_all(
            self._output_dirs | resumed_places(state), observation, state
        )
        if not (places or saves or place_options(state.argv, state.cwd)):
            # Nowhere to look: that is an answer, and no scan that could fail.
            context.tasks.survey = Survey(findings=(), directories=())
            return
        deadline_s = SURVEY_AGAIN_S if action.again else SURVEY_S
        attempt = state.attempt
        ended = attempt is None or attempt.tree_gone
        running = observation.training
        request = SurveyRequest(
            directories=places,
            only_directories=bool(named),
            saves=tuple(sorted(saves, key=lambda save: save.t)),
            argv=state.argv,
            cwd=state.cwd,
            level=action.level,
            full_since=self._ended_wall - AROUND_KILL_S if self._ended_wall else None,
            world_size=self._world_size,
            running=Running(home=running.home, nth=running.nth) if running is not None else None,
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

    def places(self) -> tuple[str, ...]:
        """Where the training of this run saves, as far as it has told."""
        cwd, known = self._context.cwd, sorted(self._output_dirs | self._save_dirs)
        return tuple(os.path.join(cwd, each) for each in known[:MOST_PLACES])

    def note_training(self, observation: a.Observation) -> None:
        """Remember what only the living training tells: its output folders, its world size."""
        slot_dir = self._context.slot_dir
        if slot_dir is None:
            return
        self._save_dirs.update(os.path.dirname(save.path) for save in observation.saves[-1:])
        for member, slot in judged(observation.sample):
            self._world_size = slot.world_size or self._world_size
            note = read_note(slot_dir, member.member.pid)
            if note is not None:
                self._output_dirs.update(note.output_dirs[:16])

    def claim_directories(self) -> Iterator[e.CheckpointsShared]:
        """Take what has become known of where the training writes; an event for each conflict."""
        context = self._context
        job = context.job.task.job if context.job is not None else None
        known = (*context.policy.recovery.checkpoints, *sorted(self._output_dirs))
        yield from self._claims.claim(known, job=job)

    def close(self) -> None:
        """Give the directories of the training back."""
        self._claims.release()

    def _signal(self, action: a.Signal, observation: a.Observation) -> Iterator[e.AnyEvent]:
        yield e.Signalling(
            sequence=action.sequence,
            stage=action.stage,
            targets=action.targets,
            signal=action.signal,
            why=action.why,
        )
        if action.signal == 0:
            return
        roles = {s.member.identity: s.member.role for s in observation.sample.members}
        yield from deliver(action, roles, self._context.system, self._observer.end_group)

    def _clean_up(self, state: State) -> e.TreeGone:
        """Remove what a killed tree leaves in shared memory, as far as it is known to be its own.

        Names of torch carry a pid of ours; a semaphore was mapped by a member, and is by nobody
        now. Other names (psm_*) say nothing about their owner: the kill order lets the resource
        trackers remove those.
        """
        context = self._context
        ours = self._observer.members_ever()
        semaphores = self._observer.unused_semaphores()
        removed = []
        for name in sorted(context.system.shared_memory_names() or ()):
            match = re.fullmatch(r"torch_(\d+)_\d+_\d+", name)
            known = name in semaphores or (match is not None and int(match[1]) in ours)
            if known and context.system.remove_shared_memory(name):
                removed.append(name)
        if context.slot_dir is not None:
            sweep_slots(context.slot_dir, lambda pid, start: self._is_alive(ProcessId(pid, start)))
        left = tuple(
            daemon
            for daemon in (*state.left, *state.daemons)
            if daemon.is_left and context.system.is_alive(daemon.process) is not False
        )
        return e.TreeGone(shared_memory_removed=tuple(removed), left=left)

    def _is_alive(self, who: ProcessId) -> bool | None:
        system = self._context.system
        # A slot without a start time: alive is whoever has that pid now.
        return system.identity(who.pid) is not None if who.start == 0 else system.is_alive(who)
