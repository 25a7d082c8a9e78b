"""A job of several tasks: simulated supervisors that see each other through late and lost records.

Each task is a World of its own with its own machine; their clocks go together. A rank that waits
for another one that hangs, or is gone, hangs too: that is what a collective does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.properties.simulated import Attempt, Script
from tests.properties.world import World
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.detection.detect import signs
from watchdog_train.core.job.elsewhere import elsewhere_quiet
from watchdog_train.core.job.peers import (
    Heard,
    JobView,
    PeerView,
    Summary,
    hear,
    summarise,
)
from watchdog_train.core.policy import Job as PolicyOfJob
from watchdog_train.core.policy import Policy
from watchdog_train.core.starting.jobs import JobTask

TICK_S = 0.25


class Record:
    """A task's published record, as it travels to each reader."""

    def __init__(self) -> None:
        self.history: deque[tuple[float, Summary]] = deque(maxlen=400)
        self.seen: dict[int, tuple[float, Summary]] = {}

    def at(self, moment: float, reader: int) -> Summary | None:
        """The newest record that was published by this moment; nobody sees it go back."""
        newest = next((each for each in reversed(self.history) if each[0] <= moment), None)
        before = self.seen.get(reader)
        if newest is None or (before is not None and before[0] > newest[0]):
            newest = before
        if newest is None:
            return None
        self.seen[reader] = newest
        return newest[1]


class Task(World):
    """One task: its supervisor publishes a summary and reads those of its peers."""

    def __init__(self, job: Job, number: int, policy: Policy, scripts: list[Script]) -> None:
        self.job, self.number = job, number
        self.record_of = Record()
        self.heard: dict[int, Heard] = {}
        self.published = -1.0
        self.last: Summary | None = None
        self.sequence_of = 0
        self.down_until: float | None = None
        self.deaf_until = -1.0
        self.declared_at: tuple[Any, ...] = ()
        super().__init__(policy, scripts)
        who = JobTask(job="job:1", source="wtrain", task=number, tasks=job.size, here=job.size)
        if job.nodes:
            who = msgspec.structs.replace(who, here=1, kind="node", coordination="/shared")
        self.record(e.TaskJoined(task=who, together=job.nodes))

    @property
    def down(self) -> bool:
        return self.down_until is not None

    def observe(self) -> a.Observation:
        seen = super().observe()
        detection = self.policy.detection
        own = signs(self.track, self.sample, detection)
        view = self.view()
        return msgspec.structs.replace(
            seen, signs=own, job=view, verdict=self.judge(own, view), now=self.now
        )

    def judge(self, own: Any, view: JobView) -> Any:
        from watchdog_train.core.detection.detect import verdict

        quiet = elsewhere_quiet(
            self.state,
            own,
            view,
            silent_s=self.policy.job.silent_s,
            lost_s=self.policy.job.lost_s,
            part_of_more=True,
        )
        return verdict(self.track, self.sample, self.policy.detection, elsewhere_quiet=quiet)

    def view(self) -> JobView:
        peers = []
        for other in self.job.tasks:
            if other is self:
                continue
            summary = self.job.read(self, other)
            if summary is None:
                continue
            heard = hear(self.heard.get(other.number), summary, self.now)
            self.heard[other.number] = heard
            peers.append(heard.view(self.now, alive=self.job.is_alive(heard.summary.pid)))
        return JobView(peers=tuple(peers), visible=tuple(self.visible(peers)))

    def visible(self, peers: list[PeerView]) -> Iterator[tuple[str, bool]]:
        """Of the checkpoints that are proposed, which ones this node sees."""
        for peer in peers:
            proposal = peer.summary.proposal
            if proposal is not None and proposal.plan.checkpoint is not None:
                path = proposal.plan.checkpoint.path
                yield path, (self.number, path) not in self.job.unseen

    def publish(self) -> None:
        """At each change of its stage, and once a second."""
        own = signs(self.track, self.sample, self.policy.detection)
        summary = summarise(self.state, own)
        assert summary is not None
        before, self.last = self.last, summary
        same = before is not None and msgspec.structs.replace(
            before, signs=own, sequence=0
        ) == msgspec.structs.replace(summary, sequence=0)
        if same and self.now < self.published + 1.0:
            return
        self.published = self.now
        self.sequence_of += 1
        summary = msgspec.structs.replace(
            summary, sequence=self.sequence_of, pid=self.supervisor + 1000 * (self.number + 1)
        )
        self.record_of.history.append((self.now, summary))

    def check(self, event: e.AnyEvent) -> None:
        """As for a single run, but the reason may be in another task."""
        together = self.state.job is not None and self.state.job.together
        if isinstance(event, e.StallDeclared) and together:
            assert self.job.faulty(), "a healthy job was declared stalled"
            # What is followed may have ended before its word arrived.
            self.declared_at = () if event.basis == "peer" else self.job.reached()
        elif isinstance(event, e.StallRecovered) and together:
            assert self.job.reached() != self.declared_at, "recovered, and nothing has moved"
        elif not (isinstance(event, e.RunFinished) and together):
            super().check(event)

    def perform(self, action: a.Action) -> Any:
        if isinstance(action, a.TakeOver):
            yield e.PeerLost(task=action.task, pid=action.pid, run_id=action.run_id, why=action.why)
            self.job.tasks[action.task].down_until = self.now + self.job.take_over_s
            return
        if isinstance(action, a.Signal) and action.signal:
            self.job.check_kill(self, action)
        if isinstance(action, a.Launch):
            self.job.check_launch(self, action)
            if not self.scripts:
                self.scripts.append(Script(world=self.job.size, first_rank=self.number))
        yield from super().perform(action)


class Job:
    """The tasks, what travels between them, and what must hold between them."""

    def __init__(
        self,
        policy: Policy,
        plays: list[list[Script]],
        *,
        seed: int = 0,
        nodes: bool = False,
        kind: type[Task] = Task,
    ) -> None:
        self.size = len(plays)
        self.nodes = nodes
        """Each task is on a machine of its own: nobody can tell whether another one lives."""
        self.unseen: set[tuple[int, str]] = set()
        """Which node does not see which checkpoint."""
        if nodes:
            policy = msgspec.structs.replace(
                policy, job=PolicyOfJob(lost_s=60.0, gather_s=60.0, plan_s=60.0)
            )
        self.policy = policy
        self.delay_s = 0.2
        self.take_over_s = 1.0
        self.chance = random.Random(seed)
        self.lossy = 0.0
        self.lost: dict[tuple[int, int], float] = {}
        self.plans: dict[int, set[bytes]] = {}
        self.dead: set[int] = set()
        self.independent = False
        """Each task trains a world of its own."""
        self.tasks: list[Task] = []
        for number, scripts in enumerate(plays):
            self.tasks.append(kind(self, number, policy, scripts))

    # What travels -----------------------------------------------------------------------------

    def read(self, reader: Task, writer: Task) -> Summary | None:
        late = self.delay_s
        if reader.deaf_until > reader.now:
            late += 1e9 if reader.number not in writer.heard else reader.now - reader.deaf_until
        pair = (reader.number, writer.number)
        if self.lossy and self.chance.random() < self.lossy:
            self.lost[pair] = reader.now + 3.0
        if self.lost.get(pair, 0.0) > reader.now:
            late += 3.0
        return writer.record_of.at(reader.now - late, reader.number)

    def is_alive(self, pid: int) -> bool | None:
        return None if self.nodes else pid not in self.dead

    # Time -------------------------------------------------------------------------------------

    def run_until(self, moment: float) -> None:
        while self.now < moment and not all(task.state.finished for task in self.tasks):
            upto = min(moment, self.now + TICK_S)
            for task in self.tasks:
                if task.down:
                    task.advance(upto)
                    if task.down_until <= upto:
                        self.revive(task)
                elif not task.state.finished:
                    task.run_until(upto)
                    task.now = max(task.now, upto)
                    task.publish()
                else:
                    task.advance(upto)
            self.couple_ranks()

    @property
    def now(self) -> float:
        return min(task.now for task in self.tasks)

    def couple_ranks(self) -> None:
        """Who waits for a rank that does not come, waits."""
        if self.independent:
            return
        present = [task.attempts[-1] if task.attempts else None for task in self.tasks]
        for attempt in present:
            if attempt is None or not attempt.root.alive:
                continue
            if attempt.evaluates and attempt.hung_at is None:
                attempt.held = None  # what it does now needs nobody else
                continue
            others = [other for other in present if other is not attempt]
            held = {self.holds_up(attempt, other) for other in others}
            attempt.held = "hang" if "hang" in held else "eval" if "eval" in held else None

    @staticmethod
    def holds_up(attempt: Attempt, other: Attempt | None) -> str | None:
        """How the other task keeps this one from its next step."""
        if other is None or other.number != attempt.number:
            return "hang"
        if not other.root.alive:
            ended_well = other.exit is not None and other.exit.code == 0 and not other.root.got
            return None if ended_well else "hang"
        if attempt.steps <= other.steps - 1:
            return None
        if other.hung_at is not None:
            return "hang"
        return "eval" if other.evaluates else None

    # Faults -----------------------------------------------------------------------------------

    def kill_supervisor(self, number: int) -> None:
        task = self.tasks[number]
        if not task.state.finished and not task.down:
            self.dead.add(task.supervisor + 1000 * (number + 1))
            task.down_until = 1e18

    def revive(self, task: Task) -> None:
        task.down_until = None
        task.heard.clear()
        task.adopt()

    def reached(self) -> tuple[Any, ...]:
        """How far all tasks are: equal as long as nothing in the job moves."""
        present = [task.attempts[-1] for task in self.tasks if task.attempts]
        return tuple((one.healthy_s, one.evaluated_s, one.exit, one.number) for one in present)

    def faulty(self) -> bool:
        """Whether any rank of the job hangs or has hung, has ended badly, was killed, or will never
        be there: nobody takes the place of a supervisor that died on a machine of its own."""
        present = [task.attempts[-1] for task in self.tasks if task.attempts]
        newest = max((attempt.number for attempt in present), default=0)
        return any(
            task.down and (not task.attempts or task.attempts[-1].number < newest)
            for task in self.tasks
            if self.nodes
        ) or any(
            attempt.hung_at is not None
            or attempt.recovered
            or any(process.state in ("D", "T") or process.got for process in attempt.processes)
            or (not attempt.root.alive and (attempt.exit is None or attempt.exit.code != 0))
            for attempt in present
        )

    # What must hold ---------------------------------------------------------------------------

    def check_kill(self, task: Task, action: a.Signal) -> None:
        """Nobody is killed for a hang or a crash before every living task has its evidence."""
        if task.state.stop is not None or not task.state.job.together:
            return
        attempt = task.state.attempt
        assert attempt is not None
        if action.sequence == "sweep" and attempt.code == 0 and attempt.stall_id is None:
            return
        assert attempt.barrier, "killed without a barrier"
        for event in reversed(task.log):
            if isinstance(event, e.BarrierMissed):
                assert event.waited_s >= task.policy.job.barrier_s
                return
            if isinstance(event, e.BarrierReached):
                break
        for other in self.tasks:
            if other is task or other.down or other.state.finished:
                continue
            theirs = other.state.attempt
            if theirs is None or theirs.attempt != attempt.attempt:
                continue
            has_evidence = (
                theirs.tree_gone
                or theirs.code == 0
                or any(
                    stall.attempt == theirs.attempt and stall.collected
                    for stall in other.state.stalls
                )
            )
            assert has_evidence, f"task {task.number} kills before task {other.number} dumped"

    def check_launch(self, task: Task, action: a.Launch) -> None:
        """All tasks run an attempt under the same plan, or not at all."""
        if not task.state.job.together or action.plan.attempt == 1:
            return
        content = msgspec.json.encode(action.plan, order="sorted")
        plans = self.plans.setdefault(action.plan.attempt, set())
        plans.add(content)
        assert len(plans) == 1, f"attempt {action.plan.attempt} under two plans"
        for other in self.tasks:
            attempt = other.attempts[-1] if other.attempts else None
            if attempt is None or attempt.number >= action.plan.attempt:
                continue
            assert not attempt.alive, "launched while ranks of the last attempt live elsewhere"
