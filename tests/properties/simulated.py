"""A simulated machine: processes of an attempt that train, hang, end, and take signals.

It only reacts. Time passes when somebody lets it pass, so everything is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.core import builders as b
from watchdog_train.core.model import ExitStatus, Member, MemberSample, Phase, ProcessId, Role

STOP, CONT, TERM, KILL = 19, 18, 15, 9
DEAD = ("Z", "X")
NEVER_RAN = ("not-started", "no-keeper", "keeper-lost")
ALONE_S = 40.0
"""What one rank may do in silence after the others are through."""


@dataclass(kw_only=True)
class Script:
    """What one attempt will do, and how its processes take signals."""

    ending: str = "finish"
    """finish, crash, killed, hang, hang-at-start, hang-at-end, input, not-started, no-keeper,
    keeper-lost;
    rank-fails, rank-leaves: the last rank does, and the others wait for it; rank-early: it is
    through, and the first one works on without a sign of life."""
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
    world: int = 1
    """Ranks of the whole job, where other tasks have some."""
    first_rank: int = 0
    evaluates_s: float = 0.0
    """Half-way the first rank evaluates alone this long, busily."""


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
    late: bool = False
    """Born while others were killed; it never gets to a step."""
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
    alone_at: float | None = None
    held: str | None = None
    """"hang" or "eval": its ranks wait for one of another task that hangs, or evaluates."""
    evaluated_s: float = 0.0

    @property
    def root(self) -> Process:
        return self.processes[0]

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    @property
    def last_rank(self) -> Process | None:
        """The last of several ranks, while it lives."""
        ranks = [process for process in self.processes if process.role == "rank"]
        last = ranks[-1] if len(ranks) > 1 else None
        return last if last is not None and last.alive and not last.late else None

    @property
    def hung(self) -> bool:
        return self.hung_at is not None or self.held == "hang"

    @property
    def evaluates(self) -> bool:
        script = self.script
        return self.steps >= script.steps // 2 and 0 < script.evaluates_s > self.evaluated_s


class Machine:
    """The processes of all attempts, and the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.suspended_s = 0.0
        self.attempts: list[Attempt] = []
        self.next_pid = 100
        self.saved_step: int | None = None

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
        if attempt.alone_at is not None and self.now < attempt.alone_at + ALONE_S:
            return
        if any(process.state == "T" for process in attempt.alive):
            return
        if script.ending in NEVER_RAN:
            return
        if attempt.held is not None:
            return
        if attempt.hung:
            after = script.recovers_after_s
            if (
                after is None
                or script.ending in ("rank-fails", "rank-leaves")
                or self.now < (attempt.hung_at or 0.0) + after
            ):
                return
            attempt.hung_at, attempt.recovered = None, True
            attempt.healthy_s += 1.0 - seconds  # It shows: the step that hung is done.
        attempt.healthy_s += seconds
        attempt.cpu_s += seconds
        if attempt.healthy_s < 2.0:
            return
        if script.ending == "hang-at-start" and not attempt.recovered:
            attempt.hung_at = self.now
            return
        if attempt.evaluates:
            attempt.phase = "eval"
            attempt.evaluated_s += seconds
            attempt.healthy_s -= seconds
            return
        attempt.phase = "train"
        done = int(attempt.healthy_s - 2.0)
        attempt.steps = max(attempt.steps, min(done, script.steps))
        if attempt.steps and self.saved_step != attempt.steps:
            self.saved_step = attempt.steps
        half = script.steps // 2
        if script.ending in ("hang", "input") and attempt.steps >= half and not attempt.recovered:
            attempt.hung_at = self.now
        last = attempt.last_rank
        if script.ending in ("rank-fails", "rank-leaves") and last and attempt.steps >= half:
            self._end(attempt, last, 3 if script.ending == "rank-fails" else 0, None)
            attempt.hung_at = self.now
            return
        if done <= script.steps:
            return
        if script.ending == "rank-early" and last and script.slot:
            self._end(attempt, last, 0, None)
            attempt.alone_at = self.now
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

    def _tree(self, script: Script, number: int) -> Attempt:
        self.next_pid += 1
        keeper = Process(pid=self.next_pid, role="keeper", name="keeper")
        attempt = Attempt(script=script, number=number, began=self.now, processes=[], keeper=keeper)
        attempt.stragglers_left = script.stragglers
        if script.ending in NEVER_RAN:
            keeper.state = "X"
            self._bear(attempt, "other").state = "X"
            return attempt
        if script.launcher:
            self._bear(attempt, "launcher", name="torchrun")
        for number_of in range(script.ranks):
            self._bear(attempt, "rank", rank=script.first_rank + number_of)
        for _ in range(script.workers):
            self._bear(attempt, "worker", rank=0)
        if script.helper:
            self._bear(attempt, "other", name="resource_tracker")
        attempt.immortal = attempt.processes[-1].pid if script.immortal else 0
        return attempt

    def _member(self, attempt: Attempt, process: Process) -> MemberSample:
        reading = None
        if process.role == "rank" and attempt.script.slot and process.alive:
            reading = b.slot(
                process.pid,
                words=0 if process.late else attempt.steps,
                phase=attempt.phase,
                rank=process.rank,
                world_size=max(attempt.script.ranks, attempt.script.world),
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
            member=who, state=process.state, cpu_s=0.0, slot=reading, waits_for_input=waits
        )

    def deliver(self, attempt: Attempt, process: Process, signal: int) -> None:
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
            role: Role = "rank" if attempt.stragglers_left % 2 else "worker"
            self._bear(attempt, role, rank=0, late=True)
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
