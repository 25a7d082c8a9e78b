"""Look at everything once: exits, requests, finished tasks, slots and the tree. Sends nothing."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import msgspec

from watchdog_train.core.actions import (
    LaunchReport,
    Observation,
    Request,
    SaveReport,
)
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.job.peers import Signs
from watchdog_train.core.model import MemberSample, Sample, newest_checkpoint
from watchdog_train.core.model.gpu import GpuHold
from watchdog_train.core.requests.asking import awaits_proof
from watchdog_train.core.traces.trace import TraceWriter
from watchdog_train.keeper import EXIT_AT_GATE
from watchdog_train.store.last_words import LastWords
from watchdog_train.store.side_files import SideFiles
from watchdog_train.store.slots import read_saves
from watchdog_train.supervisor.assess import Assessor
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.ending import Ending
from watchdog_train.supervisor.keeping import SavesSeen
from watchdog_train.supervisor.launch import KEEPER
from watchdog_train.supervisor.meeting import Meeting
from watchdog_train.supervisor.records import KeeperRecord, read_keeper
from watchdog_train.supervisor.room import RestartRoom
from watchdog_train.supervisor.sampling import Sampler
from watchdog_train.system.protocol import BlindError
from watchdog_train.trusted_files import names

QUICK_LOOK_S = 0.01
"""Between looks while something is being started or brought down, where looking is cheap."""
QUICK_LOOK_SHARE = 0.2
"""Of a core, for quick looks: among thousands of processes one may take 100 ms."""
SAVES_CAP = 1000


class Observer:
    """Makes observations; remembers only what one attempt needs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._attempt = -1
        self._next_look = 0.0
        self._interval_s = 0.0
        self._quick_look_s = QUICK_LOOK_S
        now = context.system.monotonic()
        self._assessor = Assessor(context, now)
        self._room = RestartRoom(context.directory.path)
        self._sample = _empty(now)
        self._launch: LaunchReport | None = None
        self._ending = Ending(context)
        self._bundles = 0
        self._last_words = LastWords(context.slot_dir)
        self._side_files = SideFiles(context.slot_dir)
        self._sampler = Sampler(context, self._last_words)
        self._judged: tuple[MemberSample, ...] = ()
        self._final: tuple[MemberSample, ...] = ()
        self._blind: str | None = None
        self._blind_since = 0.0
        """Since the look that could not be had."""
        self._trace: TraceWriter | None = None
        self.requests: deque[Request] = deque()
        self._meeting = Meeting(context.environment)
        self._saves = SavesSeen(context)

    @property
    def signs(self) -> Signs:
        """Of our tree at the newest look."""
        return self._assessor.signs

    def members_ever(self) -> frozenset[int]:
        """Pids of everybody who ever belonged to the present attempt."""
        return self._sampler.members_ever()

    def unused_semaphores(self) -> frozenset[str]:
        """Names of those that the present attempt has made and nobody uses."""
        return self._sampler.unused_semaphores()

    def end_group(self) -> bool:
        """The last resort, where the system has it; see system.protocol.ProcessGroup."""
        return self._sampler.end_group()

    def could_not_start(self, why: str, now: float) -> None:
        """What a restart needs could not be started just now."""
        self._room.met(why, now)

    def gpu_others(self) -> tuple[str, ...]:
        """Who else has memory on the job's GPUs, by the newest word of the driver."""
        return self._sampler.gpu_others()

    def lengthen(self, state: State, stall_id: str) -> None:
        """A stall recovered by itself: that phase gets longer budgets from now on."""
        for stall in state.stalls:
            if stall.id == stall_id:
                self._assessor.lengthen(stall.phase)

    def close(self) -> None:
        """End what looks for us."""
        self._sampler.close()
        self._ending.close()

    def observe(self, state: State) -> Observation:
        """Everything seen at this moment."""
        context = self._context
        context.children.poll()
        context.tasks.poll()
        now = context.system.monotonic()
        attempt = state.attempt
        self._follow(state, now)
        if attempt is not None and not attempt.tree_gone:
            self._read_keeper_files(attempt, now)
            if _is_hurried(state, attempt):
                # What begins to end is not left until a healthy run's next look; and a look from
                # before the exit would show its root alive, as something that outlives it.
                old = attempt.ended and self._sample.at < self._ending.known_at
                quick = now if old else self._sample.at + self._quick_look_s
                self._next_look = min(self._next_look, quick)
            if now >= self._next_look:
                self._look(state, attempt, now)
                taken_s = context.system.monotonic() - now
                self._quick_look_s = max(QUICK_LOOK_S, taken_s / QUICK_LOOK_SHARE)
        tasks = context.tasks
        between = attempt is not None and attempt.tree_gone and not state.finished
        short = self._room.short(now) if between else None
        no_room = no_save_room = None
        if _waits_for_launch(state):
            no_room, no_save_room = self._room.look(state, now)
        return Observation(
            now=now,
            wall=time.time(),
            sample=self._sample,
            verdict=self._assessor.verdict,
            request=self.requests.popleft() if self.requests else None,
            launch=self._launch,
            exit=self._ending.status,
            last_words=self._final,
            running=tasks.running,
            look=tasks.look,
            evidence=tasks.evidence,
            survey=tasks.survey,
            joint=tasks.joint,
            kept=tasks.keep,
            restored=tasks.restore,
            commands=tasks.commands,
            saves=self._saves.look(attempt, now),
            other_port=self._other_port(state),
            settings=self._side_files.settings(self._sample, attempt),
            places=self._side_files.places(),
            hooks=self._side_files.hooks(),
            training=self._side_files.training(),
            resume_options=self._side_files.resume_options(),
            tasks=self._side_files.tasks(),
            not_resumed=self._side_files.not_resumed(),
            skipped=self._side_files.skipped(),
            last_save=self._last_save(state, attempt),
            bundles=self._bundles,
            resumed_step=self._resumed_step(),
            signs=self.signs,
            job=context.job.view(now) if context.job is not None else None,
            slept=self._assessor.slept(),
            slow=self._assessor.slow,
            straggler=self._assessor.straggler,
            ahead=self._assessor.ahead,
            gpu_hold=self._gpu_hold(state, now),
            short=short,
            no_room=no_room,
            no_save_room=no_save_room,
            gpu_trouble=self._sampler.gpu_trouble,
            blind=self._blind,
            group_trouble=self._sampler.group_trouble,
            steps_s=self._assessor.steps_s(now),
        )

    def _gpu_hold(self, state: State, now: float) -> GpuHold | None:
        return self._sampler.gpu_hold(now) if _waits_for_launch(state) else None

    def _other_port(self, state: State) -> int | None:
        attempt = state.attempt
        ended = attempt is None or attempt.tree_gone
        return self._meeting.port(state) if ended and state.next_plan is None else None

    def _follow(self, state: State, now: float) -> None:
        """Forget the last attempt when a new one begins: phases and totals start anew."""
        attempt = state.attempt
        number = attempt.attempt if attempt is not None else 0
        if number == self._attempt:
            return
        self._attempt = number
        self._sampler.forget()
        self._assessor.begin(state, now)
        self._sample = _empty(now)
        self._launch = None
        self._ending.close()
        self._ending = Ending(self._context)
        self._next_look = 0.0
        self._judged = self._final = ()
        self._last_words.forget()
        self._side_files.forget()
        self._saves.forget()

    def _read_keeper_files(self, attempt: AttemptRecord, now: float) -> None:
        directory = self._context.directory.attempt(attempt.attempt)
        if self._launch is None:
            record = read_keeper(directory)
            if record is not None and (record.runs or record.error is not None):
                self._launch = self._report(record)
            elif not attempt.launched:
                self._launch = self._without_word(record, directory)
                return
        self._ending.follow(attempt.root)
        if self._ending.read(directory, now):
            self._hear_last_words()

    def _hear_last_words(self) -> None:
        """Steps that were made between the last look and the exit count, too.

        The processes may have left the sample by now: their slots are heard all the same.
        """
        said = self._last_words.read()
        self._side_files.look_once_more()
        self._final = tuple(
            msgspec.structs.replace(member, slot=said.get(member.member.pid, member.slot))
            for member in self._judged
        )

    def _report(self, record: KeeperRecord) -> LaunchReport:
        system = self._context.system
        return LaunchReport(
            root=record.root(system) if record.error is None else None,
            keeper=record.keeper(system),
            error=record.error,
        )

    def _without_word(self, record: KeeperRecord | None, attempt_dir: Path) -> LaunchReport | None:
        """What became of a launch when its keeper has ended in the middle; None while it lives.

        A process that it had forked runs the training only if the keeper gave the word before.
        """
        context, system = self._context, self._context.system
        ours = context.keeper
        if ours is not None and ours.attempt_dir == attempt_dir:
            keeper = ours.child.identity
            lives = ours.child.process.returncode is None
        elif record is not None:
            keeper = record.keeper(system)
            lives = system.is_alive(keeper) is not False
        else:
            return None
        if lives:
            return None
        root = record.root(system) if record is not None else None
        if root is not None:
            ended = context.children.adopted_status(root)
            words = system.command_line(root.pid)
            if ended is None and system.is_alive(root) is not False:
                runs = bool(words) and KEEPER not in (words or ())
                return LaunchReport(root=root, keeper=keeper) if runs else None
            if ended not in (None, EXIT_AT_GATE):
                return LaunchReport(root=root, keeper=keeper)
        return LaunchReport(root=None, keeper=keeper, lost=True)

    def _look(self, state: State, attempt: AttemptRecord, now: float) -> None:
        context = self._context
        detection = context.policy.detection
        planned = self._blind_since or self._next_look
        late_s = max(0.0, now - planned) if planned else 0.0
        self._interval_s = self._quick_look_s if _is_hurried(state, attempt) else detection.poll_s
        self._next_look = now + self._interval_s
        self._bundles = _largest_number(context.directory.stalls)
        sampler = self._sampler
        try:
            self._sample = sampler.sample(
                state,
                attempt,
                self._launch,
                now,
                late_s=late_s,
                quiet=self._assessor.quiet,
            )
        except BlindError as error:  # what was seen last stays what is known
            self._blind, self._blind_since = error.strerror, planned or now
            return
        self._blind, self._blind_since = None, 0.0
        self._side_files.look(self._sample)
        judged = tuple(member for member, _ in tracks.judged(self._sample))
        if judged:
            self._judged = judged
            self._last_words.follow(member.member.pid for member in judged)
        context.children.poll(sampler.rows)
        context.tasks.poll()
        saves = self._saves.look(attempt, now) if attempt.launched and not attempt.ended else None
        self._assessor.advance(self._sample, state, now, saves)
        self._keep(state, attempt)
        if attempt.launched and self._ending.settle(
            context.directory.attempt(attempt.attempt),
            now,
            root_alive=_root_alive(self._sample.members, attempt),
            keeper_alive=bool(self._sample.keeper_alive),
        ):
            self._hear_last_words()

    def _keep(self, state: State, attempt: AttemptRecord) -> None:
        """Add this look to the trace."""
        context = self._context
        if not context.trace.wanted or not attempt.launched:
            return
        if self._trace is None:
            # Times go on where the supervisor before left off, though its clock may be gone.
            age_s = max(0.0, time.time() - (state.started_at or time.time()))
            origin = self._sample.at - age_s
            self._trace = TraceWriter(origin=origin, poll_s=context.policy.detection.poll_s)
        line = self._trace.line(self._sample, attempt.attempt)
        if line is not None:
            context.trace.append(line)

    def _last_save(self, state: State, attempt: AttemptRecord | None) -> SaveReport | None:
        if attempt is None or not awaits_proof(state):
            return None
        folder = self._context.directory.attempt(attempt.attempt)
        newest = newest_checkpoint(read_saves(folder, SAVES_CAP))
        if newest is None:
            return None
        return SaveReport(path=newest.path, step=newest.step, t=newest.t)

    def _resumed_step(self) -> int | None:
        steps = [
            slot.resumed_step
            for _, slot in tracks.judged(self._sample)
            if slot.resumed_step is not None
        ]
        return max(steps, default=None)


def _waits_for_launch(state: State) -> bool:
    attempt = state.attempt
    return state.next_plan is not None and attempt is not None and attempt.tree_gone


def _empty(now: float) -> Sample:
    return Sample(
        at=now,
        members=(),
        cpu_s=None,
        io_bytes=None,
        tcp_bytes=None,
        log_bytes=0,
        births=0,
        deaths=0,
    )


def _is_hurried(state: State, attempt: AttemptRecord) -> bool:
    """Whether something is being started or brought down."""
    return state.kill is not None or attempt.ended or not attempt.launched


def _root_alive(members: tuple[MemberSample, ...], attempt: AttemptRecord) -> bool:
    root = attempt.root
    return root is not None and any(
        sample.member.identity == root and sample.state not in ("Z", "X") for sample in members
    )


def _largest_number(stalls: Path) -> int:
    try:
        return max((int(name) for name in names(stalls) if name.isdigit()), default=0)
    except OSError:
        return 0
