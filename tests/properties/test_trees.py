"""Several machines in one state: nothing goes on before every one of them is through."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.properties.simulated import KILL, Attempt, Script
from tests.properties.world import World, intent, policy
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.detection.detect import signs, verdict
from watchdog_train.core.model import Sample, together, written
from watchdog_train.core.policy import Job, Policy
from watchdog_train.core.starting.jobs import JobTask

HOSTS = ("", "b", "c")
RANKS = 2


class OneMachine(World):
    """The processes of one host, as its hands see them; decides nothing."""

    def __init__(self, host: str, first_rank: int) -> None:
        self.host, self.first_rank = host, first_rank
        super().__init__(policy(), [])

    def start(self, script: Script, number: int) -> None:
        """One order."""
        script.first_rank, script.world = self.first_rank, RANKS * len(HOSTS)
        self.attempts.append(self._tree(script, number))
        self._forget()

    @property
    def present(self) -> Attempt:
        return self.attempts[-1]

    def sight(self, *, thorough: bool) -> a.TreeSight:
        """As if it came over a wire: members say which host is theirs."""
        if not self.attempts:
            return a.TreeSight(sample=together((), at=self.now, host=self.host))
        attempt = self.present
        launch = self._launch_report(attempt)
        self._look(attempt)
        if self.sample.at == self.now and not attempt.alive and thorough:
            attempt.empty_looks += 1
        return self._sight(_of_host(self.sample, self.host), launch)

    def _judge(self) -> None:
        """Whoever leads does, over all of them."""


def _of_host(sample: Sample, host: str) -> Sample:
    members = tuple(
        msgspec.structs.replace(one, member=msgspec.structs.replace(one.member, host=host))
        for one in sample.members
    )
    ended = tuple(msgspec.structs.replace(one, where=written(host)) for one in sample.ended)
    return msgspec.structs.replace(sample, machine=host, members=members, ended=ended)


def _with_job(the_policy: Policy) -> Policy:
    job = Job(lost_s=60.0, gather_s=60.0)
    return msgspec.structs.replace(the_policy, job=job)


class Machines(World):
    """One supervisor over three of them."""

    def __init__(self, plays: list[tuple[Script, ...]], chance: random.Random) -> None:
        self.plays, self.chance = list(plays), chance
        self.machines = {
            host: OneMachine(host, RANKS * number) for number, host in enumerate(HOSTS)
        }
        self.cut: dict[str, float] = {}
        """Machines that cannot be heard, since when."""
        self.seen: dict[str, a.TreeSight] = {}
        """Of the attempt that is followed now."""
        self.waiting: list[Callable[[], object]] = []
        """Orders that have not come through."""
        self.asked: dict[str, set[str]] = {}
        """What a machine was told to collect since it was heard, come through or not."""
        super().__init__(_with_job(policy(max_restarts=2)), [])
        task = JobTask(job="j", source="wtrain", task=0, tasks=3, here=3)
        self.record(e.TaskJoined(task=task))

    def order(self, host: str, name: str, deed: Callable[[], object]) -> None:
        """Carried out at once, or when the machine is heard again."""
        self.asked.setdefault(host, set()).add(name)
        if host in self.cut:
            self.waiting.append(deed)
        else:
            deed()

    def cut_off(self, host: str) -> None:
        self.cut.setdefault(host, self.now)

    def heal(self) -> None:
        self.cut.clear()
        waiting, self.waiting = self.waiting, []
        for deed in waiting:
            deed()

    def _hear(self, host: str, now: a.TreeSight) -> a.TreeSight:
        """As the leader has it: of a machine that is cut off what was seen last."""
        if host not in self.cut:
            self.seen[host] = now
            self.asked.pop(host, None)
            return now
        silent_s = self.now - self.cut[host]
        blank = a.TreeSight(sample=together((), at=self.now, host=host))
        old = self.seen.get(host, blank)
        asked: Any = self.asked.get(host, set())
        return msgspec.structs.replace(
            old,
            sample=msgspec.structs.replace(old.sample, machine=host),
            is_heard=host in self.seen and silent_s < a.UNHEARD_S,
            silent_s=silent_s,
            running=old.running | asked,
        )

    def advance(self, moment: float) -> None:
        for machine in self.machines.values():
            machine.advance(moment)
        self.now = max(self.now, moment)

    def adopt(self, *, rebooted: bool = False) -> None:
        super().adopt(rebooted=rebooted)
        self.waiting.clear()
        self.asked.clear()
        self.seen.clear()
        self.cut = dict.fromkeys(self.cut, self.now)
        here = self.machines[""]
        here.tasks.clear()
        here.answers.clear()

    def check(self, event: e.AnyEvent) -> None:
        """The log tells each thing once a machine."""
        attempt = self.state.attempt
        if attempt is None:
            return
        match event:
            case e.AttemptExited() | e.TreeGone() | e.AttemptLaunched():
                same = Counter(
                    (type(each), each.host)
                    for each in self.log
                    if isinstance(each, type(event)) and each.attempt == event.attempt
                )
                assert same[type(event), event.host] == 1, f"twice: {event}"
                assert attempt.tree_gone == all(tree.gone for tree in self.state.trees)
            case e.MachineLost():
                assert self.now - self.cut[event.host] >= 30.0, "a machine is given up early"
            case e.StallDeclared():
                assert event.basis == "peer" or any(
                    machine.present.hung or not machine.present.root.alive or self.killed
                    for machine in self.machines.values()
                ), "a healthy training was declared stalled"

    killed = False
    """Somebody outside has killed a process."""

    @property
    def attempts_made(self) -> int:
        return len(self.machines[""].attempts)

    def kill_somebody(self) -> None:
        machine = self.machines[self.chance.choice(HOSTS)]
        alive = machine.present.alive if machine.attempts else []
        if alive:
            self.killed = True
            machine.deliver(machine.present, self.chance.choice(alive), KILL)

    def observe(self) -> a.Observation:
        number = self.state.attempt.attempt if self.state.attempt is not None else 0
        if self.followed != number:
            self._forget()
            heard = [host for host in self.seen if host in self.cut]
            self.seen = dict.fromkeys(heard, a.TreeSight(sample=together((), at=self.now)))
            self.followed = number
        self.take_answers()
        sights = []
        for machine in self.machines.values():
            tree = self.state.tree(machine.host)
            machine.take_answers()
            machine.state = self.state
            over = tree is not None and (tree.kill is not None or tree.ended)
            sights.append(self._hear(machine.host, machine.sight(thorough=over)))
        sample = together([each.sample for each in sights], at=self.now)
        if self.state.attempt is not None and self.state.attempt.launched:
            if sample.at > self.sample.at:
                self.track = tracks.advance(self.track, sample, self.policy.detection)
            self.sample = sample
            self.verdict = verdict(
                self.track,
                self.sample,
                self.policy.detection,
                elsewhere_quiet=all(sight.is_heard for sight in sights),
            )
        return a.Observation(
            now=self.now,
            wall=1e9 + self.now,
            trees=tuple(sights),
            sample=sample,
            verdict=self.verdict,
            request=self.requests.pop(0) if self.requests else None,
            running=frozenset(self.tasks),
            survey=self.answers.get("survey"),
            joint=self.answers.get("joint"),
            signs=signs(self.track, self.sample, self.policy.detection),
        )

    def perform(self, action: a.Action) -> Iterator[e.AnyEvent]:
        match action:
            case a.Record(events=events, consumes=consumes):
                yield from events
                for name in consumes:
                    self.answers.pop(name, None)
                    for host, machine in self.machines.items():
                        if name == "look" or host == action.host:
                            machine.answers.pop(name, None)
                            old = self.seen.get(host)
                            if old is not None and name in ("look", "evidence"):
                                forgotten: Any = {name: None}
                                self.seen[host] = msgspec.structs.replace(old, **forgotten)
            case a.Launch():
                yield from self._launch(action)
            case a.StartLook():
                self._collect(action.host, "look", 0.3, b.result("look"))
            case a.StartEvidence():
                yield e.EvidenceCollecting(
                    where=written(action.host),
                    stall_id=action.stall_id,
                    why=action.bundle_why,
                    dir=f"/r/{action.stall_id}",
                )
                seconds = self.chance.choice((0.1, 1.0, 8.0))
                self._collect(action.host, "evidence", seconds, b.result(action.stall_id))
            case a.Signal():
                yield from self._signal(action)
            case a.CleanUp():
                attempt = self.machines[action.host].present
                assert not attempt.alive, "the tree is said to be gone, and lives"
                yield e.TreeGone(where=written(action.host))
            case _:
                yield from super().perform(action)

    def _collect(self, host: str, name: Any, seconds: float, answer: Any) -> None:
        self.order(host, name, lambda: self.machines[host]._task(name, seconds, answer))

    def _launch(self, action: a.Launch) -> Iterator[e.AnyEvent]:
        assert action.hosts == HOSTS, "an order a machine"
        for machine in self.machines.values():
            for earlier in machine.attempts:
                assert not earlier.alive, "launched over a living tree"
                assert not earlier.keeper.alive, "launched over a living keeper"
        lost = self.chance.random() < 0.1  # an order that never comes through
        scripts = self.plays.pop(0) if self.plays else tuple(Script(ranks=RANKS) for _ in HOSTS)
        for machine, script in zip(self.machines.values(), scripts, strict=True):
            ending = "no-keeper" if lost and machine.host == "c" else script.ending
            chosen = Script(**{**vars(script), "ending": ending})
            self.order(machine.host, "", partial(machine.start, chosen, action.plan.attempt))
        yield e.AttemptLaunching(token="t", plan=action.plan, where=HOSTS)

    def _signal(self, action: a.Signal) -> Iterator[e.AnyEvent]:
        machine = self.machines[action.host]
        attempt = self.state.attempt
        assert attempt is not None
        assert all(target.host == action.host for target in action.targets), "somebody else's"
        hurried = self.state.stop is not None
        bundle = attempt.stall_id or attempt.crash_id
        if action.signal and bundle is not None and not hurried:
            had = {
                each.host
                for each in self.log
                if isinstance(each, e.EvidenceCollected) and each.stall_id == bundle
            }
            lost = {tree.host for tree in attempt.trees if tree.lost}
            assert had | lost == {*HOSTS}, "a signal before the evidence of every machine"
        if action.sequence == "hang" and attempt.stall_id is None:
            assert any(tree.failed for tree in attempt.trees), "a healthy training is killed"
        trees = {tree.host: tree for tree in attempt.trees}
        if trees[action.host].kill is not None and action.sequence != "sweep":
            for other in self.machines.values():
                tree = trees[other.host]
                begun = tree.settled or tree.kill is not None or other.host in self.cut
                assert begun or not other.present.alive, "one machine is ahead of another"
        yield intent(action)
        present = machine.present
        everybody = {one.pid: one for one in (*present.processes, present.keeper)}
        for target in action.targets if action.signal else ():
            deliver = partial(machine.deliver, present, everybody[target.pid], action.signal)
            self.order(action.host, "", deliver)
            sent = e.SentSignal(
                pid=target.pid, start=target.start, signal=action.signal, role="rank", result="sent"
            )
            yield e.Signalled(where=written(action.host), sent=(sent,))

    def _survey(self) -> Any:
        self.saved_step = self.machines[""].saved_step
        return super()._survey()


def script(chance: random.Random) -> Script:
    endings = ("finish",) * 4 + ("crash", "killed", "hang", "hang-at-end", "not-started")
    return Script(
        ending=chance.choice(endings),
        steps=chance.randint(4, 9),
        ranks=RANKS,
        launcher=chance.random() < 0.5,
        helper=chance.random() < 0.5,
        on_term=chance.choice(("die", "ignore", "exit0", "slow")),
        immortal=chance.random() < 0.1,
        stragglers=chance.choice((0, 0, 1, 2)),
        leftover_s=chance.choice((0.0, 0.0, 2.0, 1e9)),
        keeper_dies_at_s=chance.choice((None, None, None, 3.0)),
        keeper_stays=chance.random() < 0.2,
    )


def bring_home(world: Machines) -> None:
    world.run_until(world.now + 3000.0)
    assert world.state.finished or not any(tree.lost for tree in world.state.trees), "left waiting"
    if not world.state.finished:
        world.requests.append(a.Request(kind="stop_now", by="the test"))
        world.run_until(world.now + 100.0)
    assert world.state.finished, "it does not come to an end"
    if not world.attempts_made:
        return
    ends = [machine.present.exit for machine in world.machines.values()]
    good = all(end is not None and end.code == 0 for end in ends)
    if world.state.outcome == "succeeded" and not world.state.stalls:
        assert good, "a success of which one machine has none"
    if world.state.outcome != "stopped" and not world.state.survivors:
        for tree in world.state.trees:
            alive = world.machines[tree.host].present.alive
            assert tree.lost or not alive, "something is left"


@pytest.mark.parametrize("seeds", [range(50), range(50, 100), (1848,)])
def test_every_rule_waits_for_every_machine(seeds: Sequence[int]) -> None:
    """Exits, hangs, kills and deaths of the supervisor, at random, on three machines."""
    for seed in seeds:
        play(seed)


def play(seed: int) -> None:
    chance = random.Random(seed)
    plays = [tuple(script(chance) for _ in HOSTS) for _ in range(chance.randint(1, 3))]
    world = Machines(plays, chance)
    for _ in range(chance.choice((0, 0, 1, 3))):
        world.dies_after = chance.randint(1, 25)
        world.run_until(world.now + 20.0)
    for _ in range(chance.choice((0, 0, 1, 2))):
        world.run_until(world.now + chance.uniform(0.5, 30.0))
        world.kill_somebody()
    for _ in range(chance.choice((0, 0, 1, 2))):
        world.cut_off(chance.choice(HOSTS[1:]))
        world.run_until(world.now + chance.choice((1.0, 8.0, 40.0, 200.0)))
        if chance.random() < 0.3:
            world.kill_somebody()
            world.run_until(world.now + 60.0)
        world.heal()
    if chance.random() < 0.4 and not world.state.finished:
        kind: Any = chance.choice(("stop", "stop_now", "interrupt", "dump"))
        world.requests.append(a.Request(kind=kind, by="the test"))
    bring_home(world)
