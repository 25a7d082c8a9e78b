"""The supervisor's loop: observe, decide, perform, record. It never blocks and never sleeps."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Request, Wait
from watchdog_train.core.decide import decide
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import world_elsewhere
from watchdog_train.core.notices.vitals import Vitals
from watchdog_train.keeper.messages import ready
from watchdog_train.report.narrative import narrate
from watchdog_train.report.patience_text import waiting
from watchdog_train.report.summary import opening_lines
from watchdog_train.store import requests
from watchdog_train.supervisor.context import Context
from watchdog_train.supervisor.hands import Hands
from watchdog_train.supervisor.hands.local import LocalHands
from watchdog_train.supervisor.observe import Observer
from watchdog_train.supervisor.outbox import Outbox, effects_wanted
from watchdog_train.supervisor.perform import Performer
from watchdog_train.supervisor.saved_checkpoints import remove_copies
from watchdog_train.supervisor.status_line import ProgressLine
from watchdog_train.supervisor.terminal import terminal_now

if TYPE_CHECKING:
    from watchdog_train.supervisor.hands.link.peers import Link

REQUESTS_EVERY_S = 0.5
LONGEST_PAUSE_S = 1.0
MOST_REST_S = 2.0
"""Maximum wait for a request, which is a file that wakes no loop."""
UNTOLD_PAUSE_S = 0.5
"""LONGEST_PAUSE_S of an adopted run, whose keeper sends no wake-ups."""
GATHER_S = 0.05
"""How long output is collected: a wake-up per line costs 1 % of a core for ten lines/s."""
HEAR_S, HEAR_TURNS = 0.2, 4
"""Messages of agents are collected for HEAR_TURNS times as long as the last turn took, as each turn
reads all machines, but for HEAR_S at most.
"""
HEAR_EVERY_S = 0.02
MOST_HEAR_S = 2.0
"""While a socket is full: decisions on messages ten seconds old would take all for silent."""
DRAIN_S = 2.0
VITALS_EVERY_S = 1.0


class Supervisor:
    def __init__(self, context: Context, state: State) -> None:
        self._context = context
        self.state = state
        self._hands = LocalHands(context)
        machines = context.machines
        hands: tuple[Hands, ...] = (self._hands, *(machines.hands if machines is not None else ()))
        self._link = context.link
        self._observer = Observer(context, hands)
        self._performer = Performer(context, self._observer, hands)
        self._progress_line = ProgressLine(context.policy.output, context.display)
        self._outbox = Outbox(effects_wanted(context), context.children)
        self._vitals: tuple[float, object] = (float("-inf"), None)
        """Time and stage of the last write to the control page."""
        self._requests_at = self._turn_at = 0.0
        self._log_was_behind = False
        self._trace_is_lacking = False
        self.on_launched: Callable[[], None] | None = None
        """Called once, when the first attempt of this supervisor runs."""
        self._begins = state.finished or not any(each.launched for each in state.attempts)

    @property
    def speaks(self) -> bool:
        """Whether it prints events for the user."""
        return True

    def record(self, event: e.AnyEvent) -> None:
        context = self._context
        attempt = self.state.attempt
        number = attempt.attempt if attempt is not None else 0
        if isinstance(event, e.AttemptLaunching):
            number = event.plan.attempt
        stamped = context.log.append(event, number)
        self.state = evolve(self.state, stamped)
        self._outbox.follow(stamped, self.state)
        if isinstance(event, (e.SaveProven, e.RequestRefused)) and context.machines is not None:
            for each in context.machines.hands:
                each.know(event)
        if isinstance(event, e.StallRecovered):
            self._observer.lengthen(self.state, event.stall_id)
        if isinstance(event, e.AttemptLaunched) and self._begins:
            self._begins = False
            self._open(event.pid)
        if isinstance(event, e.Noticed) and event.kind == "keeper":
            self._hands.drain(number)
        if isinstance(event, e.FirstStep) and (
            context.policy.output.quiet or not context.display.is_between_lines
        ):
            return  # in the middle of a progress bar, which says so itself
        for line in narrate(stamped, self.state) if self.speaks else ():
            context.display.say(line)

    def close(self) -> None:
        self._observer.close()
        self._performer.close()

    def _open(self, pid: int) -> None:
        context = self._context
        files = context.directory.path.parent / "latest"
        if self.speaks and not context.policy.output.quiet:
            for line in opening_lines(
                state=self.state, policy=context.policy, watching_pid=pid, files=str(files)
            ):
                context.display.say(line)
        if self.on_launched is not None:
            self.on_launched()

    def run(self) -> None:
        while not self.state.finished:
            for number in self._context.signals.take():
                self._on_signal(signals.Signals(number))
            self._take_requests()
            observation = self._observer.observe(self.state)
            self._tell_vitals(observation)
            action = self._decide(observation)
            if isinstance(action, Wait):
                if action.decides:
                    self._observer.sample_by(action.until)
                self._progress_line.tell(self.state, observation)
                for event in self._outbox.poll(self.state, observation):
                    self.record(event)
                self._pause(action.until, self._observer.rests_until if action.idle else 0.0)
                continue
            self._context.display.pump()  # what was written before an event is shown before it
            for event in self._performer.perform(action, self.state, observation):
                self.record(event)
                if isinstance(event, e.Progress):
                    self._performer.note_training(observation)
                    for shared in self._performer.claim_directories(self.state):
                        self.record(shared)
            self._say_when_behind()
        self._tell_vitals()
        last = self.state.attempt
        sure = last is None or last.plan.checkpoint is None or last.resume == "verified"
        if self.state.outcome == "succeeded" and sure:
            remove_copies(self._context.directory)
        self._context.display.drain(time.monotonic() + DRAIN_S)
        for event in self._outbox.finish(lambda: self.state):
            self.record(event)

    def _decide(self, observation: Observation) -> Action:
        task = self._context.unled
        told = None
        if task is not None and not observation.running and observation.request is None:
            told = world_elsewhere(task, observation, self.state)
        return told or decide(observation, self.state, self._context.policy, self._context.remedies)

    def _tell_vitals(self, observation: Observation | None = None) -> None:
        """Report on the control page that the loop turns, and the stage of the run.

        Once a second, and at once for another state. Must not open or make a file: full memory or a
        hanging disk would look like our death.
        """
        context, state, me = self._context, self.state, self.state.supervisor
        attempt = state.attempt
        now, number = context.system.monotonic(), attempt.attempt if attempt is not None else 0
        told_at, told = self._vitals
        stage = (state.state, number)
        if context.control is None or me is None:
            return
        if stage == told and now - told_at < VITALS_EVERY_S:
            return
        self._vitals = (now, stage)
        signs = observation.signs if observation is not None else None
        age_s = signs.age_s if signs is not None else None
        stepped = attempt is not None and attempt.first_step_s is not None
        context.control.tell(
            Vitals(
                pid=me.pid,
                start=me.start,
                turned_s=now,
                state=state.state,
                attempt=number,
                step=signs.step if signs is not None else state.progress.step,
                progressed_s=now - age_s if age_s is not None else None,
                trains=state.state == "running" and stepped and state.suspicion is None,
                waits=waiting(state, now) or "",
            )
        )

    def ask(self, request: Request) -> None:
        """Queue a request of the person who started this supervisor."""
        self._observer.requests.append(request)

    def _pause(self, until: float, rests_until: float) -> None:
        """Wait for an event or the time limit; output is passed on without a turn."""
        context, keeper = self._context, self._context.keeper
        signalled = [context.signals.wakeup_fd]
        line = [self._link.fileno()] if self._link is not None and self._link.fileno() >= 0 else []
        tells = keeper is not None and keeper.wake_fd >= 0
        begun = context.system.monotonic()
        turn_s = min(HEAR_S, HEAR_TURNS * (begun - self._turn_at))
        until = min(until, begun + (LONGEST_PAUSE_S if tells else UNTOLD_PAUSE_S))
        until = max(until, min(rests_until, begun + MOST_REST_S)) if tells else until
        while True:
            wake = [keeper.wake_fd] if keeper is not None and keeper.wake_fd >= 0 else []
            left_s = max(0.0, until - context.system.monotonic())
            found = ready([*signalled, *wake, *line], (), left_s)
            if keeper is not None and wake and wake[0] in found:
                keeper.clear_wake()
            woken = signalled[0] not in found or context.signals.only_woken()
            context.display.pump()
            ended = keeper is None or keeper.exit is not None or keeper.wake_fd < 0
            heard = bool(line) and line[0] in found
            if ended or heard or not woken or not found or not left_s:
                if heard and self._link is not None:
                    self._gather(self._link, min(turn_s, left_s))
                self._turn_at = context.system.monotonic()
                return
            ready(signalled, (), min(GATHER_S, left_s))

    def _gather(self, link: Link, for_s: float) -> None:
        """Read messages of agents until a limit or signal: a socket holds only part of a turn's."""
        clock, signalled = self._context.system.monotonic, [self._context.signals.wakeup_fd]
        now = clock()
        until = now + for_s
        while (left_s := until - clock()) > 0:
            if ready(signalled, (), min(HEAR_EVERY_S, left_s)):
                return
            if link.gather():
                until = max(until, min(now + MOST_HEAR_S, clock() + 2 * HEAR_EVERY_S))

    def _on_signal(self, number: signals.Signals) -> None:
        context = self._context
        match number.name:
            case "SIGINT":
                context.display.key_pressed()
                self._observer.requests.append(Request(kind="interrupt", by="Ctrl-C"))
            case "SIGTERM":
                self._observer.requests.append(Request(kind="stop", by="SIGTERM"))
            case "SIGQUIT":
                self._observer.requests.append(Request(kind="dump", by="SIGQUIT"))
            case "SIGHUP":
                context.display.leave_terminal()
            case "SIGWINCH":
                self._follow_size()
            case "SIGTSTP":
                context.display.leave_for_now()
                context.signals.stop_here()
                self._follow_size()  # a job in the background hears of no change
            case "SIGUSR1" | "SIGUSR2":
                self._forward(number)

    def _follow_size(self) -> None:
        context = self._context
        context.display.resized()
        if context.keeper is not None:
            now = terminal_now(foreground=True)
            context.keeper.ends.resize(now.rows, now.columns)

    def _forward(self, number: signals.Signals) -> None:
        """A scheduler's warning: to a root that handles it, else a save-request."""
        attempt = self.state.attempt
        root = attempt.root if attempt is not None and not attempt.ended else None
        if root is None or not self._hands.forward(root, number):
            self._observer.requests.append(Request(kind="save", by=number.name))

    def _take_requests(self) -> None:
        now = time.monotonic()
        if now < self._requests_at:
            return
        self._requests_at = now + REQUESTS_EVERY_S
        self._observer.requests.extend(requests.take(self._context.directory))
        if self._context.machines is not None:
            self._observer.requests.extend(self._context.machines.requests)
            self._context.machines.requests.clear()

    def _say_when_behind(self) -> None:
        behind = self._context.log.behind()
        if behind is not None and not self._log_was_behind:
            for line in narrate(behind, self.state):
                self._context.display.say(line)
        self._log_was_behind = behind is not None
        trouble = self._context.trace.trouble
        if trouble is not None and not self._trace_is_lacking:
            self._trace_is_lacking = True
            self._context.display.say(f"wtrain: trace.jsonl lacks samples: {trouble}")
