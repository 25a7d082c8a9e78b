"""Another machine, or another task of this one: orders go to its agent, its reports come back.

Everything a rule needs is in the newest report; nothing here waits for one.
"""

# ruff: noqa: D102, ARG002 - Hands says what each method does
from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from watchdog_train.core.actions import (
    UNHEARD_S,
    AskSave,
    AskStop,
    CleanUp,
    Request,
    Signal,
    StartEvidence,
    StartLook,
    TaskName,
    TreeSight,
)
from watchdog_train.core.events import RequestRefused, SaveProven, Signalled, TreeGone
from watchdog_train.core.fold.state import Machine, State, Tree
from watchdog_train.core.job.machines import FOLDER, folder_of
from watchdog_train.core.model import (
    Daemon,
    ExitStatus,
    Hold,
    MemberSample,
    Plan,
    ProcessId,
    Sample,
    Why,
    together,
    written,
)
from watchdog_train.core.model.gpu import GpuHold, GpuHolder
from watchdog_train.core.recovery.plans import launcher_environment
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.errors import EXIT_OUR_BUG
from watchdog_train.keeper.wake import ready
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import wire
from watchdog_train.supervisor.hands.link import Link, join, lead
from watchdog_train.system import proc
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import make_folder, open_regular

AGAIN_S = 1.0
"""An agent hears a word so often, and what it has not answered again."""
SAME_CLOCK_S = 1.0
"""Clocks that differ by less are one clock, read at two moments."""
MEASURE_S = 60.0
STAY_S = 20.0
"""For agents to hear that the run is over."""
END_LOOK_S = 0.05
MOST_BYTES = 512 << 20
"""Of files that one machine may send in a run."""
_ASKED: dict[type, TaskName] = {StartLook: "look", StartEvidence: "evidence"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class RemoteHands:
    """One agent; see Hands."""

    exit_known_at = 0.0

    def __init__(self, host: str, machines: Machines) -> None:
        self.host = host
        self._machines = machines
        self._context = machines.context
        self._report: wire.Report | None = None
        self._heard_at = self._context.system.monotonic()
        self._offset = _Offset()
        self._present = 0
        self._tree: Tree | None = None
        self._checkpoint = ""
        self._orders: deque[wire.Order] = deque()
        self.epoch = 0
        """Later than that of every leader that its agent knows; 0: it was never heard."""
        self._number = self._taken = self._written = 0
        self._said_at = 0.0
        self.over = False
        """It knows that the run is over, or has ended itself."""

    # What comes -------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        self.exit_known_at = 0.0

    def hear(self, state: State, now: float) -> None:
        self._present = state.attempts[-1].attempt if state.attempts else 0
        self._tree = state.tree(self.host)

    def sample(self, state: State, now: float, *, late_s: float, quiet: bool) -> None:
        """Its agent looks by itself, and reports."""

    @property
    def sight(self) -> TreeSight:
        now, report = self._context.system.monotonic(), self._report
        silent_s = now - self._heard_at
        agent = report.agent if report is not None else None
        lives = None
        near = agent is not None and agent.place == self._machines.place
        if agent is not None and near and silent_s > 2 * AGAIN_S:
            lives = self._context.system.is_alive(agent.agent)
        known = {
            "is_heard": report is not None and report.epoch == self.epoch and silent_s < UNHEARD_S,
            "silent_s": silent_s,
            "agent": agent,
            "agent_lives": lives,
            "sees": report.sight.sees if report and report.checkpoint == self._checkpoint else None,
        }
        works = [order.work for order in self._orders]
        asked = frozenset(_ASKED[type(work)] for work in works if type(work) in _ASKED)
        forgotten = asked.union(work.name for work in works if isinstance(work, wire.Discard))
        sight = self._seen(now)
        return msgspec.structs.replace(
            sight,
            running=sight.running | asked,
            look=None if "look" in forgotten else sight.look,
            evidence=None if "evidence" in forgotten else sight.evidence,
            **known,
        )

    def _seen(self, now: float) -> TreeSight:
        """Of the present attempt; where its agent has heard us and has none, that one is gone."""
        report, nothing = self._report, together((), at=now, host=self.host)
        if report is not None and self._is_present(report):
            return report.sight
        if report is None or report.epoch != self.epoch or self._is_to_start:
            return TreeSight(sample=nothing)
        if report.lives or report.attempt > max(self._present, report.agent.attempts):
            return TreeSight(sample=nothing, other=report.attempt)
        return msgspec.structs.replace(
            report.sight,
            sample=msgspec.structs.replace(nothing, empty_looks=2, keeper_alive=False),
            launch=None,
            exit=ExitStatus(code=None, signal=None, how_known="gone"),
            last_words=(),
        )

    @property
    def told(self) -> wire.Told:
        """What its training says, and what its machine lacks."""
        report = self._report
        return report.told if report is not None and self._is_present(report) else wire.Told()

    def _is_present(self, report: wire.Report) -> bool:
        """Whether it speaks of the present attempt, or of one begun alone that belongs to it."""
        launch, tree = report.sight.launch, self._tree
        root = launch.root if launch is not None else None
        if root is None or report.attempt != report.agent.attempts:
            return report.attempt == self._present
        if tree is None:
            return self._present > 0
        if tree.root is not None:
            return tree.root == root
        return report.attempt == self._present and not self._is_to_start

    @property
    def _is_to_start(self) -> bool:
        return any(isinstance(order.work, wire.StartAttempt) for order in self._orders)

    def take(self, message: wire.Report | wire.Parcel, now: float) -> None:
        """One word of its agent."""
        if isinstance(message, wire.Parcel):
            if message.number == self._taken + 1 or self._taken == 0:
                self._taken = message.number
                self._keep(message.content)
            return
        before = self._report
        had_exit = before is not None and before.sight.exit is not None
        if before is not None and before.agent.agent != message.agent.agent:
            self._taken = 0  # another process: it counts anew
            done = message.done if message.epoch == self.epoch else 0
            if done < self._number - len(self._orders):
                # It has not taken up the run of the one before: nothing is left of what we led.
                self._orders.clear()
                self._number, self.epoch = 0, self.epoch + 1
        self.epoch = self.epoch or message.epoch + 1
        self._heard_at, self.over = now, message.over
        offset_s = self._offset.measure(now, now - message.now)
        sight = as_of(message.sight, self.host, offset_s)
        if sight.evidence is not None:
            ours = str(self._context.directory.stall(sight.evidence.stall_id))
            kept = msgspec.structs.replace(sight.evidence, dir=folder_of(ours, self.host))
            sight = msgspec.structs.replace(sight, evidence=kept)
        agent = msgspec.structs.replace(message.agent, host=self.host)
        told = message.told
        if told.gpu_hold is not None:
            told = msgspec.structs.replace(told, gpu_hold=self._held(told.gpu_hold, offset_s))
        self._report = msgspec.structs.replace(message, agent=agent, sight=sight, told=told)
        if message.sight.exit is not None and not had_exit:
            self.exit_known_at = now
        if message.epoch == self.epoch:
            while self._orders and self._orders[0].number <= message.done:
                self._orders.popleft()

    def _keep(self, content: wire.Chunk | Request) -> None:
        if isinstance(content, Request):
            by = f"{self.host}: {content.by}"
            relayed = msgspec.structs.replace(content, by=by, relayed=True)
            self._machines.requests.append(relayed)
            return
        path = self._path(content.path)
        self._written += len(content.data)
        if path is None or self._written > MOST_BYTES:
            return
        with suppress(OSError):  # a full disk costs a copy; the agent has its own
            make_folder(path.parent)
            with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.seek(content.offset)
                file.write(content.data)

    def _path(self, path: str) -> Path | None:
        """Where a file of its run directory is kept in ours; what it sends is not believed."""
        parts = path.split("/")
        if not all(map(_NAME.fullmatch, parts)) or len(parts) < 3:
            return None
        top, number, *rest = parts
        folder = self._context.directory.path / top / number
        if top == "attempts" and len(rest) == 1 and rest[0].startswith("saves."):
            return folder / rest[0].replace("saves.", f"saves.{self.host}-", 1)
        return folder.joinpath(FOLDER, self.host, *rest) if top in ("attempts", "stalls") else None

    # What goes --------------------------------------------------------------------------------

    def launch(self, plan: Plan, token: str, state: State) -> None:
        ours = launcher_environment(state, plan.attempt)
        env = {name: value for name, value in plan.env.items() if ours.get(name) != value}
        shared = msgspec.structs.replace(plan, env=env)
        self._order(wire.StartAttempt(plan=shared, base=state.argv))

    def signal(self, action: Signal) -> Iterator[Signalled]:
        targets = tuple(ProcessId(one.pid, one.start) for one in action.targets)
        self._order(msgspec.structs.replace(action, host="", targets=targets))
        roles = {one.member.identity: one.member.role for one in self.sight.sample.members}
        for target in action.targets:
            yield Signalled(
                where=written(self.host),
                pid=target.pid,
                start=target.start,
                signal=action.signal,
                role=roles.get(target, "other"),
                result="ordered",
            )

    def forward(self, root: ProcessId, number: int) -> bool:
        self._order(wire.Forward(signal=number))
        return True

    def collect(self, action: StartLook | StartEvidence, state: State) -> None:
        self._order(msgspec.structs.replace(action, host=""))

    def discard(self, name: TaskName) -> None:
        sight = self.sight
        if (sight.look if name == "look" else sight.evidence) is not None:
            self._order(wire.Discard(name=name))

    def ask(self, action: AskStop | AskSave) -> None:
        self._order(action)

    def clean_up(self, state: State) -> TreeGone:
        self._order(CleanUp(host=""))
        left = tuple(one for one in self.sight.sample.daemons if one.is_left)
        return TreeGone(where=written(self.host), shared_memory_removed=(), left=left)

    def gpu_hold(self, now: float) -> GpuHold | None:
        return self.told.gpu_hold

    def _held(self, found: GpuHold, offset_s: float) -> GpuHold:
        """By our clock, and with the machine in the names."""

        def named(one: GpuHolder) -> GpuHolder:
            name = f"{self.host}: {one.name or f'pid {one.pid}'}"
            return msgspec.structs.replace(one, name=name)

        ours, others = tuple(map(named, found.ours)), tuple(map(named, found.others))
        at = found.asked_at + offset_s
        return msgspec.structs.replace(found, host=self.host, ours=ours, others=others, asked_at=at)

    def close(self) -> None:
        """Its agent lives on."""

    def know(self, event: SaveProven | RequestRefused) -> None:
        """Somebody may wait for it there."""
        self._order(wire.Known(event=event))

    def _order(self, work: wire.Work) -> None:
        self._number += 1
        self._orders.append(wire.Order(number=self._number, work=work))
        self._said_at = 0.0

    def say(
        self, leader: Machine, agents: tuple[Machine, ...], now: float, *, checkpoint: str
    ) -> None:
        """What it has not answered, and that we live."""
        if checkpoint != self._checkpoint:
            self._checkpoint, self._said_at = checkpoint, 0.0
        if self.epoch and now - self._said_at >= AGAIN_S:
            word = wire.Orders(
                epoch=self.epoch,
                leader=leader,
                agents=agents,
                orders=tuple(self._orders),
                taken=self._taken,
                checkpoint=checkpoint,
            )
            if self._machines.link.send(self.host, wire.encode(word)):
                self._said_at = now

    def answer(self) -> None:
        """It waits for room: say at once what has come."""
        self._said_at = 0.0


class Machines:
    """The agents of one leader."""

    def __init__(self, context: Context, task: JobTask, link: Link) -> None:
        self.context = context
        self.link = link
        self.place = machine_of(context.system)
        self.requests: list[Request] = []
        """What people have asked an agent."""
        self.hands = tuple(RemoteHands(task.name_of(n), self) for n in range(1, task.tasks))
        self._by_name = {each.host: each for each in self.hands}

    def poll(self, state: State, now: float) -> None:
        """Take what has come, and say what is due."""
        for name, data in self.link.receive():
            hands, message = self._by_name.get(name), wire.decode(wire.up, data)
            if hands is not None and message is not None:
                hands.take(message, now)
                if isinstance(message, wire.Parcel):
                    hands.answer()
        me = state.supervisor or ProcessId(os.getpid(), 0)
        leader = Machine(
            host="", hostname=state.host, place=self.place, run_dir=state.run_dir, agent=me
        )
        # One of these replaces us; names of all, said to all, would grow by the square.
        known = state.crew.machines if state.crew is not None else ()
        near = tuple(one for one in known if one.place == self.place)
        plan = state.next_plan
        used = plan.checkpoint.path if plan is not None and plan.checkpoint is not None else ""
        for each in self.hands:
            each.say(leader, near, now, checkpoint=used)

    def end(self, state: State) -> None:
        """Tell all that the run is over; those that cannot be heard learn nothing."""
        monotonic, said_at = self.context.system.monotonic, 0.0
        why = state.why or Why("unknown")
        code = state.exit_code if state.exit_code is not None else EXIT_OUR_BUG
        over = wire.Over(outcome=state.outcome or "failed", exit_code=code, why=why)
        until = monotonic() + STAY_S
        while monotonic() < until and not all(each.over for each in self.hands):
            now = monotonic()
            self.poll(state, now)
            if now - said_at >= AGAIN_S:
                said_at = now
                for each in self.hands:
                    self.link.send(each.host, wire.encode(over))
            ready([self.link.fileno()] if self.link.fileno() >= 0 else [], (), END_LOOK_S)


def machine_of(system: ProcessSystem) -> str:
    """Within which the number of a process means something: host, boot and pid namespace."""
    namespace = proc.link("self", "ns/pid") or ""
    return f"{socket.gethostname()}/{system.boot_id() or ''}/{namespace}"


def meet(task: JobTask, children: ChildTable) -> Link:
    """The link of a task: the first one lets the others come.

    Raises:
        WtrainError: the others could never be reached, or never reach us.
    """
    address = task.coordination
    if task.task:
        return join(address, task.name_of(task.task), job=task.job, children=children)
    return lead(address, job=task.job, machines=task.tasks - 1, children=children)


class _Offset:
    """How much our clock is ahead of another one: the least that was seen of late."""

    def __init__(self) -> None:
        self._now = self._before = float("inf")
        self._until = 0.0

    def measure(self, now: float, difference_s: float) -> float:
        if now >= self._until:
            self._before, self._now, self._until = self._now, float("inf"), now + MEASURE_S
        self._now = min(self._now, difference_s)
        found = min(self._now, self._before)
        return 0.0 if abs(found) < SAME_CLOCK_S else found


def as_of(sight: TreeSight, host: str, offset_s: float) -> TreeSight:
    """What an agent has seen, with its machine's name and by our clock."""
    launch = sight.launch
    if launch is not None:
        root = _there(launch.root, host) if launch.root is not None else None
        launch = msgspec.structs.replace(launch, root=root, keeper=_there(launch.keeper, host))
    return msgspec.structs.replace(
        sight,
        sample=_sample(sight.sample, host, offset_s),
        launch=launch,
        last_words=tuple(_member(one, host, offset_s) for one in sight.last_words),
    )


def _there(who: ProcessId, host: str) -> ProcessId:
    return ProcessId(who.pid, who.start, host)


def _sample(sample: Sample, host: str, offset_s: float) -> Sample:
    return msgspec.structs.replace(
        sample,
        machine=host,
        at=sample.at + offset_s,
        members=tuple(_member(one, host, offset_s) for one in sample.members),
        daemons=tuple(_daemon(one, host) for one in sample.daemons),
        ended=tuple(
            msgspec.structs.replace(one, where=written(host), at=one.at + offset_s)
            for one in sample.ended
        ),
    )


def _daemon(daemon: Daemon, host: str) -> Daemon:
    held: Hold = daemon.hold
    if held.member is not None:
        held = msgspec.structs.replace(held, member=_there(held.member, host))
    return msgspec.structs.replace(daemon, process=_there(daemon.process, host), hold=held)


_MOMENTS = ("last_beat_ns", "batch_ns", "backward_ns", "backward_end_ns", "expect_until_ns")


def _member(sample: MemberSample, host: str, offset_s: float) -> MemberSample:
    member = msgspec.structs.replace(sample.member, host=host)
    slot = sample.slot
    if slot is not None and offset_s:
        moments = {name: getattr(slot, name) for name in _MOMENTS}
        shifted = {name: max(1, ns + int(offset_s * 1e9)) for name, ns in moments.items() if ns}
        slot = msgspec.structs.replace(slot, **shifted)
    return msgspec.structs.replace(sample, member=member, slot=slot)
