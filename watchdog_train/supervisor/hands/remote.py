"""Another machine, or another task of this one: orders go to its agent, its reports come back.

Everything a rule needs is in the newest report; nothing here waits for one.
"""

# ruff: noqa: ARG002 - Hands says what each method does
from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

from msgspec.structs import replace

from watchdog_train.core import actions as a
from watchdog_train.core.events import RequestRefused, RunFinished, SaveProven, SentSignal, TreeGone
from watchdog_train.core.fold.state import Machine, State
from watchdog_train.core.job.machines import FOLDER, folder_of
from watchdog_train.core.model import (
    Daemon,
    ExitStatus,
    MemberSample,
    Plan,
    ProcessId,
    Why,
    together,
    written,
)
from watchdog_train.core.model.gpu import GpuHold, GpuHolder
from watchdog_train.core.recovery.plans import launcher_environment
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.keeper.messages import ready
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import agent_messages as messages
from watchdog_train.supervisor.hands.link.peers import Leader, Link
from watchdog_train.system import proc
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import make_folder, open_regular

AGAIN_S = 1.0
"""How often an agent gets a message, and again what it has not answered."""
SAME_CLOCK_S = 1.0
"""Clocks that differ by less count as one clock, read at two moments."""
MOST_DIFFERENCES = 64
STAY_S = 20.0
"""How long to wait for agents to learn that the run is over."""
END_LOOK_S = 0.05
MOST_BYTES = 512 << 20
"""Maximum total size of the files one machine may send during a run."""
_ASKED: dict[type, a.TaskName] = {a.StartLook: "look", a.StartEvidence: "evidence"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class RemoteHands:
    exit_known_at = 0.0

    def __init__(self, host: str, machines: Machines) -> None:
        self.host = host
        self._machines = machines
        self._context = machines.context
        self._report: messages.Report | None = None
        self._heard_at = self._context.system.monotonic()
        self._differences: deque[float] = deque(maxlen=MOST_DIFFERENCES)
        """Of its clock to ours, each with the travel time of the message."""
        self._present = 0
        self._checkpoint = ""
        self._orders: deque[messages.Order] = deque()
        self.epoch = 0
        """Later than that of every leader that its agent knows; 0: no report yet."""
        self._number = self._taken = self._written = 0
        self._obeyed_at = 0.0
        self._said: object = None
        self._said_at = 0.0
        self.over = False
        """It knows that the run is over, or has exited."""

    def begin(self, now: float) -> None:
        self.exit_known_at = 0.0

    def hear(self, state: State, now: float) -> None:
        self._present = state.attempts[-1].attempt if state.attempts else 0

    def sample(self, state: State, now: float, *, late_s: float, quiet: bool) -> None:
        """Nothing to do: its agent takes samples, and reports them."""

    @property
    def sight(self) -> a.TreeSight:
        now, report = self._context.system.monotonic(), self._report
        silent_s = now - self._heard_at
        heard = report is not None and report.epoch == self.epoch and silent_s < a.UNHEARD_S
        works = [order.work for order in self._orders]
        asked = frozenset(_ASKED[type(work)] for work in works if type(work) in _ASKED)
        forgotten = asked.union(work.name for work in works if isinstance(work, messages.Discard))
        sight = self._seen(now)
        return replace(
            sight,
            running=sight.running | asked,
            look=None if "look" in forgotten else sight.look,
            evidence=None if "evidence" in forgotten else sight.evidence,
            is_heard=heard,
            obeyed_at=inf if any(isinstance(one, a.Signal) for one in works) else self._obeyed_at,
            silent_s=silent_s,
            agent=report.agent if report is not None else None,
            sees=report.sight.sees if report and report.checkpoint == self._checkpoint else None,
        )

    def _seen(self, now: float) -> a.TreeSight:
        """Of the present attempt; gone if its agent knows this leader and has no such attempt."""
        report, nothing = self._report, together((), at=now, host=self.host)
        if report is not None and report.attempt == self._present:
            return report.sight
        if report is None or report.epoch != self.epoch or self._is_to_start:
            return a.TreeSight(sample=nothing)
        if report.lives or report.attempt > self._present:
            return a.TreeSight(sample=nothing, other=report.attempt)
        return replace(
            report.sight,
            sample=replace(nothing, empty_looks=2, keeper_alive=False),
            launch=None,
            exit=ExitStatus(code=None, signal=None, how_known="gone"),
            last_words=(),
            told=a.Told(),
        )

    @property
    def _is_to_start(self) -> bool:
        return any(isinstance(order.work, messages.StartAttempt) for order in self._orders)

    def take(self, message: messages.Report | messages.Parcel, now: float) -> None:
        if isinstance(message, messages.Parcel):
            if message.number == self._taken + 1 or self._taken == 0:
                self._taken = message.number
                for asked in message.requests:
                    by = f"{self.host}: {asked.by}"
                    self._machines.requests.append(replace(asked, by=by, relayed=True))
                for chunk in message.chunks:
                    self._keep(chunk)
            return
        before = self._report
        had_exit = before is not None and before.sight.exit is not None
        if before is not None and before.agent.agent != message.agent.agent:
            self._taken = 0  # another process: it counts from 0, maybe by another clock
            self._differences.clear()
            done = message.done if message.epoch == self.epoch else 0
            if done < self._number - len(self._orders):
                # It has not adopted the run of the previous agent: that training is gone.
                self._orders.clear()
                self._number, self.epoch = 0, self.epoch + 1
        self.epoch = self.epoch or message.epoch + 1
        self._heard_at, self.over = now, message.over
        self._differences.append(now - message.now)
        least = min(self._differences)
        report = as_of(message, self.host, 0.0 if abs(least) < SAME_CLOCK_S else least)
        found = report.sight.evidence
        if found is not None:
            ours = folder_of(str(self._context.directory.stall(found.stall_id)), self.host)
            report = replace(report, sight=replace(report.sight, evidence=replace(found, dir=ours)))
        self._report = report
        if report.sight.exit is not None and not had_exit:
            self.exit_known_at = now
        if report.epoch == self.epoch:
            while self._orders and self._orders[0].number <= report.done:
                if isinstance(self._orders.popleft().work, a.Signal):
                    self._obeyed_at = now

    def _keep(self, chunk: messages.Chunk) -> None:
        path = self._path(chunk.path)
        self._written += len(chunk.data)
        if path is None or self._written > MOST_BYTES:
            return
        with suppress(OSError):  # a full disk costs a copy; the agent has its own
            make_folder(path.parent)
            with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.seek(chunk.offset)
                file.write(chunk.data)

    def _path(self, path: str) -> Path | None:
        """The local path for a file of its run directory; paths it sends are not trusted."""
        parts = path.split("/")
        if not all(map(_NAME.fullmatch, parts)) or len(parts) < 3:
            return None
        top, number, *rest = parts
        folder = self._context.directory.path / top / number
        if top == "attempts" and len(rest) == 1 and rest[0].startswith("saves."):
            return folder / rest[0].replace("saves.", f"saves.{self.host}-", 1)
        return folder.joinpath(FOLDER, self.host, *rest) if top in ("attempts", "stalls") else None

    def launch(self, plan: Plan, token: str, state: State) -> None:
        ours = launcher_environment(state, plan.attempt)
        env = {name: value for name, value in plan.env.items() if ours.get(name) != value}
        self._order(messages.StartAttempt(plan=replace(plan, env=env), base=state.argv))

    def signal(self, action: a.Signal) -> Iterator[SentSignal]:
        targets = tuple(ProcessId(one.pid, one.start) for one in action.targets)
        self._order(replace(action, host="", targets=targets))
        roles = {one.member.identity: one.member.role for one in self.sight.sample.members}
        for target in action.targets:
            yield SentSignal(
                pid=target.pid,
                start=target.start,
                signal=action.signal,
                role=roles.get(target, "other"),
                result="ordered",
            )

    def collect(self, action: a.StartLook | a.StartEvidence, state: State) -> None:
        verdict, here = action.verdict, {slot.rank for _, slot in self.sight.sample.judged}
        ranks = tuple(rank for rank in verdict.ranks if rank in here)
        self._order(replace(action, host="", verdict=replace(verdict, ranks=ranks, pids=())))

    def discard(self, name: a.TaskName) -> None:
        if getattr(self.sight, name) is not None:
            self._order(messages.Discard(name=name))

    def ask(self, action: a.AskStop | a.AskSave) -> None:
        self._order(action)

    def clean_up(self, state: State) -> TreeGone:
        self._order(a.CleanUp(host=""))
        left = tuple(one for one in self.sight.sample.daemons if one.is_left)
        return TreeGone(where=written(self.host), shared_memory_removed=(), left=left)

    def gpu_hold(self, now: float) -> GpuHold | None:
        return self._seen(now).told.gpu_hold

    def close(self) -> None:
        """Its agent lives on."""

    def know(self, event: SaveProven | RequestRefused) -> None:
        """A client may wait for it on that machine."""
        self._order(messages.Known(event=event))

    def _order(self, work: messages.Work) -> None:
        self._number += 1
        self._orders.append(messages.Order(number=self._number, work=work))

    def say(self, word: messages.Orders, now: float) -> None:
        """Send news at once; once a second unanswered orders and a sign of life."""
        self._checkpoint = word.checkpoint
        news = (self._number, self._taken, word.checkpoint, word.over)
        if self.epoch and (news != self._said or now - self._said_at >= AGAIN_S):
            orders = tuple(self._orders)
            word = replace(word, epoch=self.epoch, orders=orders, taken=self._taken)
            if self._machines.link.send(self.host, messages.encode(word)):
                self._said, self._said_at = news, now


class Machines:
    def __init__(self, context: Context, task: JobTask, link: Link) -> None:
        self.context = context
        self.link = link
        self.place = machine_of(context.system)
        self._other_key_said = False
        self.requests: list[a.Request] = []
        self.hands = tuple(RemoteHands(task.name_of(n), self) for n in range(1, task.tasks))
        self._by_name = {each.host: each for each in self.hands}

    def poll(self, state: State, now: float) -> None:
        for name, data in self.link.receive():
            hands, message = self._by_name.get(name), messages.decode(messages.UP, data)
            if hands is not None and message is not None:
                hands.take(message, now)
        if isinstance(self.link, Leader) and self.link.other_key and not self._other_key_said:
            self._other_key_said = True
            self.context.display.say(
                "wtrain: somebody came with another WTRAIN_JOB_KEY and was refused; all tasks of a "
                "job need the same: export it once, before they start"
            )
        plan, over = state.next_plan, None
        used = plan.checkpoint.path if plan is not None and plan.checkpoint is not None else ""
        if state.outcome is not None and state.exit_code is not None:
            why = state.why or Why("unknown")
            over = RunFinished(
                outcome=state.outcome, exit_code=state.exit_code, warning=None, why=why
            )
        me = this_machine(self.context, self.place, state)
        word = messages.Orders(epoch=0, leader=me, checkpoint=used, over=over)
        for each in self.hands:
            each.say(word, now)

    def end(self, state: State) -> None:
        """Wait until all know that the run is over; STAY_S at most."""
        monotonic = self.context.system.monotonic
        until = monotonic() + STAY_S
        while monotonic() < until and not all(each.over for each in self.hands):
            self.poll(state, monotonic())
            ready([self.link.fileno()] if self.link.fileno() >= 0 else [], (), END_LOOK_S)


def machine_of(system: ProcessSystem) -> str:
    """The scope of a pid: host, boot and pid namespace."""
    return f"{socket.gethostname()}/{system.boot_id() or ''}/{proc.link('self', 'ns/pid') or ''}"


def this_machine(context: Context, place: str, state: State) -> Machine:
    """This machine, for the others; `place` is of machine_of()."""
    return Machine(
        host="",
        hostname=socket.gethostname(),
        place=place,
        run_dir=str(context.directory.path),
        agent=state.supervisor or ProcessId(os.getpid(), 0),
    )


_MOMENTS = ("last_beat_ns", "batch_ns", "backward_ns", "backward_end_ns", "expect_until_ns")


def as_of(report: messages.Report, host: str, offset_s: float) -> messages.Report:
    """An agent's report with its machine's name and by our clock."""

    def there(who: ProcessId) -> ProcessId:
        return ProcessId(who.pid, who.start, host)

    def member(seen: MemberSample) -> MemberSample:
        slot = seen.slot
        if slot is not None and offset_s:
            moments = {name: getattr(slot, name) for name in _MOMENTS}
            ahead_ns = int(offset_s * 1e9)
            slot = replace(slot, **{k: max(1, ns + ahead_ns) for k, ns in moments.items() if ns})
        return replace(seen, member=replace(seen.member, host=host), slot=slot)

    def daemon(one: Daemon) -> Daemon:
        hold = one.hold
        if hold.member is not None:
            hold = replace(hold, member=there(hold.member))
        return replace(one, process=there(one.process), hold=hold)

    def holder(one: GpuHolder) -> GpuHolder:
        return replace(one, name=f"{host}: {one.name or f'pid {one.pid}'}")

    sight = report.sight
    sample, launch, held = sight.sample, sight.launch, sight.told.gpu_hold
    if launch is not None:
        root = there(launch.root) if launch.root is not None else None
        launch = replace(launch, root=root, keeper=there(launch.keeper))
    if held is not None:
        ours, others = tuple(map(holder, held.ours)), tuple(map(holder, held.others))
        at = held.asked_at + offset_s
        held = replace(held, host=host, ours=ours, others=others, asked_at=at)
    ended = (replace(one, where=written(host), at=one.at + offset_s) for one in sample.ended)
    sample = replace(
        sample,
        machine=host,
        at=sample.at + offset_s,
        members=tuple(map(member, sample.members)),
        daemons=tuple(map(daemon, sample.daemons)),
        ended=tuple(ended),
    )
    sight = replace(
        sight,
        sample=sample,
        launch=launch,
        last_words=tuple(map(member, sight.last_words)),
        told=replace(sight.told, gpu_hold=held),
    )
    return replace(report, agent=replace(report.agent, host=host), sight=sight)
