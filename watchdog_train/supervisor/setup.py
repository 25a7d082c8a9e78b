"""Build what a supervisor needs: for a new run, and for one whose supervisor is gone."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

import watchdog_train
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ProcessId, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import plans
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.core.starting.launchers import Launcher
from watchdog_train.errors import EXIT_OUR_BUG, WtrainError
from watchdog_train.remedies.catalogue import available, script_lines
from watchdog_train.report.summary import closing_lines
from watchdog_train.report.why_text import why_text
from watchdog_train.reporting import write_plain
from watchdog_train.store import registry
from watchdog_train.store.control import ControlPage
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.lock import Holder, RunLock
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import RunDirectory, sign
from watchdog_train.store.slots import newest_noted_save
from watchdog_train.store.trace_file import TraceFile
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.display import Display
from watchdog_train.supervisor.duplicates import training_key
from watchdog_train.supervisor.hands.launch import KEEPER_CHILD
from watchdog_train.supervisor.hands.link.peers import Link
from watchdog_train.supervisor.loop import Supervisor
from watchdog_train.supervisor.resources import NEEDED_TASKS, WATCHING_TASKS, refuse_little_room
from watchdog_train.supervisor.signals import SignalQueue
from watchdog_train.supervisor.status_files import deserves_whole_page, write_whole_now
from watchdog_train.supervisor.tasks import Tasks
from watchdog_train.supervisor.terminal import terminal_now
from watchdog_train.system import current
from watchdog_train.system.cgroup import oom_kills
from watchdog_train.system.file_systems import (
    private_runtime_directory,
    release_runtime_directory,
)
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.whole_files import replace_whole

WORDS_WITHIN_S = 2.0


def this_supervisor(system: ProcessSystem) -> Holder:
    """Of this process, for the lock and the registry."""
    me = system.identity(os.getpid()) or ProcessId(os.getpid(), 0)
    return Holder(pid=me.pid, start=me.start, host=socket.gethostname(), boot_id=system.boot_id())


def scope_of(system: ProcessSystem) -> str:
    """Host, boot and Slurm job: a token counts only where this is the same."""
    job = ":".join(
        os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_PROCID")
    )
    return f"{socket.gethostname()}/{system.boot_id() or 'unknown'}/{job}"


def take_lock(directory: RunDirectory, system: ProcessSystem) -> RunLock:
    """Hold a run: only then its log is final. WtrainError: held, of another user, or a copy."""
    directory.hold()
    lock = RunLock(directory.lock, this_supervisor(system))
    lock.acquire()
    with suppress(OSError):  # on a full disk the path recorded before stays
        sign(directory.path)
    return lock


def link_of(task: JobTask | None, children: ChildTable) -> Link | None:
    """The link of a task of a job with a leader; imported only then. WtrainError: no connection."""
    if task is None:
        return None
    from watchdog_train.supervisor.hands.link.start import meet

    return meet(task, children)


def _control_page(slot_dir: Path) -> ControlPage | None:
    with suppress(OSError):
        return ControlPage.create(slot_dir / "control")
    return None


def _supervisor_of(context: Context, state: State, task: JobTask | None) -> Supervisor:
    if task is not None and context.link is not None:
        # Not at the top, as in all who meet: a run alone does without the link's modules.
        if task.task:
            from watchdog_train.supervisor.agent import Agent

            return Agent(context, state, context.link)
        from watchdog_train.supervisor.hands.remote import Machines

        context.machines = Machines(context, task, context.link)
    return Supervisor(context, state)


class RunSession:
    """A run held by this process: its lock, its registration and its loop."""

    def __init__(
        self,
        directory: RunDirectory,
        policy: Policy,
        *,
        environment: Mapping[str, str],
        cwd: str,
        on_launched: Callable[[RunSession], None] | None,
        opening: str | None = None,
        state: State | None = None,
        reopen: bool = False,
        lock: RunLock | None = None,
        task: JobTask | None = None,
        children: ChildTable,
        link: Link | None,
    ) -> None:
        """Hold the run, where `state` was read while `lock` was held; without a lock it is taken.

        `reopen`: the run was over. Of a job that is led the first task leads, others are agents.
        `on_launched` is called once, when the first attempt runs, in a session in the background.
        `opening` is the first line printed to the user.

        Raises:
            WtrainError: another supervisor holds it.
        """
        self.directory = directory
        new_slots = state is None or not state.run_id or reopen
        refuse_little_room(NEEDED_TASKS if new_slots else WATCHING_TASKS)
        self.system = system = current()
        self._lock = lock if lock is not None else take_lock(directory, system)
        self.task = task
        ignore_hup = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        # Before the first private directory: a signal that ended us now would leave it behind.
        signals = SignalQueue()
        signals.install()
        try:
            slot_dir = self._slot_dir(None if new_slots else state)
            spill_dir = private_runtime_directory("spill", directory.run_id, make=True)
            staging = private_runtime_directory("staging", directory.run_id, make=True)
            system.become_subreaper()
            log = EventLog.open(directory.events, spill_dir=spill_dir)
            display = Display()
            display.on_room(signals.wake)
            if opening is not None:
                display.say(opening)
            foreground = on_launched is None
            self.context = Context(
                directory=directory,
                policy=policy,
                system=system,
                log=log,
                trace=TraceFile(directory.trace, beside=log.beside),
                children=children,
                tasks=Tasks(children),
                signals=signals,
                remedies=available(),
                scope=scope_of(system),
                cwd=cwd,
                slot_dir=slot_dir,
                control=_control_page(slot_dir) if slot_dir is not None else None,
                staging_dir=staging or directory.path / "staging",
                terminal=terminal_now(foreground=foreground),
                display=display,
                environment=dict(environment),
                foreground=foreground,
                ignore_hup=ignore_hup,
                oom_kills_before=oom_kills(),
                link=link,
            )
            self.supervisor = _supervisor_of(self.context, state or State(), task)
            if on_launched is not None:
                self.supervisor.on_launched = lambda: on_launched(self)
        except BaseException:
            signals.restore()
            self._lock.release()
            raise

    def _slot_dir(self, state: State | None) -> Path | None:
        """The private directory for heartbeat slots; None where there is no place for it.

        A `state` names that of a run that continues.
        """
        if state is not None:
            known = Path(state.slot_dir) if state.slot_dir is not None else None
            return known if known is not None and known.is_dir() else None
        chosen = self.system.slot_directory(self.directory.run_id)
        if chosen is None and self.system.on_network_file_system(self.directory.path) is False:
            chosen = self.directory.path / "slots"
        if chosen is None:
            return None
        try:
            # A run continued after its end has left its text file, and maybe its own folder.
            chosen.mkdir(mode=0o700, parents=True, exist_ok=self.directory.slot_dir() == chosen)
            replace_whole(self.directory.slot_dir_file, f"{chosen}\n".encode())
        except OSError:
            return None
        return chosen

    def register(self) -> None:
        """List the run among the live ones of this user, under this supervisor."""
        me, context = this_supervisor(self.system), self.context
        registry.register(
            self.directory,
            ProcessId(me.pid, me.start),
            boot_id=me.boot_id,
            training_key=training_key(self.supervisor.state.argv, context.cwd, context.environment),
            slot_dir=context.slot_dir,
        )

    def begin(
        self,
        *,
        name: str,
        argv: tuple[str, ...],
        options: tuple[str, ...] = (),
        launcher: Launcher | None,
    ) -> None:
        """Record the start of a new run; list it among live ones."""
        me = this_supervisor(self.system)
        task = self.task
        leads_node = task is not None and task.kind == "node"
        if launcher is not None and not leads_node:
            launcher = msgspec.structs.replace(launcher, across=None)
        recovery = self.context.policy.recovery
        restarts = "restart" in (recovery.on_stall, recovery.on_crash) and not recovery.observe
        self.supervisor.record(
            e.RunStarted(
                run_id=self.directory.run_id,
                name=name,
                boot_id=me.boot_id,
                host=me.host,
                pid=me.pid,
                start=me.start,
                argv=argv,
                options=options,
                cwd=self.context.cwd,
                run_dir=str(self.directory.path),
                slot_dir=str(self.context.slot_dir) if self.context.slot_dir else None,
                wtrain_version=watchdog_train.__version__,
                launcher=launcher,
                limits=self.context.policy.limits,
                resume=plans.way(State(argv=argv), recovery.resume_arg, (), None),
                report_only=recovery.observe,
                max_restarts=recovery.max_restarts if restarts else None,
            )
        )
        if task is not None:
            self.supervisor.record(e.TaskJoined(task=task))
        self.register()

    @property
    def exit_code(self) -> int:
        code = self.supervisor.state.exit_code
        return code if code is not None else EXIT_OUR_BUG

    @property
    def why(self) -> str:
        return why_text(self.supervisor.state.why or Why("unknown"))

    def close_with_words(self) -> None:
        state, log = self.supervisor.state, self.directory.attempts
        if not self.supervisor.speaks:
            self.context.display.deliver(log)
            if self.exit_code:  # where the leader's messages are not seen
                self.context.display.say(f"wtrain: {state.name}: {self.why}")
                self.context.display.deliver(log)
            return
        from watchdog_train.checkpoints.disk import Following

        lines = script_lines()
        report = self._report(lines)
        self.context.display.deliver(log)
        well = state.outcome == "succeeded" and not state.stalls and not state.warning
        if not (well and self.context.policy.output.quiet):
            for line in closing_lines(
                state,
                lines,
                report=report,
                newest_save=newest_noted_save(self.directory, state, Following().now),
            ):
                self.context.display.say(line)
        self.context.display.deliver(log)

    def _report(self, script_lines: Mapping[str, str]) -> str | None:
        """Path of report.html; a failure to write it is reported, and costs nothing else."""
        try:
            events = read_events(self.directory.events, spill_dir=self.directory.spill_dir).events
            path = str(write_plain(self.directory.path, events, script_lines))
        except (OSError, WtrainError) as error:
            self.context.display.say(f"wtrain: the report could not be written: {error}")
            return None
        if deserves_whole_page(self.supervisor.state):
            why_not = write_whole_now(self.directory.path)
            if why_not is not None:
                self.context.display.say(f"wtrain: the report is only a plain page: {why_not}")
        return path

    def run(self) -> None:
        """The loop; a signal that came before it is its first.

        Our own exception is recorded and raised; training lives on under its keeper.
        """
        gc.freeze()  # what is imported stays
        gc.set_threshold(700, 10, 10)
        try:
            self.supervisor.run()
        except Exception as error:
            self._leave(error)
            raise
        finally:
            self.context.signals.restore()
            self._close()

    def _leave(self, error: Exception) -> None:
        """Our bug must not cost the training: it stays with its keeper; warn the user."""
        words = f"{type(error).__name__}: {error}"
        with suppress(WtrainError, OSError):
            self.supervisor.record(e.SupervisorLeft(why=Why("our-bug", problem=words[:2000])))
        self.context.display.say(
            "wtrain: a bug of ours ends this supervisor; the training goes on by itself. "
            f"Take it up again with: wtrain adopt {self.directory.run_id}"
        )
        # A thread writes it, and this process ends now.
        self.context.display.drain(time.monotonic() + WORDS_WITHIN_S)

    def _close(self) -> None:
        context = self.context
        finished, left = self.supervisor.state.finished, self.supervisor.state.left
        if context.machines is not None and finished:
            context.machines.end(self.supervisor.state)
        self.supervisor.close()
        if context.link is not None:
            context.link.close()
        for child in context.children.running():
            # Or the pump of a dead one: both outlive us, but not for who is left to stay.
            if child.name == KEEPER_CHILD and not (finished and left):
                context.children.release(child)
        context.children.end_all()
        context.let_go()
        context.log.close(2.0)
        context.trace.close()
        if finished:
            registry.forget(self.directory)
            self._remove_slot_dir()
            self._remove_runtime_directories()
        self._lock.release()

    def _remove_runtime_directories(self) -> None:
        """Free local memory, except what could not be written anywhere else."""
        staging = self.context.staging_dir
        kept = any(
            Path(stall.dir).is_relative_to(staging)
            for stall in self.supervisor.state.stalls
            if stall.dir is not None
        )
        release_runtime_directory(staging, with_content=not kept)
        spill_dir = self.directory.spill_dir
        if spill_dir is not None:
            # No command finds events of a run whose directory was deleted.
            release_runtime_directory(spill_dir, with_content=self.context.log.is_removed)

    def _remove_slot_dir(self) -> None:
        slot_dir = self.context.slot_dir
        if self.context.control is not None:
            self.context.control.close()
        if slot_dir is None:
            return
        with suppress(OSError):
            for entry in os.scandir(slot_dir):
                os.unlink(entry.path)
            slot_dir.rmdir()
