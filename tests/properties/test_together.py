"""Two to five supervisors of one job: records come late or not, supervisors die, and still nobody
kills before all have dumped, nobody starts under another plan, and everybody comes home."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.properties.job import Job, Task
from tests.properties.simulated import Script
from tests.properties.world import policy
from watchdog_train.core import actions as a
from watchdog_train.core import events as e
from watchdog_train.report.why_text import why_text

HOME_S = 1200.0
"""More than two attempts, their hangs, the barrier and the plan can take."""


def plays(*tasks: list[Script]) -> list[list[Script]]:
    """Scripts of each task's attempts, as ranks of one world."""
    size = len(tasks)
    return [
        [replace(script, world=size, first_rank=number) for script in scripts]
        for number, scripts in enumerate(tasks)
    ]


def of_type(job: Job, number: int, kind: type[e.Event]) -> list[e.Event]:
    return [event for event in job.tasks[number].log if isinstance(event, kind)]


def _was_through_before_a_stop(task: Task, up: list[Task]) -> bool:
    """Its training had ended well when another task was stopped: both codes tell the truth."""
    stopped = any(one.state.stop is not None for one in up)
    ended = task.attempts[-1].exit if task.attempts else None
    well = ended is not None and ended.code == 0 and task.state.exit_code == 0
    return stopped and well


def bring_home(job: Job) -> None:
    """Without new faults the job ends, and all tasks with one code."""
    job.run_until(job.now + HOME_S)
    up = [task for task in job.tasks if not task.down]
    if len(up) < job.size and not all(task.state.finished for task in up):
        # Nobody knows what a task without a supervisor does: then a person has to decide.
        for task in up:
            assert task.attempts[-1].alive or task.attempts[-1].exit.code == 0, "neither on nor off"
        next(task for task in up if not task.state.finished).requests.append(
            a.Request(kind="stop", by="the test")
        )
        job.run_until(job.now + 200.0)
    for task in up:
        assert task.state.finished, f"task {task.number} does not come home: {task.log[-1]}"
    codes = {task.state.exit_code for task in up if not _was_through_before_a_stop(task, up)}
    assert len(codes) <= 1, f"exit codes {codes}"
    assert codes <= {0, 3, 75, 76, 77, 130, 137}


FAULTS = {
    "a hang": Script(ending="hang"),
    "a hang at the start": Script(ending="hang-at-start"),
    "a crash": Script(ending="crash"),
    "a kill": Script(ending="killed"),
    "a hang of what ignores SIGTERM": Script(ending="hang", on_term="ignore", workers=1),
    "a hang that exits with 0": Script(ending="hang", on_term="exit0"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("size", "nodes"), [(2, False), (3, False), (3, True)])
def test_one_task_fails_and_all_begin_again(fault: str, size: int, nodes: bool) -> None:
    """Whichever task it is: evidence of all, one plan of the leader's, and success."""
    for guilty in range(size):
        tasks = [[Script(), Script()] for _ in range(size)]
        tasks[guilty][0] = FAULTS[fault]
        job = Job(policy(), plays(*tasks), nodes=nodes)
        bring_home(job)
        for number, task in enumerate(job.tasks):
            assert task.state.outcome == "succeeded", task.state.why
            assert [attempt.attempt for attempt in task.state.attempts] == [1, 2]
            assert len(of_type(job, number, e.PlanReceived)) == (number > 0) * (1 + nodes)
            assert not of_type(job, number, e.BarrierMissed)
            assert len(of_type(job, number, e.StallDeclared)) <= 1
        assert len(job.plans[2]) == 1


def test_a_rank_that_evaluates_alone_is_no_stall() -> None:
    """Ten times the others' soft budget, and they wait quietly all the time."""
    for size, evaluator in ((2, 0), (2, 1), (4, 2)):
        tasks = [
            [Script(evaluates_s=80.0 if number == evaluator else 0.0)] for number in range(size)
        ]
        job = Job(policy(), plays(*tasks))
        bring_home(job)
        for number, task in enumerate(job.tasks):
            assert task.state.outcome == "succeeded"
            assert not of_type(job, number, e.StallDeclared)
            assert len(task.attempts) == 1


def test_tasks_may_end_at_different_times() -> None:
    """One that has ended well is neither missed nor silent, and ends with success."""
    job = Job(policy(), plays([Script(steps=4)], [Script(steps=40)], [Script(steps=9)]))
    bring_home(job)
    for task in job.tasks:
        assert (task.state.outcome, len(task.attempts)) == ("succeeded", 1)


def test_a_crash_after_the_others_have_ended_well_restarts_them() -> None:
    """A world cannot be formed without them: they have waited for that."""
    tasks = plays([Script(steps=4), Script()], [Script(steps=30, ending="crash"), Script()])
    job = Job(policy(), tasks)
    bring_home(job)
    assert [len(task.attempts) for task in job.tasks] == [2, 2]
    assert {task.state.outcome for task in job.tasks} == {"succeeded"}


@pytest.mark.parametrize("fault", ["a hang", "a crash"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_supervisor_may_die_after_every_event(fault: str, victim: int) -> None:
    """The leader's or another one: a peer gives its run a new one, and the job comes home."""
    for number in range(3, 60):
        job = Job(
            policy(), plays([Script(), Script()], [FAULTS[fault], Script()], [Script(), Script()])
        )
        task = job.tasks[victim]
        deadline = job.now + HOME_S
        while len(task.log) < number and not task.state.finished and job.now < deadline:
            job.run_until(job.now + 0.25)
        if task.state.finished:
            break
        job.kill_supervisor(victim)
        bring_home(job)
        # A run that is over, and whose peers all are, needs no new supervisor.
        assert not task.down or task.attempts[-1].exit.code == 0
        up = [one for one in job.tasks if not one.down]
        assert {one.state.outcome for one in up} == {"succeeded"}, number


def test_a_supervisor_that_cannot_be_replaced_ends_the_job_with_75() -> None:
    """Nobody relaunches without it: the others have their evidence, end their ranks and say so."""
    for size, victim in itertools.product((2, 4), (0, 1)):
        guilty = size - 1 if size > 2 else 1 - victim
        tasks = [[Script(steps=30)] for _ in range(size)]
        tasks[guilty] = [Script(steps=12, ending="crash")]
        job = Job(policy(), plays(*tasks))
        job.take_over_s = 1e12
        job.run_until(job.now + 6.0)
        job.kill_supervisor(victim)
        bring_home(job)
        for number, task in enumerate(job.tasks):
            if number == victim:
                continue
            assert task.state.exit_code == 75
            assert len(task.attempts) == 1
            assert not task.attempts[0].alive
            assert f"task {victim}" in why_text(task.state.why)


def test_a_hang_is_not_declared_while_a_peer_is_unknown() -> None:
    """What a task without a supervisor does nobody knows: it may evaluate. Said, never killed."""
    job = Job(policy(), plays([Script(steps=30)], [Script(steps=30, ending="hang")]))
    job.take_over_s = 1e12
    job.run_until(job.now + 6.0)
    job.kill_supervisor(0)
    job.run_until(job.now + 400.0)
    assert not of_type(job, 1, e.StallDeclared)
    assert [event.kind for event in of_type(job, 1, e.Noticed)] == ["busy"]
    assert job.tasks[1].attempts[0].alive


def test_the_first_attempt_waits_for_all_nodes() -> None:
    """One that comes late is waited for; the leader plans, and all launch the same plan."""
    job = Job(policy(), plays([Script()], [Script()], [Script()]), nodes=True)
    job.tasks[0].down_until = job.now + 30.0
    job.run_until(job.now + 25.0)
    assert not any(task.attempts for task in job.tasks)
    bring_home(job)
    assert {task.state.outcome for task in job.tasks} == {"succeeded"}
    assert [len(of_type(job, number, e.PlanReceived)) for number in range(3)] == [0, 1, 1]


def test_a_node_that_never_comes_ends_the_job_with_75() -> None:
    """Nothing is launched, and the words name the place where the others have waited."""
    job = Job(policy(), plays([Script()], [Script()]), nodes=True)
    job.kill_supervisor(1)
    job.run_until(job.now + 200.0)
    alone = job.tasks[0]
    assert (alone.state.exit_code, alone.attempts) == (75, [])
    assert "1 node that nothing was heard of" in why_text(alone.state.why)
    assert "/shared" in why_text(alone.state.why)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_node_that_is_lost_ends_the_job_with_75(victim: int) -> None:
    """The leader or another one, with its ranks: all others dump, end theirs and say so."""
    tasks = [[Script(steps=30)] for _ in range(3)]
    tasks[victim] = [Script(steps=12, ending="hang")]
    job = Job(policy(), plays(*tasks), nodes=True)
    job.run_until(job.now + 10.0)
    job.kill_supervisor(victim)
    job.run_until(job.now + 400.0)
    for number, task in enumerate(job.tasks):
        if number == victim:
            continue
        assert task.state.exit_code == 75, task.state.why
        assert f"node {victim}" in why_text(task.state.why)
        assert not task.attempts[0].alive
        assert len(of_type(job, number, e.BarrierMissed)) == 1
        assert of_type(job, number, e.EvidenceCollected)


def test_a_node_that_hears_nobody_does_not_go_on_alone() -> None:
    """The directory is gone: it takes its evidence, waits, ends its ranks and says 75."""
    job = Job(policy(), plays([Script(ending="crash", steps=9), Script()], [Script()]), nodes=True)
    job.run_until(job.now + 5.0)
    alone, other = job.tasks
    alone.heard.clear()
    job.delay_s = 1e9
    other.record_of.seen.clear()
    job.run_until(job.now + 900.0)
    assert len(alone.attempts) == 1
    assert not alone.attempts[0].alive
    assert alone.state.exit_code == 75, alone.state.why
    assert "nothing was heard of the rest of the job" in why_text(alone.state.why)


def test_a_checkpoint_that_one_node_does_not_see_is_passed_over() -> None:
    """The leader hears of it, says why, and plans with another one; no node begins without it."""
    tasks = [[Script(), Script()] for _ in range(3)]
    tasks[2][0] = FAULTS["a hang"]
    job = Job(policy(), plays(*tasks), nodes=True)
    job.unseen = {(1, f"/out/{step}") for step in range(100)}
    bring_home(job)
    assert {task.state.outcome for task in job.tasks} == {"succeeded"}
    plans = [task.state.attempts[-1].plan for task in job.tasks]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0].checkpoint is None
    unseen = of_type(job, 0, e.CheckpointUnseen)
    assert unseen
    assert "node 1" in why_text(unseen[0].why)
    rejected = of_type(job, 0, e.CheckpointRejected)
    assert "node 1" in why_text(rejected[-1].why)


@pytest.mark.parametrize("kind", ["stop", "stop_now", "interrupt"])
def test_a_stop_of_one_stops_all(kind: str) -> None:
    """At any time, with the code of that stop everywhere."""
    for at in (1.0, 4.0, 14.0, 18.0, 19.5, 21.0):
        job = Job(policy(), plays([Script(steps=60)] * 2, [FAULTS["a hang"], Script(steps=60)]))
        job.run_until(job.now + at)
        job.tasks[1].requests.append(a.Request(kind=kind, by=kind))  # type: ignore[arg-type]
        bring_home(job)
        codes = {task.state.exit_code for task in job.tasks}
        assert codes == {130 if kind == "interrupt" else 77}
        assert not [p for task in job.tasks for one in task.attempts for p in one.alive]


@pytest.mark.parametrize("limit", [0, 1])
def test_giving_up_is_decided_once(limit: int) -> None:
    """The same fault again: the leader gives up, and all end with its code and words."""
    job = Job(
        policy(max_restarts=limit),
        plays([Script()] * 3, [Script(ending="hang-at-start")] * 3, [Script()] * 3),
    )
    bring_home(job)
    assert {task.state.exit_code for task in job.tasks} == {75 if limit == 0 else 76}
    assert len({task.state.outcome for task in job.tasks}) == 1


def test_tasks_that_train_worlds_of_their_own_are_left_alone() -> None:
    """A sweep under srun: one task hangs and restarts, the others never notice."""
    tasks = [[Script(steps=60)], [Script(ending="hang"), Script()], [Script(steps=30)]]
    job = Job(policy(), tasks)
    job.independent = True
    job.run_until(job.now + HOME_S)
    assert [len(task.attempts) for task in job.tasks] == [1, 2, 1]
    assert {task.state.outcome for task in job.tasks} == {"succeeded"}
    assert not [
        event
        for task in job.tasks
        for event in task.log
        if isinstance(event, e.JobEvent) and not isinstance(event, e.TaskJoined)
    ]


scripts = st.builds(
    Script,
    ending=st.sampled_from(
        ("finish", "finish", "finish", "hang", "crash", "killed", "hang-at-start", "hang-at-end")
    ),
    steps=st.integers(4, 9),
    workers=st.integers(0, 1),
    on_term=st.sampled_from(("die", "ignore", "exit0", "slow")),
    recovers_after_s=st.sampled_from((None, None, None, 9.0, 13.0)),
    evaluates_s=st.sampled_from((0.0, 0.0, 0.0, 30.0)),
    can_stop=st.booleans(),
)
faults = st.lists(
    st.tuples(
        st.sampled_from((0.3, 2.0, 6.0, 11.0)),
        st.sampled_from(("kill", "kill", "deaf", "stop", "late")),
        st.integers(0, 4),
    ),
    max_size=4,
)


def play(
    size: int,
    tasks: list[list[Script]],
    events: list[tuple[float, str, int]],
    *,
    delay_s: float,
    lossy: float,
    take_over_s: float,
    seed: int,
    nodes: bool,
) -> None:
    job = Job(policy(max_restarts=3), plays(*tasks[:size]), seed=seed, nodes=nodes)
    job.delay_s, job.lossy, job.take_over_s = delay_s, lossy, take_over_s
    for wait_s, what, who in events:
        job.run_until(job.now + wait_s)
        task = job.tasks[who % size]
        if task.state.finished:
            continue
        match what:
            case "kill":
                job.kill_supervisor(task.number)
            case "deaf":
                task.deaf_until = job.now + 20.0
            case "stop" if not task.down:
                task.requests.append(a.Request(kind="stop", by="stop"))
            case "late" if not task.down:
                task.advance(task.now + 8.0)
                task.late_s = 8.0
    bring_home(job)


numbers = {
    "size": st.integers(2, 5),
    "tasks": st.lists(st.lists(scripts, min_size=2, max_size=3), min_size=5, max_size=5),
    "events": faults,
    "delay_s": st.sampled_from((0.1, 0.5, 1.5)),
    "lossy": st.sampled_from((0.0, 0.0, 0.02, 0.2)),
    "take_over_s": st.sampled_from((0.5, 4.0, 1e12)),
    "seed": st.integers(0, 99),
    "nodes": st.booleans(),
}
quickly = settings(
    max_examples=12,  # one whose supervisor stays dead plays twenty minutes: ten seconds of CPU
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


@quickly
@given(**numbers)
def test_nothing_that_can_happen_between_tasks_breaks_a_promise(**drawn) -> None:  # type: ignore[no-untyped-def]
    """Whatever is late, lost or dead, the promises of the job hold and it comes home."""
    play(**drawn)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(quickly, max_examples=1500)
@given(**numbers)
def test_nothing_in_many_jobs_breaks_a_promise(**drawn) -> None:  # type: ignore[no-untyped-def]
    """The same, many more times."""
    play(**drawn)
