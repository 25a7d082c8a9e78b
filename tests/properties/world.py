"""One run on a simulated machine: the loop, its tasks and its log around the real core.

Actions are performed as supervisor/perform.py does it; every effect and every event is held
against the promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.core import builders as b
from tests.properties.promises import check_event, check_launch, check_signal
from tests.properties.simulated import Attempt, Machine, Process, Script
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.decide import decide
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.detection.detect import Verdict, verdict
from watchdog_train.core.fold.evolve import evolve, replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    CheckpointFinding,
    JointAnswer,
    Patience,
    Plan,
    ProcessId,
    Sample,
    SaveRecord,
    Survey,
    said,
    written,
)
from watchdog_train.core.policy import Detection, Policy, Recovery, Stopping, Timing, WaitLimits
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.store.slots import LastWords
from watchdog_train.supervisor.hands.exits import Departures

MOST_ACTIONS_AT_ONCE = 60


def policy(**recovery: Any) -> Policy:
    """Real proportions, short times: a hang costs about half a minute of the simulated clock."""
    return Policy(
        detection=Detection(
            silence_s=8.0,
            busy_s=120.0,
            learnt_hard_floor_s=120.0,
            rank_gone_s=3.0,
            rank_gone_launcher_s=9.0,
        ),
        patience=WaitLimits(
            unknown_s=12.0,
            unknown_early_s=12.0,
            cost_most_s=20.0,
            again_s=30.0,
            again_later_s=60.0,
            again_most_s=90.0,
        ),
        stopping=Stopping(grace_s=6.0, ask_s=8.0, hang_grace_s=2.0),
        timing=Timing(ask_most_s=20.0, outlive_s=4.0),
        recovery=Recovery(backoff_cap_s=16.0, **recovery),
    )


def intent(action: a.Signal, **more: Any) -> e.Signalling:
    """What the log says before anything is sent."""
    names = ("sequence", "stage", "targets", "signal", "why")
    told = {name: getattr(action, name) for name in names}
    return e.Signalling(where=written(action.host), **told, **more)


@dataclass
class Watch:
    """What a descriptor of a process tells about its end."""

    process: Process

    def status(self) -> int | None:
        if self.process.signal is not None:
            return -self.process.signal
        return self.process.code if not self.process.alive else None

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Task:
    ends_at: float
    answer: Any


class World(Machine):
    """The machine, the run's shell, and the invariants."""

    def __init__(self, the_policy: Policy, scripts: list[Script]) -> None:
        super().__init__()
        self.policy = the_policy
        self.scripts = list(scripts)
        self.log: list[e.AnyEvent] = []
        self.state = State()
        self.mirror = State()
        self.requests: list[a.Request] = []
        self.tasks: dict[a.TaskName, Task] = {}
        self.answers: dict[a.TaskName, Any] = {}
        self.look_s, self.evidence_s = 0.3, 1.0
        self.patience = Patience(limit_s=12.0)
        self.whole = True
        self.scans_fail = 0
        """So many of the next scans of checkpoints leave no answer."""
        self.valid = False
        """A valid checkpoint was there at the newest scan, whether that failed or not."""
        self.save: SaveRecord | None = None
        self.dies_after: int | None = None
        self.asked_after: dict[int, a.Request] = {}
        """Requests by the number of the event after which they come."""
        self.late_s = 0.0
        self.supervisor = 1
        self.sequence = 0
        self._forget()
        self.record(b.RUN_STARTED)

    # The supervisor's memory ------------------------------------------------------------------

    def _forget(self) -> None:
        self.track = tracks.new_track(self.now)
        self.verdict = Verdict(kind="alive")
        self.sample = Sample(at=self.now, members=())
        self.followed = 0
        self.departures = Departures(self, LastWords(None))  # type: ignore[arg-type]
        self.departures.seed(self.state.rank_ends)

    def command_line(self, _pid: int) -> None:
        """Departures asks for it, too."""

    def watch_exit(self, who: ProcessId) -> Watch:
        """With is_alive the part of a system that Departures asks."""
        everybody = [process for attempt in self.attempts for process in attempt.processes]
        return Watch(next(process for process in everybody if process.identity == who))

    def is_alive(self, who: ProcessId) -> bool:
        return self.watch_exit(who).process.alive

    def adopt(self, *, rebooted: bool = False) -> None:
        """The supervisor dies at this line, another takes up the run: tasks and memory are lost."""
        assert replay(self.log) == self.state
        self.state = replay(
            msgspec.json.decode(msgspec.json.encode(self.log), type=list[e.AnyEvent])
        )
        self.tasks.clear()
        self.answers.clear()
        self.requests.clear()
        self.supervisor += 1
        if rebooted:
            for attempt in self.attempts:
                for process in (*attempt.processes, attempt.keeper):
                    process.state = "X"
                attempt.began = 0.0
            self.now = 10.0
        self._forget()
        self.dies_after = None
        boot_id = f"{self.state.boot_id}+" if rebooted else self.state.boot_id
        self.record(
            e.Adopted(
                pid=self.supervisor, start=1, boot_id=boot_id, previous_pid=1, why=said("gone")
            )
        )

    def record(self, event: e.AnyEvent) -> None:
        attempt = self.state.attempt
        number = attempt.attempt if attempt is not None else 0
        event = msgspec.structs.replace(
            event, seq=len(self.log) + 1, mono=self.now, t=1e9 + self.now, attempt=number
        )
        self.log.append(event)
        if event.seq in self.asked_after:
            self.requests.append(self.asked_after.pop(event.seq))
        self.state = evolve(self.state, event)
        if isinstance(event, e.LaunchPostponed):
            self.attempts.pop()
            self.followed = 0
        self.mirror = evolve(self.mirror, e.decode(e.encode(event)))
        assert self.mirror == self.state, "replay(log) == state"
        self.check(event)

    def check(self, event: e.AnyEvent) -> None:
        """What the log says is true."""
        check_event(event, self.attempts, self.state, self.policy, self.log)
        if isinstance(event, e.PlanMade) and self.valid:
            assert event.plan.checkpoint is not None, "begins at step 0 beside a valid checkpoint"

    # One turn of the loop ---------------------------------------------------------------------

    def run_until(self, moment: float) -> None:
        """Let the supervisor work until a moment of its clock."""
        at_once = 0
        while not self.state.finished and self.now < moment:
            action = decide(self.observe(), self.state, self.policy, CATALOGUE)
            if isinstance(action, a.Wait):
                assert action.until > self.now, f"a wait that does not wait: {action}"
                at_once = 0
                self.advance(min(action.until, moment, self.now + 1.0))
                continue
            at_once += 1
            assert at_once < MOST_ACTIONS_AT_ONCE, f"spins on {action}"
            for event in self.perform(action):
                self.record(event)
                if self.dies_after is not None:
                    self.dies_after -= 1
                    if self.dies_after <= 0:
                        if not self.state.finished:
                            self.adopt()
                        break

    def observe(self) -> a.Observation:
        attempt = self.attempts[-1] if self.attempts else None
        launch = None
        if attempt is not None and self.state.attempt is not None:
            if self.followed != attempt.number:
                self._forget()
                self.followed = attempt.number
            launch = self._launch_report(attempt)
            started = launch is not None and launch.root is not None
            if not self.state.attempt.tree_gone and (started or self.state.attempt.ended):
                self._look(attempt)
        self.take_answers()
        return a.Observation(
            now=self.now,
            wall=1e9 + self.now,
            sample=self.sample,
            verdict=self.verdict,
            request=self.requests.pop(0) if self.requests else None,
            trees=(self._sight(self.sample, launch),),
            running=frozenset(self.tasks),
            survey=self.answers.get("survey"),
            joint=self.answers.get("joint"),
            last_save=self.save,
        )

    def take_answers(self) -> None:
        for name, task in list(self.tasks.items()):
            if task.ends_at <= self.now:
                self.answers[name] = self.tasks.pop(name).answer

    def _sight(self, sample: Sample, launch: a.LaunchReport | None) -> a.TreeSight:
        return a.TreeSight(
            sample=sample,
            launch=launch,
            exit=self.attempts[-1].exit if self.attempts else None,
            running=frozenset(self.tasks),
            look=self.answers.get("look"),
            evidence=self.answers.get("evidence"),
        )

    def _launch_report(self, attempt: Attempt) -> a.LaunchReport | None:
        if attempt.script.ending == "no-keeper" or self.now < attempt.began + 0.1:
            return None
        if attempt.script.ending == "keeper-lost":
            return a.LaunchReport(root=None, keeper=attempt.keeper.identity, lost=True)
        if attempt.script.ending == "not-started":
            return a.LaunchReport(root=None, keeper=attempt.keeper.identity, error="no such file")
        return a.LaunchReport(root=attempt.root.identity, keeper=attempt.keeper.identity)

    def _look(self, attempt: Attempt) -> None:
        members = [
            self._member(attempt, process) for process in attempt.processes if process.state != "X"
        ]
        if attempt.keeper.alive:
            members.append(self._member(attempt, attempt.keeper))
        if self.sample.at < self.now:
            thorough = self.state.kill is not None or bool(
                self.state.attempt and self.state.attempt.ended
            )
            if attempt.alive:
                attempt.empty_looks = 0
            elif thorough:
                attempt.empty_looks += 1
        for process in attempt.processes:
            process.known = True
        self.sample = b.sample(
            self.now,
            *members,
            cpu_s=attempt.cpu_s,
            log_bytes=attempt.steps,
            births=attempt.births,
            deaths=attempt.deaths,
            empty_looks=attempt.empty_looks,
            keeper_alive=attempt.keeper.alive,
            suspended_s=self.suspended_s,
            late_s=self.late_s,
            ended=self.departures.look(members, self.now),
        )
        self.late_s = 0.0
        self._judge()

    def _judge(self) -> None:
        self.track = tracks.advance(self.track, self.sample, self.policy.detection)
        self.verdict = verdict(self.track, self.sample, self.policy.detection)

    # What the shell does ----------------------------------------------------------------------

    def perform(self, action: a.Action) -> Iterator[e.AnyEvent]:
        match action:
            case a.Several():
                for each in action.actions:
                    yield from self.perform(each)
            case a.Record():
                yield from action.events
                for name in action.consumes:
                    self.answers.pop(name, None)
            case a.Launch():
                yield from self._start(action.plan)
            case a.StartLook():
                # Stacks prove no deadlock of somebody who works.
                lies = self.patience.row == "proven" and not self.attempts[-1].hung
                patience = Patience(limit_s=12.0) if lies else self.patience
                if any(process.state == "T" for process in self.attempts[-1].alive):
                    patience = Patience(row="stopped")
                if self.attempts[-1].script.ending == "input":
                    patience = Patience(row="input")
                self._task("look", self.look_s, b.result("look", patience=patience))
            case a.StartEvidence():
                yield e.EvidenceCollecting(
                    stall_id=action.stall_id, why=action.bundle_why, dir=f"/r/{action.stall_id}"
                )
                self._task("evidence", self.evidence_s, b.result(action.stall_id))
            case a.StartJoint():
                self._task("joint", 0.5, self._joint())
            case a.StartSurvey():
                self._task("survey", 0.5, self._survey())
            case a.Signal():
                yield from self._signal(action)
            case a.AskStop():
                self.sequence += 1
                names = ("can_be_asked", "why", "step", "expects_save")
                told = {name: getattr(action, name) for name in names}
                yield e.StopAsked(sequence=self.sequence, **told)
                attempt = self.attempts[-1]
                if not attempt.hung and attempt.root.alive and attempt.root.state == "S":
                    if action.expects_save:
                        self.save = SaveRecord(format="hf", path="/out/1", step=1, t=1e9 + self.now)
                    self.finish_training(attempt, 0, None)
            case a.AskSave():
                self.sequence = max(self.sequence + 1, action.number)
                yield e.SaveRequested(
                    by=action.by, sequence=self.sequence, can_be_asked=action.can_be_asked
                )
                self.save = SaveRecord(format="hf", path="/out/1", step=1, t=1e9 + self.now)
            case a.CleanUp():
                attempt = self.attempts[-1]
                assert not attempt.alive, "the tree is said to be gone, and lives"
                yield e.TreeGone()

    def _task(self, name: a.TaskName, seconds: float, answer: Any) -> None:
        assert name not in self.tasks, f"a second {name} while one runs"
        self.answers.pop(name, None)
        self.tasks[name] = Task(self.now + seconds, answer)

    def _joint(self) -> JointAnswer:
        """Every other one fails."""
        failed = JointAnswer(explanation=None, problem="it left no answer")
        number = self.state.attempt.attempt if self.state.attempt is not None else 0
        return failed if number % 2 else JointAnswer(explanation=b.result("joint").explanation)

    def _survey(self) -> Survey:
        beside_writers = bool(self.attempts) and self.attempts[-1].alive
        self.valid = self.saved_step is not None and self.whole
        if self.scans_fail:
            self.scans_fail -= 1
            return Survey(findings=(), directories=(), problem="killed", failed=True)
        step = self.saved_step
        finding = CheckpointFinding(
            path=f"/out/{step}",
            format="hf",
            step=step,
            whole=self.whole,
            said="it ends early",
            how_checked="recorded",
        )
        findings = () if step is None else (finding,)
        return Survey(findings=findings, directories=("/out",), beside_writers=beside_writers)

    def _start(self, plan: Plan) -> Iterator[e.AnyEvent]:
        check_launch(self.attempts, self.state, self.policy, self.log, self.now)
        # A supervisor that dies right here has started nothing.
        self.attempts.append(self._tree(Script(ending="no-keeper"), plan.attempt))
        yield e.AttemptLaunching(token="t", plan=plan)
        script = self.scripts.pop(0) if self.scripts else Script()
        self.attempts[-1] = self._tree(script, plan.attempt)

    def _signal(self, action: a.Signal) -> Iterator[e.AnyEvent]:
        attempt = self.attempts[-1]
        if self.state.kill is None:
            for process in attempt.processes:
                process.known_before_kill = process.known and process.alive
        check_signal(action, attempt, self.state, self.policy, self.log)
        yield intent(action)
        if action.signal == 0:
            return
        everybody = {process.identity: process for process in (*attempt.processes, attempt.keeper)}
        for target in action.targets:
            assert target in everybody, "a signal to somebody who is not ours"
            process = everybody[target]
            assert process.known or process is attempt.keeper, "a signal to a stranger"
            group = attempt.alive if action.group else [process]
            for one in group:
                self.deliver(attempt, one, action.signal)
            sent = e.SentSignal(
                pid=target.pid,
                start=target.start,
                signal=action.signal,
                role=process.role,
                result="sent" if process.alive else "gone",
            )
            yield e.Signalled(sent=(sent,))
