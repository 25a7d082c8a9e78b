"""This machine: samples the processes of an attempt, starts them, signals them, cleans up."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from watchdog_train.core.actions import (
    AskSave,
    AskStop,
    LaunchReport,
    Signal,
    StartEvidence,
    StartLook,
    TaskName,
    Told,
    TreeSight,
)
from watchdog_train.core.events import SentSignal, TreeGone
from watchdog_train.core.fold.state import State, Tree
from watchdog_train.core.model import MemberSample, Plan, ProcessId, Role, together
from watchdog_train.core.recovery.keeping import unkept
from watchdog_train.core.starting.launchers import rank_streams
from watchdog_train.keeper import EXIT_AT_GATE
from watchdog_train.report.why_text import with_text
from watchdog_train.store.slots import LastWords, sweep_slots
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.environment import training_environment
from watchdog_train.supervisor.evidence_requests import EvidenceRequests
from watchdog_train.supervisor.hands.exits import Ending, KeeperRecord, read_keeper
from watchdog_train.supervisor.hands.launch import KEEPER, drain_without_keeper, start_keeper
from watchdog_train.supervisor.hands.sampling import Sampler
from watchdog_train.system.protocol import ProcessSystem, SignalResult
from watchdog_train.trusted_files import make_folder
from watchdog_train.whole_files import replace_whole

COLLECTING: frozenset[TaskName] = frozenset(("look", "evidence"))


class LocalHands(Sampler):
    """The processes of one attempt after the other; keeps only what one attempt needs."""

    host = ""

    def __init__(self, context: Context) -> None:
        self._last_words = LastWords(context.slot_dir)
        super().__init__(context, self._last_words)
        self._ending = Ending(context)
        self.begin(context.system.monotonic())

    def begin(self, now: float) -> None:
        self._sample = together((), at=now)
        self._launch: LaunchReport | None = None
        self._judged: tuple[MemberSample, ...] = ()
        self._final: tuple[MemberSample, ...] = ()
        self.forget()
        self._last_words.forget()
        self._ending.close()
        self._ending = Ending(self._context)

    @property
    def sight(self) -> TreeSight:
        tasks = self._context.tasks
        return TreeSight(
            sample=self._sample,
            launch=self._launch,
            exit=self._ending.status,
            exited_at=self._ending.known_at,
            last_words=self._final,
            running=tasks.running & COLLECTING,
            look=tasks.look,
            evidence=tasks.evidence,
            told=Told(gpu_trouble=self.gpu_trouble),
        )

    @property
    def exit_known_at(self) -> float:
        return self._ending.known_at

    def close(self) -> None:
        super().close()
        self._ending.close()

    def sample(self, state: State, now: float, *, late_s: float, quiet: bool) -> None:
        number, tree = state.attempts[-1].attempt, self._mine(state)
        status = self._ending.status
        self._sample = self.look(
            *(state, tree, self._launch, now),
            late_s=late_s,
            quiet=quiet,
            exited_well=status is not None and status.ok,
        )
        judged = tuple(member for member, _ in self._sample.judged)
        if judged:
            self._judged = judged
            self._last_words.follow(member.member.pid for member in judged)
        if status is not None and not tree.ended:  # the training may continue without its root
            self._hear_last_words(state, now)
        self._context.children.poll(self.rows)
        if tree.launched and self._ending.settle(
            self._context.directory.attempt(number),
            now,
            root_alive=_root_alive(self._sample.members, tree),
            keeper_alive=bool(self._sample.keeper_alive),
        ):
            self._hear_last_words(state, now)

    def _mine(self, state: State) -> Tree:
        return next(tree for tree in state.trees if tree.host == self.host)

    def hear(self, state: State, now: float) -> None:
        directory = self._context.directory.attempt(state.attempts[-1].attempt)
        tree = self._mine(state)
        if self._launch is None:
            record = read_keeper(directory)
            if record is not None and (record.runs or record.error is not None):
                self._launch = self._report(record)
            elif not tree.launched:
                self._launch = self._without_word(record, directory)
                return
        self._ending.follow(tree.root)
        if self._ending.read(directory, now):
            self._hear_last_words(state, now)

    def _hear_last_words(self, state: State, now: float) -> None:
        """Count the steps between the last sample and the exit.

        The processes may have left the sample by now; their slots are read all the same.
        """
        said = self._last_words.read()
        self._final = tuple(
            msgspec.structs.replace(member, slot=said.get(member.member.pid, member.slot))
            for member in self._judged
        )
        ours = (state.stop, state.given_up, state.kill) != (None, None, None)
        # A script that begins another training has not failed by the one before.
        ours = ours or any(slot.trains and not slot.exiting for _, slot in self._sample.judged)
        if not ours and self._ending.status is not None and self._ending.status.ok:
            self._ending.behind(self._departures.hidden_failure(now))

    def _report(self, record: KeeperRecord) -> LaunchReport:
        system = self._context.system
        return LaunchReport(
            root=record.root(system) if record.error is None else None,
            keeper=record.keeper(system),
            error=record.error,
        )

    def _without_word(self, record: KeeperRecord | None, attempt_dir: Path) -> LaunchReport | None:
        """The result of a launch whose keeper died during it; None while the keeper lives.

        A forked process runs the training only if the keeper gave the go-ahead before.
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

    def launch(self, plan: Plan, token: str, state: State) -> None:
        context = self._context
        attempt_dir = context.directory.attempt(plan.attempt)
        if context.control is not None:
            # Requests to the attempt before must not make this one save and stop at its first step.
            task = state.task or context.unled
            context.control.begin_attempt(task.tasks if task is not None else 1)
        env = training_environment(context, plan, token, unkept=unkept(state, plan))
        make_folder(attempt_dir)
        # Of a keeper that was killed while it started.
        (attempt_dir / "keeper.json").unlink(missing_ok=True)
        replace_whole(
            context.directory.plan(plan.attempt),
            msgspec.json.format(msgspec.json.encode(with_text(plan))),
        )
        streams = rank_streams(state.launcher)
        launched = start_keeper(context, plan, env, rank_streams=streams)
        context.launched(launched)
        if context.foreground:
            context.display.follow(launched.streams, gates=launched.ends.take_gates())

    def drain(self, number: int) -> None:
        """Read the output of an attempt whose keeper has died."""
        context = self._context
        if context.ends is None:
            return
        try:
            # Not in the run directory: that may be what the keeper died of.
            make_folder(context.staging_dir)
            drain_without_keeper(
                context.ends,
                context.directory.attempt(number),
                context.staging_dir,
                context.children,
                log_cap_bytes=context.policy.output.log_cap_bytes,
            )
        except OSError as error:
            context.display.say(f"wtrain: nobody takes the training's output any more: {error}")

    def signal(self, action: Signal) -> Iterator[SentSignal]:
        roles = {s.member.identity: s.member.role for s in self._sample.members}
        return deliver(action, roles, self._context.system)

    def forward(self, root: ProcessId, number: int) -> bool:
        """Pass a scheduler's signal to a root that handles it; whether it does."""
        system = self._context.system
        return bool(system.handles_signal(root.pid, number)) and (
            system.send_signal(root, number) is not None
        )

    def collect(self, action: StartLook | StartEvidence, state: State) -> None:
        requests = EvidenceRequests(self._context, state, self.sight, gpu_seen=self.gpu_seen())
        self._context.tasks.collect(requests.of(action))

    def ask(self, action: AskStop | AskSave) -> None:
        """By the control page; see supervisor.perform."""

    def discard(self, name: TaskName) -> None:
        self._context.tasks.discard(name)

    def clean_up(self, state: State) -> TreeGone:
        """Remove what a killed tree leaves in shared memory, if it is known to be its own.

        Names of torch carry a member's pid; a semaphore was mapped by a member, and no process maps
        it now. Other names (psm_*) show no owner: the kill order lets the trackers remove them.
        """
        context = self._context
        ours = self.members_ever()
        semaphores = self._semaphores.unused()
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
            if daemon.is_left
            and daemon.process.host == self.host
            and context.system.is_alive(daemon.process) is not False
        )
        return TreeGone(shared_memory_removed=tuple(removed), left=left)

    def _is_alive(self, who: ProcessId) -> bool | None:
        system = self._context.system
        # A slot without a start time: any process with that pid counts as alive.
        return system.identity(who.pid) is not None if who.start == 0 else system.is_alive(who)


def _root_alive(members: tuple[MemberSample, ...], tree: Tree) -> bool:
    root = tree.root
    return root is not None and any(
        sample.member.identity == root and sample.state not in ("Z", "X") for sample in members
    )


def deliver(
    action: Signal, roles: Mapping[ProcessId, Role], system: ProcessSystem
) -> Iterator[SentSignal]:
    """Send a signal; yields what each target was sent.

    Targets outside of the groups get a signal of their own. Background processes of a shell
    ignore Ctrl-C, and get SIGTERM instead.
    """
    groups = {one: system.process_group(one.pid) for one in action.targets if action.group}
    # Before the first signal: a script may ignore the second one while it acts on the first.
    deaf = {
        one
        for one, group in groups.items()
        if group != one.pid and system.ignores_signal(one.pid, action.signal)
    }
    results: dict[int, SignalResult] = {}
    for target in action.targets:
        group = groups.get(target)
        number = signals.SIGTERM if target in deaf else action.signal
        if target in groups and group in (target.pid, None):
            result = results[target.pid] = system.send_signal_to_group(target, number)
        elif group in results and target not in deaf:
            result = results[group]
        else:
            if number == signals.SIGTERM and hasattr(signals, "SIGCONT"):
                # A stopped process does not act on SIGTERM.
                system.send_signal(target, signals.SIGCONT)
            result = system.send_signal(target, number)
        yield SentSignal(
            pid=target.pid,
            start=target.start,
            signal=number,
            role=roles.get(target, "other"),
            result=result,
        )
