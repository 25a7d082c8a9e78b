"""The hands of a leader on another machine, or for another task of this one: a process of its own.

It takes samples, keeps a log, and carries out orders; it decides nothing, and outlives a lost link
and a dead leader together with its training. Only without a leader for `job.lost_s`, and with a
training that does not work any more, it takes evidence and exits by a supervisor's own rules.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.answers import start_evidence
from watchdog_train.core.decide import attend
from watchdog_train.core.fold.state import Machine, State
from watchdog_train.core.job.machines import PEERS, SAY_AFTER_S, leave
from watchdog_train.core.job.rendezvous import as_this_node, with_options
from watchdog_train.core.model import Plan, ProcessId, Why, said
from watchdog_train.core.recovery.outcome import give_up
from watchdog_train.core.recovery.plans import launcher_environment, with_arguments
from watchdog_train.core.suspect import next_stall_id
from watchdog_train.errors import EXIT_REFUSED
from watchdog_train.report.why_text import why_text
from watchdog_train.store.log_reading import last_word
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import agent_messages as messages
from watchdog_train.supervisor.hands.agent_messages import Inbox, Parcels
from watchdog_train.supervisor.hands.link.peers import LEADER, Link
from watchdog_train.supervisor.hands.remote import machine_of, this_machine
from watchdog_train.supervisor.loop import Supervisor
from watchdog_train.supervisor.observe import is_hurried
from watchdog_train.supervisor.resources import start_thread

REPORT_EVERY_S = 1.0
HURRIED_S = 0.05
"""Minimum time between reports with news."""
TURN_S = 0.25
DEAD_FOR_S = 2.0
SEEK_EVERY_S = 0.5
NOT_SEEN_AFTER_S = 45.0
"""A network file system may report a new file as missing for this long."""


class Agent(Supervisor):
    """A supervisor whose orders come from another one."""

    def __init__(self, context: Context, state: State, link: Link) -> None:
        super().__init__(context, state)
        self._line = link
        self._parcels = Parcels(context.directory.path)
        self._inbox = Inbox()
        self._place = machine_of(context.system)
        self._leader: Machine | None = None
        self._over: e.RunFinished | None = None
        self._heard_at = context.system.monotonic()
        self._reported_at = 0.0
        self._reported: messages.Report | None = None
        self._bundles: set[tuple[str, str]] = set()
        self._wanted = 0
        """The newest attempt that was ordered."""
        self._refused: tuple[int, str] | None = None
        """That attempt, and why it was not started."""
        self._sought = Sought("")
        self._dead: ProcessId | None = None  # a leader whose log was read after its death

    @property
    def speaks(self) -> bool:
        """The leader prints for all machines, so agents print nothing."""
        return self._leader is None

    def record(self, event: e.AnyEvent) -> None:
        """Append and fold; a launch that failed here is also reported to the leader."""
        super().record(event)
        number = self._wanted or (self.state.attempt.attempt if self.state.attempt else 0)
        match event:
            case e.LaunchPostponed():
                self._refused = (number, why_text(event.why))
            case e.AttemptExited(how_known="not-started"):
                self._refused = (number, why_text(event.error or Why("unknown")))

    def run(self) -> None:
        """The loop, then a last report, which the leader waits for."""
        super().run()
        self._report(self._observer.observe(self.state), over=True)

    def _decide(self, observation: a.Observation) -> a.Action:
        state, now = self.state, observation.now
        self._listen(now)
        self._read_last_word(now)
        if state.stop is not None or state.given_up is not None or self._was_never_led(now):
            self._report(observation)
            return super()._decide(observation)
        found = attend(observation, state, self._context.policy)
        return (
            self._be_asked(observation)
            or (None if isinstance(found, a.Wait) else found)
            or self._obey(observation)
            or self._be_alone(observation)
            or self._rest(observation)
        )

    def _was_never_led(self, now: float) -> bool:
        """Whether the training exited with code 0 and no leader was heard for UNHEARD_S."""
        attempt = self.state.attempt
        well = attempt is not None and attempt.ended and attempt.code == 0
        return well and self._leader is None and now - self._heard_at >= a.UNHEARD_S

    def _be_asked(self, observation: a.Observation) -> a.Action | None:
        """Pass a request to the job; without a link a stop is for this agent's own training."""
        request = observation.request
        if request is None:
            return None
        linked = self._leader is not None and observation.now - self._heard_at < a.UNHEARD_S
        if linked or request.kind in ("save", "dump"):
            self._parcels.ask(request)
            return a.Record(events=())
        return super()._decide(observation)

    def _obey(self, observation: a.Observation) -> a.Action | None:
        """The next order; recorded first, so that it is never carried out twice."""
        if self._inbox:
            order = self._inbox.next()
            begun = e.Ordered(epoch=self._inbox.epoch, number=order.number)
            return a.Several(actions=(a.Record(events=(begun,)), self._deed(order.work)))
        over, attempt = self._over, self.state.attempt
        if over is None:
            return None
        if attempt is not None and not (attempt.ended or observation.signs.quiet):
            stop = e.StopRequested(
                by="the leader", mode="soft", exit_code=over.exit_code, relayed=True
            )
            return a.Record(events=(stop,))
        if attempt is not None and not attempt.settled:
            return give_up(over.why, over.exit_code, over.outcome)
        self._copy()
        if not self._parcels.is_empty and observation.now - self._heard_at < a.UNHEARD_S:
            return None
        return a.Record(events=(over,))

    def _deed(self, work: messages.Work) -> a.Action:
        attempt = self.state.attempt
        match work:
            case messages.StartAttempt():
                self._refused, self._wanted = None, work.plan.attempt
                if attempt and (not attempt.tree_gone or attempt.attempt >= self._wanted):
                    lives = "was begun" if attempt.tree_gone else "still lives"
                    self._refused = (self._wanted, f"attempt {attempt.attempt} {lives} there")
                    return a.Record(events=())
                return a.Launch(plan=own_plan(work, self.state), hosts=("",))
            case messages.Discard():
                return a.Record(events=(), consumes=(work.name,))
            case messages.Known():
                return a.Record(events=(work.event,))
            case _:
                return work

    def _be_alone(self, observation: a.Observation) -> a.Action | None:
        refusal, policy = self._line.refusal, self._context.policy.job
        attempt = self.state.attempt
        if refusal is not None and attempt is None:
            return give_up(said(f"{refusal.message}: {refusal.hint}"), EXIT_REFUSED, "failed")
        alone_s = observation.now - self._heard_at
        if self._leader is None and alone_s >= SAY_AFTER_S and PEERS not in self.state.notices:
            kind = self.state.task.kind if self.state.task is not None else "task"
            why = Why("waits-for-agents", who=f"{kind} 0, which leads")
            return a.Record(events=(e.Noticed(kind=PEERS, pids=(), why=why),))
        if alone_s >= (policy.gather_s if attempt is None else policy.lost_s):
            known = attempt is None or attempt.crash_id is not None or attempt.stall_id is not None
            if attempt is not None and attempt.ended and attempt.code != 0 and not known:
                stall_id = next_stall_id(observation, self.state)
                return start_evidence(observation, self.state, stall_id, "crash")
            return leave(observation, self.state, Why("leader-lost", seconds=alone_s))
        return None

    def _read_last_word(self, now: float) -> None:
        """Learn from a dead leader's log that the run is over; only on the leader's machine."""
        leader = self._leader
        if leader is None or leader.place != self._place or now - self._heard_at <= DEAD_FOR_S:
            return
        if self._dead != leader.agent and self._context.system.is_alive(leader.agent) is False:
            self._dead, self._over = leader.agent, self._over or last_word(leader.run_dir)

    def _rest(self, observation: a.Observation) -> a.Action:
        self._report(observation)
        hurried = self._inbox or not self._parcels.is_empty or is_hurried(self.state)
        return a.Wait(until=observation.now + (HURRIED_S if hurried else TURN_S))

    def _listen(self, now: float) -> None:
        for _, data in self._line.receive():
            message = messages.decode(messages.DOWN, data)
            if message is None:
                continue
            self._heard_at = now
            if self.state.crew is not None and self._inbox.take(message, self.state.crew):
                self._leader, self._over = message.leader, message.over
                self._parcels.taken(message.taken)
                if message.checkpoint != self._sought.path:
                    self._sought = Sought(message.checkpoint)
        parcel = self._parcels.due(now)
        if parcel is not None:
            self._line.send(LEADER, messages.encode(parcel))

    def _report(self, observation: a.Observation, *, over: bool = False) -> None:
        """Report news at once, and once a second that this agent lives."""
        now, crew, attempt = observation.now, self.state.crew, self.state.attempt
        if crew is None:
            return
        number = attempt.attempt if attempt is not None else 0
        epoch = max(crew.epoch, self._inbox.epoch)
        report = messages.Report(
            agent=this_machine(self._context, self._place, self.state),
            epoch=epoch,
            done=crew.done if crew.epoch == epoch else 0,
            attempt=self._refused[0] if self._refused is not None else number,
            lives=attempt is not None and not attempt.settled,
            sight=self._sight(observation),
            checkpoint=self._sought.path,
            over=over,
        )
        due_s = HURRIED_S if report != self._reported else REPORT_EVERY_S
        if over or now - self._reported_at >= due_s:
            self._reported, self._reported_at = report, now
            self._copy()
            self._line.send(LEADER, messages.encode(msgspec.structs.replace(report, now=now)))

    def _sight(self, observation: a.Observation) -> a.TreeSight:
        """What the leader may see: a bundle appears once the leader has its files."""
        (sight,) = observation.trees
        told = {name: getattr(observation, name) for name in a.Told.__struct_fields__}
        result = sight.evidence
        sight = msgspec.structs.replace(sight, sees=self._sought.sees, told=a.Told(**told))
        if self._refused is not None:
            refused = a.LaunchReport(root=None, keeper=ProcessId(0, 0), error=self._refused[1])
            sight = msgspec.structs.replace(sight, launch=refused, exit=None)
        if result is None:
            return sight
        bundle = (result.stall_id, result.dir)
        if bundle not in self._bundles:
            self._bundles.add(bundle)
            folder = Path(result.dir)
            if folder.is_relative_to(self._context.directory.path):
                self._parcels.send_folder(folder)
        if self._parcels.is_empty:
            return sight
        running = sight.running | {"evidence"}
        return msgspec.structs.replace(sight, evidence=None, running=running)

    def _copy(self) -> None:
        """Send finished saves and output as they grow, also the last ones before a restart."""
        context = self._context
        for attempt in self.state.attempts[-2:]:
            folder = context.directory.attempt(attempt.attempt)
            output = (folder / name for name in ("output.log", "stdout.log", "stderr.log"))
            for path in (*sorted(folder.glob("saves.*.jsonl")), *output):
                self._parcels.send_file(path, context.policy.output.log_cap_bytes)


class Sought:
    """A checkpoint of the leader's; a thread checks for it, as a file system may not answer."""

    def __init__(self, path: str) -> None:
        self.path, self._found = path, not path
        self._until = time.monotonic() + NOT_SEEN_AFTER_S
        if path:
            start_thread(self._look, "sought")

    def _look(self) -> None:
        while not (found := os.path.exists(self.path)) and time.monotonic() < self._until:
            time.sleep(SEEK_EVERY_S)
        self._found = found

    @property
    def sees(self) -> bool | None:
        """None: not visible yet; False: still missing after NOT_SEEN_AFTER_S."""
        return self._found or (None if time.monotonic() < self._until else False)


def own_plan(order: messages.StartAttempt, state: State) -> Plan:
    """The plan with the command and the launcher's variables of this machine."""
    plan, argv, attempt = order.plan, state.argv, order.plan.attempt
    if argv == order.base:
        argv = plan.argv
    elif (same := as_this_node(plan.argv, order.base, argv)) is not None:
        argv = same
    else:
        if plan.resume_arg:
            path = plan.checkpoint.path if plan.checkpoint is not None else ""
            argv = with_arguments(argv, plan.resume_arg, path)
        argv = with_options(argv, plan.env)
    env = {**launcher_environment(state, attempt), **plan.env}
    return msgspec.structs.replace(plan, argv=argv, env=env)
