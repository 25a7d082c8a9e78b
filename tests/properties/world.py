"""A simulated machine with one supervised run: processes, collectors, a clock, and a shell.

The shell performs actions as supervisor/perform.py does, but on simulated processes, and checks
at every effect what must never happen. Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.core import builders as b
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core import track as tracks
from watchdog_train.core.decide import decide
from watchdog_train.core.detect import Verdict, verdict
from watchdog_train.core.evolve import evolve, replay
from watchdog_train.core.model import (
    CheckpointFinding,
    EvidenceResult,
    ExitStatus,
    Member,
    MemberSample,
    Patience,
    Phase,
    Plan,
    ProcessId,
    Role,
    Sample,
    Survey,
)
from watchdog_train.core.policy import (
    Detection,
    PhaseBudget,
    Phases,
    Policy,
    Recovery,
    Stopping,
)
from watchdog_train.core.state import State
from watchdog_train.remedies.catalogue import CATALOGUE

STOP, CONT, TERM, KILL, INT = 19, 18, 15, 9, 2
MOST_ACTIONS_AT_ONCE = 60
DEAD = ("Z", "X")

_short = PhaseBudget(soft_s=8.0, hard_s=120.0)
PHASES = Phases(
    unknown=_short,
    startup=_short,
    first_step=_short,
    train=_short,
    eval=_short,
    finishing=_short,
)


def policy(**recovery: Any) -> Policy:
    """Real proportions, short times: a hang costs about half a minute of the simulated clock."""
    return Policy(
        detection=Detection(
            phases=PHASES,
            learnt_soft_floor_s=8.0,
            learnt_hard_floor_s=120.0,
            patience_floor_s=4.0,
            patience_cap_s=20.0,
        ),
        stopping=Stopping(
            grace_s=6.0,
            ask_s=8.0,
            hang_grace_s=2.0,
            helpers_s=2.0,
            keeper_s=2.0,
            kill_s=4.0,
            outlive_s=4.0,
        ),
        recovery=Recovery(backoff_first_s=2.0, backoff_cap_s=16.0, **recovery),
    )


@dataclass(kw_only=True)
class Script:
    """What one attempt will do, and how its processes take signals."""

    ending: str = "finish"
    """finish, crash, killed, hang, hang-at-start, hang-at-end, input, not-started, no-keeper"""
    steps: int = 6
    ranks: int = 1
    workers: int = 0
    launcher: bool = False
    helper: bool = False
    on_term: str = "die"
    """die, ignore, exit0, slow"""
    immortal: bool = False
    """One process is stuck in the kernel when it is to die."""
    stragglers: int = 0
    """Born one at a time when somebody is killed."""
    leftover_s: float = 0.0
    """A process that outlives the root this long."""
    can_stop: bool = False
    slot: bool = True
    recovers_after_s: float | None = None
    keeper_dies_at_s: float | None = None
    keeper_stays: bool = False


@dataclass(kw_only=True)
class Process:
    pid: int
    role: Role
    rank: int | None = None
    name: str = "python"
    state: str = "S"
    ends_at: float | None = None
    code: int | None = None
    signal: int | None = None
    got: list[int] = field(default_factory=list)
    known: bool = False
    known_before_kill: bool = False

    @property
    def alive(self) -> bool:
        return self.state not in DEAD

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.pid + 1000)


@dataclass(kw_only=True)
class Attempt:
    script: Script
    number: int
    began: float
    processes: list[Process]
    keeper: Process
    steps: int = 0
    healthy_s: float = 0.0
    hung_at: float | None = None
    recovered: bool = False
    births: int = 0
    deaths: int = 0
    cpu_s: float = 0.0
    exit: ExitStatus | None = None
    over: bool = False
    empty_looks: int = 0
    stragglers_left: int = 0
    phase: Phase = "startup"
    immortal: int = 0

    @property
    def root(self) -> Process:
        return self.processes[0]

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    @property
    def hung(self) -> bool:
        return self.hung_at is not None


@dataclass
class Task:
    ends_at: float
    answer: Any


class World:
    """The machine, the run's shell, and the invariants."""

    def __init__(self, the_policy: Policy, scripts: list[Script]) -> None:
        self.policy = the_policy
        self.scripts = list(scripts)
        self.now = 1000.0
        self.suspended_s = 0.0
        self.attempts: list[Attempt] = []
        self.next_pid = 100
        self.log: list[e.AnyEvent] = []
        self.state = State()
        self.mirror = State()
        self.requests: list[a.Request] = []
        self.tasks: dict[a.TaskName, Task] = {}
        self.answers: dict[a.TaskName, Any] = {}
        self.look_s, self.evidence_s = 0.3, 1.0
        self.patience: Patience = "unknown"
        self.whole = True
        self.saved_step: int | None = None
        self.save: a.SaveReport | None = None
        self.dies_after: int | None = None
        self.late_s = 0.0
        self.supervisor = 1
        self.sequence = 0
        self.starts: list[float] = []
        self._forget()
        self.record(b.RUN_STARTED)

    # The supervisor's memory ------------------------------------------------------------------

    def _forget(self) -> None:
        self.track = tracks.new_track(self.now)
        self.verdict = Verdict(kind="alive")
        self.sample = Sample(
            at=self.now,
            members=(),
            cpu_s=None,
            io_bytes=None,
            tcp_bytes=None,
            log_bytes=0,
            births=0,
            deaths=0,
        )
        self.followed = 0

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
        boot_id = "b2" if rebooted else self.state.boot_id
        self.record(
            e.Adopted(pid=self.supervisor, start=1, boot_id=boot_id, previous_pid=1, why="gone")
        )

    def record(self, event: e.AnyEvent) -> None:
        attempt = self.state.attempt
        number = attempt.attempt if attempt is not None else 0
        event = msgspec.structs.replace(
            event, seq=len(self.log) + 1, mono=self.now, t=1e9 + self.now, attempt=number
        )
        self.log.append(event)
        self.state = evolve(self.state, event)
        self.mirror = evolve(self.mirror, e.decode(e.encode(event)))
        assert self.mirror == self.state, "replay(log) == state"
        self._check_event(event)

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
            if not self.state.attempt.tree_gone and launch is not None and launch.root is not None:
                self._look(attempt)
        for name, task in list(self.tasks.items()):
            if task.ends_at <= self.now:
                del self.tasks[name]
                self.answers[name] = task.answer
        return a.Observation(
            now=self.now,
            wall=1e9 + self.now,
            sample=self.sample,
            verdict=self.verdict,
            request=self.requests.pop(0) if self.requests else None,
            launch=launch,
            exit=attempt.exit if attempt is not None else None,
            running=frozenset(self.tasks),
            look=self.answers.get("look"),
            evidence=self.answers.get("evidence"),
            survey=self.answers.get("survey"),
            last_save=self.save,
        )

    def _launch_report(self, attempt: Attempt) -> a.LaunchReport | None:
        if attempt.script.ending == "no-keeper" or self.now < attempt.began + 0.1:
            return None
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
        self.sample = Sample(
            at=self.now,
            members=tuple(members),
            cpu_s=attempt.cpu_s,
            io_bytes=0,
            tcp_bytes=0,
            log_bytes=attempt.steps,
            births=attempt.births,
            deaths=attempt.deaths,
            empty_looks=attempt.empty_looks,
            keeper_alive=attempt.keeper.alive,
            suspended_s=self.suspended_s,
            late_s=self.late_s,
        )
        self.late_s = 0.0
        self.track = tracks.advance(self.track, self.sample, self.policy.detection)
        self.verdict = verdict(self.track, self.sample, self.policy.detection)

    def _member(self, attempt: Attempt, process: Process) -> MemberSample:
        reading = None
        if process.role == "rank" and attempt.script.slot and process.alive:
            reading = b.slot(
                process.pid,
                words=attempt.steps,
                phase=attempt.phase,
                rank=process.rank,
                attempt=attempt.number,
                can_stop=attempt.script.can_stop,
                can_save=attempt.script.can_stop,
                total_steps=attempt.script.steps,
            )
        who = Member(
            pid=process.pid,
            start=process.pid + 1000,
            role=process.role if attempt.script.slot or process.role != "rank" else "other",
            rank=process.rank,
            name=process.name,
        )
        waits = attempt.script.ending == "input" and attempt.hung and process is attempt.root
        return MemberSample(
            member=who,
            state=process.state,
            cpu_s=0.0,
            io_bytes=0,
            slot=reading,
            waits_for_input=waits,
        )

    # Time -------------------------------------------------------------------------------------

    def advance(self, moment: float) -> None:
        """The world goes on, in steps of at most a second."""
        while self.now < moment:
            seconds = min(1.0, moment - self.now)
            self.now += seconds
            if self.attempts:
                self._live(self.attempts[-1], seconds)
        self.now = max(self.now, moment)

    def _live(self, attempt: Attempt, seconds: float) -> None:
        script = attempt.script
        for process in attempt.processes:
            due = process.ends_at is not None and self.now >= process.ends_at
            if due and process.alive and process.state not in ("T", "D"):
                self._end(attempt, process, process.code, process.signal)
        died = (
            script.keeper_dies_at_s is not None
            and self.now >= attempt.began + script.keeper_dies_at_s
        )
        if died and attempt.keeper.alive:
            attempt.keeper.state = "X"
        if not attempt.root.alive and not attempt.alive and not script.keeper_stays:
            attempt.keeper.state = "X"
        if not attempt.root.alive:
            if attempt.exit is None and not attempt.keeper.alive:
                attempt.exit = ExitStatus(code=None, signal=None, how_known="gone")
            for process in attempt.processes:
                if process.state == "Z":
                    process.state = "X"
            return
        self._train(attempt, seconds)

    def _train(self, attempt: Attempt, seconds: float) -> None:
        script = attempt.script
        if any(process.state == "T" for process in attempt.alive):
            return
        if script.ending in ("not-started", "no-keeper"):
            return
        if attempt.hung:
            after = script.recovers_after_s
            if after is None or self.now < (attempt.hung_at or 0.0) + after:
                return
            attempt.hung_at, attempt.recovered = None, True
        attempt.healthy_s += seconds
        attempt.cpu_s += seconds
        if attempt.healthy_s < 2.0:
            return
        if script.ending == "hang-at-start" and not attempt.recovered:
            attempt.hung_at = self.now
            return
        attempt.phase = "train"
        done = int(attempt.healthy_s - 2.0)
        attempt.steps = max(attempt.steps, min(done, script.steps))
        if attempt.steps and self.saved_step != attempt.steps:
            self.saved_step = attempt.steps
        half = script.steps // 2
        if script.ending in ("hang", "input") and attempt.steps >= half and not attempt.recovered:
            attempt.hung_at = self.now
        if done <= script.steps:
            return
        attempt.phase = "finishing"
        if script.ending == "hang-at-end" and not attempt.recovered:
            attempt.hung_at = self.now
            return
        code = {"crash": 3}.get(script.ending, 0)
        signal = {"killed": 9}.get(script.ending)
        self.finish_training(attempt, None if signal else code, signal)

    def finish_training(self, attempt: Attempt, code: int | None, signal: int | None) -> None:
        """The training ends by itself; what it leaves behind is in its script."""
        for process in list(attempt.alive):
            if process is attempt.root or process.state == "D":
                continue
            self._end(attempt, process, 0, None)
        if attempt.script.leftover_s:
            self._bear(attempt, "other", ends_at=self.now + attempt.script.leftover_s)
        self._end(attempt, attempt.root, code, signal)

    def _end(
        self, attempt: Attempt, process: Process, code: int | None, signal: int | None
    ) -> None:
        process.state = "Z"
        process.code, process.signal = code, signal
        attempt.deaths += 1
        if process is attempt.root and attempt.keeper.alive:
            attempt.exit = ExitStatus(code=code, signal=signal, how_known="keeper-file")

    def _bear(self, attempt: Attempt, role: Role, **more: Any) -> Process:
        self.next_pid += 1
        process = Process(pid=self.next_pid, role=role, **more)
        attempt.processes.append(process)
        attempt.births += 1
        return process

    # What the shell does ----------------------------------------------------------------------

    def perform(self, action: a.Action) -> Iterator[e.AnyEvent]:
        match action:
            case a.Record():
                yield from action.events
                for name in action.consumes:
                    self.answers.pop(name, None)
            case a.Launch():
                yield from self._start(action.plan)
            case a.StartLook():
                self._task("look", self.look_s, self._result("look", patience=self.patience))
            case a.StartEvidence():
                yield e.EvidenceCollecting(
                    stall_id=action.stall_id, why=action.bundle_why, dir=f"/r/{action.stall_id}"
                )
                self._task("evidence", self.evidence_s, self._result(action.stall_id))
            case a.StartSurvey():
                self._task("survey", 0.5, self._survey())
            case a.Signal():
                yield from self._signal(action)
            case a.AskStop():
                self.sequence += 1
                yield e.StopAsked(
                    sequence=self.sequence, can_be_asked=action.can_be_asked, why=action.why
                )
                attempt = self.attempts[-1]
                if not attempt.hung and attempt.root.alive and attempt.root.state == "S":
                    self.finish_training(attempt, 0, None)
            case a.AskSave():
                self.sequence += 1
                yield e.SaveRequested(
                    by=action.by, sequence=self.sequence, can_be_asked=action.can_be_asked
                )
                self.save = a.SaveReport(path="/out/1", step=1, t=1e9 + self.now)
            case a.CleanUp():
                attempt = self.attempts[-1]
                assert not attempt.alive, "the tree is said to be gone, and lives"
                yield e.TreeGone()

    def _task(self, name: a.TaskName, seconds: float, answer: Any) -> None:
        assert name not in self.tasks, f"a second {name} while one runs"
        self.answers.pop(name, None)
        self.tasks[name] = Task(self.now + seconds, answer)

    def _result(self, stall_id: str, **more: Any) -> EvidenceResult:
        return b.result(stall_id, **more)

    def _survey(self) -> Survey:
        if self.saved_step is None:
            return Survey(findings=(), directories=("/out",))
        finding = CheckpointFinding(
            path=f"/out/{self.saved_step}",
            format="hf",
            step=self.saved_step,
            whole=self.whole,
            why="it ends early",
            how_checked="recorded",
        )
        return Survey(findings=(finding,), directories=("/out",))

    def _start(self, plan: Plan) -> Iterator[e.AnyEvent]:
        for earlier in self.attempts:
            assert not earlier.alive, "launched over a living tree"
            assert not earlier.keeper.alive, "launched over a living keeper"
        assert self.state.stop is None, "launched after a stop request"
        until = self.state.backoff_until
        assert until is None or self.now >= until, "launched before its time"
        if self.attempts:
            limit = self.policy.recovery.max_restarts
            assert self.state.restarts_since_progress < limit, "over the restart budget"
        assert not self.policy.recovery.observe or not self.attempts, "observing, and restarts"
        # A supervisor that dies right here has started nothing.
        self.attempts.append(self._tree(Script(ending="no-keeper"), plan.attempt))
        yield e.AttemptLaunching(token="t", plan=plan)
        script = self.scripts.pop(0) if self.scripts else Script()
        self.attempts[-1] = self._tree(script, plan.attempt)

    def _tree(self, script: Script, number: int) -> Attempt:
        self.next_pid += 1
        keeper = Process(pid=self.next_pid, role="keeper", name="keeper")
        attempt = Attempt(script=script, number=number, began=self.now, processes=[], keeper=keeper)
        attempt.stragglers_left = script.stragglers
        if script.ending in ("not-started", "no-keeper"):
            keeper.state = "X"
            self._bear(attempt, "other").state = "X"
            return attempt
        if script.launcher:
            self._bear(attempt, "launcher", name="torchrun")
        for number_of in range(script.ranks):
            self._bear(attempt, "rank", rank=number_of)
        for _ in range(script.workers):
            self._bear(attempt, "worker", rank=0)
        if script.helper:
            self._bear(attempt, "other", name="resource_tracker")
        attempt.immortal = attempt.processes[-1].pid if script.immortal else 0
        return attempt

    def _signal(self, action: a.Signal) -> Iterator[e.AnyEvent]:
        attempt = self.attempts[-1]
        if self.state.kill is None:
            for process in attempt.processes:
                process.known_before_kill = process.known and process.alive
        self._check_signal(action, attempt)
        yield e.Signalling(
            sequence=action.sequence,
            stage=action.stage,
            targets=action.targets,
            signal=action.signal,
            why=action.why,
        )
        if action.signal == 0:
            return
        everybody = {process.identity: process for process in (*attempt.processes, attempt.keeper)}
        for target in action.targets:
            assert target in everybody, "a signal to somebody who is not ours"
            process = everybody[target]
            assert process.known or process is attempt.keeper, "a signal to a stranger"
            group = attempt.alive if action.group else [process]
            for one in group:
                self._deliver(attempt, one, action.signal)
            yield e.Signalled(
                pid=target.pid,
                start=target.start,
                signal=action.signal,
                role=process.role,
                result="sent" if process.alive else "gone",
            )

    def _check_signal(self, action: a.Signal, attempt: Attempt) -> None:
        stop = self.state.stop
        observing = self.policy.recovery.observe
        of_keeper = action.targets == (attempt.keeper.identity,)
        if observing and action.signal and not of_keeper:
            assert stop is not None, "a signal while only observing"
        if action.sequence == "hang":
            current = self.state.attempt
            assert current is not None
            collected = {
                event.stall_id for event in self.log if isinstance(event, e.EvidenceCollected)
            }
            assert current.stall_id in collected, "a signal before the evidence"
        if action.sequence == "stop" and action.signal and stop is not None and stop.mode == "soft":
            assert not any(
                stall.collecting and stall.why == "stall" for stall in self.state.stalls
            ), "a signal while evidence is collected"
        if action.signal != KILL or (stop is not None and stop.mode == "now"):
            return
        for process in attempt.processes:
            if process.identity in action.targets and process.role == "rank":
                told = TERM in process.got or not process.known_before_kill
                assert told or not attempt.script.slot, "SIGKILL before SIGTERM"

    def _deliver(self, attempt: Attempt, process: Process, signal: int) -> None:
        process.got.append(signal)
        if not process.alive or process.state == "D":
            return
        if process is attempt.keeper:
            if signal == KILL:
                process.state = "X"
            return
        if signal == STOP:
            process.state = "T"
            return
        if attempt.stragglers_left and process.role != "launcher":
            attempt.stragglers_left -= 1
            self._bear(attempt, "rank" if attempt.stragglers_left % 2 else "worker", rank=0)
        if process.pid == attempt.immortal and (
            signal == KILL or attempt.script.on_term != "ignore"
        ):
            process.state = "D"
            return
        if signal == KILL:
            self._end(attempt, process, None, KILL)
            return
        if process.state == "T":
            process.state = "S"
        match attempt.script.on_term:
            case "die":
                self._end(attempt, process, None, signal)
            case "exit0":
                self._end(attempt, process, 0, None)
            case "slow":
                process.ends_at, process.code = self.now + 1.5, 0
            case _:
                pass

    # What must hold of the log ----------------------------------------------------------------

    def _check_event(self, event: e.AnyEvent) -> None:
        attempt = self.attempts[-1] if self.attempts else None
        match event:
            case e.StallDeclared():
                assert attempt is not None
                faulty = attempt.hung or not attempt.root.alive
                stuck = any(process.state == "D" for process in attempt.alive)
                assert faulty or stuck, "a healthy training was declared stalled"
                assert attempt.script.ending != "input", "a prompt was declared a stall"
            case e.StallRecovered():
                assert attempt is not None
                assert not attempt.hung or not attempt.root.alive, "recovered, and still hung"
            case e.RunFinished():
                self._check_end(event)

    def _check_end(self, event: e.RunFinished) -> None:
        final = self.attempts[-1] if self.attempts else None
        state = self.state
        if state.stop is not None and event.outcome == "stopped":
            assert event.exit_code == state.stop.exit_code
            return
        assert final is not None
        alive = [process.pid for process in final.alive]
        if alive and not self.policy.recovery.observe:
            assert event.warning is not None
            assert all(str(pid) in event.warning for pid in alive)
        truth = final.exit
        killed = any(
            isinstance(one, e.Signalling) and one.sequence == "hang" and one.attempt == final.number
            for one in self.log
        )
        if event.outcome == "succeeded":
            assert event.exit_code == 0
            if killed:
                assert final.phase == "finishing", "a stalled attempt counts as success"
                assert event.warning is not None
            else:
                assert truth is not None
                assert truth.code == 0
        elif final.script.ending in ("not-started", "no-keeper"):
            assert event.exit_code == 78
        elif event.outcome == "gave_up":
            assert event.exit_code in (75, 76)
            assert event.exit_code != 76 or self.policy.recovery.max_restarts > 0
        else:
            assert event.outcome == "failed"
            assert truth is not None
            own = truth.code if truth.code is not None else 128 + (truth.signal or 0)
            assert event.exit_code == (75 if truth.how_known == "gone" else own)
            assert event.exit_code != 0, "a failure with exit code 0"
