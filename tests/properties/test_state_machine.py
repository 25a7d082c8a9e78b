"""Fault, clock and user play against decide() and evolve(): safety, liveness and outcome."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.properties.simulated import CONT, KILL, Attempt, Process, Script
from tests.properties.world import World, policy
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.core.model import Patience

ENDINGS = """
    finish crash killed hang hang-at-start hang-at-end rank-fails rank-leaves rank-early input
    not-started no-keeper keeper-lost
"""
REQUESTS = ("save",) * 4 + ("dump",) * 4 + ("stop", "stop_now", "interrupt", "interrupt")
ATTEMPT_S = 400.0
"""More than any attempt of the world can last: budgets, patience, evidence and every stage."""

PATIENCES = (
    Patience(row="proven", limit_s=8.0),
    Patience(row="unknown", limit_s=12.0),
    Patience(row="at-work", limit_s=12.0),
    Patience(row="poll", limit_s=20.0),
    Patience(row="sleep", look_in_s=15.0),
    Patience(row="stopped"),
    Patience(row="input"),
)

scripts = st.builds(
    Script,
    ending=st.sampled_from(("hang", *ENDINGS.split())),
    steps=st.integers(4, 9),
    ranks=st.integers(1, 3),
    workers=st.integers(0, 2),
    launcher=st.booleans(),
    helper=st.booleans(),
    on_term=st.sampled_from(("die", "ignore", "exit0", "slow")),
    immortal=st.sampled_from((False, False, False, True)),
    stragglers=st.integers(0, 3),
    leftover_s=st.sampled_from((0.0, 0.0, 2.0, 1e9)),
    can_stop=st.booleans(),
    slot=st.sampled_from((True, True, True, False)),
    recovers_after_s=st.sampled_from((None, None, 5.0, 11.0, 14.0, 17.0)),
    keeper_dies_at_s=st.sampled_from((None, None, None, 3.0, 20.0)),
    keeper_stays=st.sampled_from((False, False, False, True)),
)
plays = st.one_of(
    st.lists(scripts, min_size=1, max_size=4),
    scripts.map(lambda script: [script] * 5),  # the same fault again and again
)
policies = st.builds(
    policy,
    observe=st.sampled_from((False, False, False, True)),
    on_stall=st.sampled_from(("restart", "restart", "restart", "stop", "report")),
    on_crash=st.sampled_from(("restart", "restart", "stop")),
    max_restarts=st.integers(0, 3),
)


class Machine(RuleBasedStateMachine):
    """Somebody pulls at everything that can be pulled; World asserts at every effect."""

    world: World

    @initialize(the_policy=policies, plays=plays)
    def begin(self, the_policy: object, plays: list[Script]) -> None:
        self.world = World(the_policy, plays)  # type: ignore[arg-type]

    def going(self) -> bool:
        return hasattr(self, "world") and not self.world.state.finished

    def present(self) -> Attempt | None:
        return self.world.attempts[-1] if self.world.attempts else None

    @rule(seconds=st.sampled_from((0.1, 1.0, 5.0, 13.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    @precondition(going)
    @rule(kind=st.sampled_from(REQUESTS))
    def somebody_asks(self, kind: str) -> None:
        self.world.requests.append(a.Request(kind=kind, by=kind))  # type: ignore[arg-type]

    @precondition(going)
    @rule(events=st.integers(1, 12))
    def the_supervisor_dies_after(self, events: int) -> None:
        self.world.dies_after = events

    @precondition(going)
    @rule(rebooted=st.sampled_from((False,) * 7 + (True,)))
    def the_supervisor_dies_now(self, *, rebooted: bool) -> None:
        self.world.adopt(rebooted=rebooted)

    @precondition(going)
    @rule(
        look_s=st.sampled_from((0.1, 3.0, 18.0)),
        evidence_s=st.sampled_from((0.1, 3.0, 30.0)),
        patience=st.sampled_from(PATIENCES),
        whole=st.booleans(),
    )
    def collectors_are(
        self, look_s: float, evidence_s: float, patience: Patience, whole: bool
    ) -> None:
        self.world.look_s, self.world.evidence_s = look_s, evidence_s
        self.world.patience = patience
        self.world.whole = whole

    @precondition(going)
    @rule(times=st.sampled_from((1, 2, 5, 99)))
    def scans_of_checkpoints_fail(self, times: int) -> None:
        self.world.scans_fail = times

    @precondition(going)
    @rule(seconds=st.sampled_from((6.0, 60.0, 3600.0)))
    def the_supervisor_is_late(self, seconds: float) -> None:
        self.world.advance(self.world.now + seconds)
        self.world.late_s = seconds

    @precondition(going)
    @rule()
    def the_machine_sleeps(self) -> None:
        self.world.suspended_s += 3600.0

    @precondition(going)
    @rule(what=st.sampled_from(("root", "rank", "worker", "worker", "keeper", "nobody")))
    def somebody_is_killed(self, what: str) -> None:
        attempt = self.present()
        if attempt is None:
            return
        if what == "keeper":
            attempt.keeper.state = "X"
            return
        for process in self.chosen(attempt, what):
            self.world.deliver(attempt, process, KILL)

    @precondition(going)
    @rule(seconds=st.sampled_from((1.0, 20.0)))
    def somebody_is_stopped_for_a_while(self, seconds: float) -> None:
        attempt = self.present()
        stopped = self.chosen(attempt, "rank") if attempt is not None else []
        for process in stopped:
            process.state = "T"
        self.world.run_until(self.world.now + seconds)
        for process in stopped:
            process.got.append(CONT)
            if process.state == "T":
                process.state = "S"

    def chosen(self, attempt: Attempt, what: str) -> list[Process]:
        if what == "root":
            return [attempt.root] if attempt.root.state == "S" else []
        return [one for one in attempt.alive if one.role == what and one.state == "S"][:1]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            bring_home(self.world)


def bring_home(world: World) -> None:
    """Without new faults the run ends, or there is a reason for it to go on."""
    world.run_until(world.now + ATTEMPT_S * (len(world.scripts) + 2))
    if not world.state.finished:
        attempt = world.attempts[-1]
        recovery = world.policy.recovery
        reported = recovery.observe or recovery.on_stall == "report"
        look = world.state.look
        waits = look is not None and look.patience.limit_s is None
        stuck = any(process.state == "D" for process in attempt.alive)  # that counts as life
        assert attempt.root.alive, "the root has ended, and the run goes on"
        assert reported or waits or stuck or not attempt.hung, "hung, and nobody ends it"
        assert world.state.stop is None, "a stop that ends nothing"
        world.requests.append(a.Request(kind="stop_now", by="the test"))
        world.run_until(world.now + 60.0)
    assert world.state.finished, "a stop that ends nothing"
    assert world.state.exit_code is not None


@pytest.mark.parametrize("ending", ENDINGS.split())
@pytest.mark.parametrize("on_term", ["die", "ignore", "exit0", "slow"])
def test_every_ending_comes_home(ending: str, on_term: str) -> None:
    """Each way to end, with and without launcher and heartbeat, under each policy."""
    for launcher, slot, rules in itertools.product(
        (False, True),
        (True, False),
        ({}, {"observe": True}, {"on_stall": "stop"}, {"max_restarts": 1}, {"max_restarts": 0}),
    ):
        script = Script(
            ending=ending, on_term=on_term, launcher=launcher, slot=slot, ranks=2, workers=1
        )
        bring_home(World(policy(**rules), [script] * 2))


@pytest.mark.parametrize("launcher", [False, True])
@pytest.mark.parametrize("ending", ["rank-fails", "rank-leaves"])
def test_a_rank_that_is_gone_is_named(ending: str, launcher: bool) -> None:
    """A failed rank without a look at the stacks, one that left after it; never as a mere hang."""
    script = Script(ending=ending, ranks=3, launcher=launcher, steps=8)
    world = World(policy(), [script])
    bring_home(world)
    declared = [event for event in world.log if isinstance(event, e.StallDeclared)]
    assert [(event.basis, event.ranks) for event in declared] == [("rank-gone", (2,))]
    looked = any(isinstance(event, e.Looked) for event in world.log)
    assert looked is (ending == "rank-leaves")
    assert world.state.outcome == "succeeded"


@pytest.mark.parametrize("launcher", [False, True])
def test_a_rank_that_is_through_first_kills_nobody(launcher: bool) -> None:
    """Rank 0 merges what is complete, in silence, long over every budget."""
    world = World(policy(), [Script(ending="rank-early", ranks=2, launcher=launcher)])
    bring_home(world)
    assert not [event for event in world.log if isinstance(event, e.StallDeclared)]
    assert world.state.outcome == "succeeded"
    assert len(world.state.attempts) == 1


FAULTS = {
    "hang": Script(ending="hang", ranks=2, workers=1, launcher=True, stragglers=2),
    "a hang that exits with 0": Script(ending="hang", on_term="exit0"),
    "a hang at the end": Script(ending="hang-at-end", on_term="ignore"),
    "crash with a leftover": Script(ending="crash", leftover_s=1e9),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_supervisor_may_die_after_every_event(fault: str) -> None:
    """Whatever line it dies at, the next one brings the run home, with what was promised."""
    for number in range(2, 60):
        world = World(policy(), [FAULTS[fault]] * 2)
        world.evidence_s = 3.0
        world.dies_after = number
        bring_home(world)
        assert world.state.outcome == "succeeded"
        if len(world.log) < number:
            break


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["stop", "stop_now", "interrupt"])
def test_the_user_may_stop_after_every_event(fault: str, kind: Any) -> None:
    """Whenever the word comes, nothing starts after it and the run ends with its code."""
    for number in range(1, 60):
        world = World(policy(), [FAULTS[fault]] * 2)
        world.evidence_s = 3.0
        world.asked_after[number] = a.Request(kind=kind, by=kind)
        bring_home(world)
        if len(world.log) <= number + 1:
            break
        if world.state.stop is not None:
            assert world.state.exit_code == (130 if kind == "interrupt" else 77)


def play(examples: int, steps: int) -> None:
    hypothesis.stateful.run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A history of a dozen steps reads well as it is; shrinking one takes minutes.
            phases=(Phase.explicit, Phase.generate),
        ),
    )


def test_nothing_that_can_happen_breaks_a_promise() -> None:
    """Whatever fails, whoever asks and whenever the supervisor dies, the promises hold."""
    play(300, 12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_that_can_happen_in_a_long_run_breaks_a_promise() -> None:
    """The same, with many more and longer histories."""
    play(2000, 30)
