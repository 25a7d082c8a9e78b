"""What the supervisor sees of an attempt that ends: real processes, and a clock that is moved."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core import builders
from watchdog_train.checkpoints.survey import SurveyRequest
from watchdog_train.core import events as e
from watchdog_train.core.actions import StartSurvey
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import ExitStatus, ProcessId
from watchdog_train.core.policy import Policy, Recovery
from watchdog_train.keeper import EXIT_AT_GATE
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.hands.exits import FILE_WITHIN_S, SILENT_KEEPER_S
from watchdog_train.supervisor.hands.local import LocalHands
from watchdog_train.supervisor.observe import Observer
from watchdog_train.supervisor.perform import AROUND_KILL_S, Performer
from watchdog_train.system import current


class MovedClock:
    """The system, at a later time."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._system = current()
        # A whole number: else rounding decides whether what is due after just a second is due.
        self._stopped_at = float(math.ceil(self._system.monotonic()))

    def monotonic(self) -> float:
        return self._stopped_at + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run-1")
    run.attempt(1).mkdir(parents=True)
    run.stalls.mkdir()
    return run


@pytest.fixture
def context(clock: MovedClock, directory: RunDirectory) -> SimpleNamespace:
    """As much of a supervisor as an observer looks at."""
    results = dict.fromkeys(("look", "evidence", "survey", "joint", "keep", "restore", "commands"))
    tasks = SimpleNamespace(running=frozenset(), poll=lambda: None, **results)
    return SimpleNamespace(
        machines=None,
        system=clock,
        directory=directory,
        policy=Policy(),
        scope="here",
        slot_dir=None,
        keeper=None,
        ends=None,
        environment={},
        cwd="/w",
        job=None,
        trace=SimpleNamespace(append=lambda line: None),
        tasks=tasks,
        children=SimpleNamespace(
            poll=lambda rows=None: [],
            adopted_status=lambda who: None,
            running=lambda: (),
            pids=frozenset,
        ),
    )


@pytest.fixture
def observer(context: SimpleNamespace) -> Observer:
    return Observer(context, (LocalHands(context),))  # type: ignore[arg-type]


class Pair:
    """A keeper that says nothing, and a root."""

    def __init__(self) -> None:
        self.keeper = subprocess.Popen(["sleep", "60"])
        self.root = subprocess.Popen(["sleep", "60"])
        keeper, root = _identity(self.keeper.pid), _identity(self.root.pid)
        self.launched = e.AttemptLaunched(
            pid=root.pid, start=root.start, keeper_pid=keeper.pid, keeper_start=keeper.start
        )

    def end_root(self) -> None:
        self.root.kill()
        self.root.wait(10)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for process in (made.keeper, made.root):
        process.kill()
        process.wait(10)


def _identity(pid: int) -> ProcessId:
    found = current().identity(pid)
    assert found is not None
    return found


def state_of(pair: Pair, at: float, *more: e.AnyEvent) -> State:
    plan = builders.plan()
    begun = (builders.RUN_STARTED, e.PlanMade(plan=plan), e.AttemptLaunching(token="t", plan=plan))
    return builders.fold((*begun, pair.launched, *more), at=at)


def write_keeper(run: RunDirectory, pair: Pair, *, runs: bool = True) -> None:
    launched = pair.launched
    record = {
        "keeper_pid": launched.keeper_pid,
        "keeper_start": launched.keeper_start,
        "pid": launched.pid,
        "start": launched.start,
        "error": None,
        "started_at": 1.0,
        "runs": runs,
    }
    (run.attempt(1) / "keeper.json").write_text(json.dumps(record))


def write_exit(run: RunDirectory) -> None:
    (run.attempt(1) / "exit.json").write_text(json.dumps({"code": 0, "signal": None}))


def test_an_exit_is_followed_by_a_fresh_look(
    observer: Observer, clock: MovedClock, directory: RunDirectory, pair: Pair
) -> None:
    """A look from just before the exit is not taken for the tree of an ended attempt."""
    write_keeper(directory, pair)
    state = state_of(pair, clock.monotonic())
    before = observer.observe(state)
    assert pair.root.pid in {member.member.pid for member in before.sample.members}
    pair.end_root()
    write_exit(directory)
    clock.ahead_s += 0.002
    assert observer.observe(state).trees[0].exit is not None
    ended = state_of(pair, clock.monotonic(), builders.exited())
    after = observer.observe(ended)
    assert pair.root.pid not in {member.member.pid for member in after.sample.members}
    assert after.sample.empty_looks == 1


def test_a_launch_whose_keeper_said_no_last_word(
    observer: Observer, context: SimpleNamespace, directory: RunDirectory, pair: Pair
) -> None:
    """What it had forked runs the training, or has ended as it must without its keeper."""
    write_keeper(directory, pair, runs=False)
    launching = e.AttemptLaunching(token="t", plan=builders.plan())
    state = builders.fold((builders.RUN_STARTED, launching))
    root = ProcessId(pair.launched.pid, pair.launched.start)
    assert observer.observe(state).trees[0].launch is None, "a keeper that lives is waited for"
    pair.keeper.kill()
    pair.keeper.wait(10)
    seen = observer.observe(state).trees[0].launch
    assert (seen.root, seen.lost) == (root, False)
    for status, lost in ((0, False), (EXIT_AT_GATE, True), (None, True)):
        pair.end_root()
        context.children.adopted_status = lambda who, status=status: status
        seen = Observer(context, (LocalHands(context),)).observe(state).trees[0].launch  # type: ignore[arg-type]
        assert (seen.root, seen.lost) == (None if lost else root, lost)


def test_a_second_look_at_an_ended_attempt_waits_a_moment(
    observer: Observer, clock: MovedClock, directory: RunDirectory, pair: Pair
) -> None:
    """Two looks that agree are two looks at two moments."""
    write_keeper(directory, pair)
    pair.end_root()
    write_exit(directory)
    ended = state_of(pair, clock.monotonic(), builders.exited())
    assert observer.observe(ended).sample.empty_looks == 1
    assert observer.observe(ended).sample.empty_looks == 1
    clock.ahead_s += 1.0
    assert observer.observe(ended).sample.empty_looks == 2


@pytest.mark.parametrize("comes", [False, True])
def test_the_keepers_word_counts_only_where_no_file_comes(
    comes: bool,
    observer: Observer,
    context: SimpleNamespace,
    clock: MovedClock,
    directory: RunDirectory,
    pair: Pair,
) -> None:
    """exit.json has half a second to appear; then the exit is what the keeper has told."""
    write_keeper(directory, pair)
    state = state_of(pair, clock.monotonic())
    told = ExitStatus(code=3, signal=None, how_known="keeper")
    context.keeper = SimpleNamespace(exit=told, clear_wake=lambda: None)
    assert observer.observe(state).trees[0].exit is None
    if comes:
        write_exit(directory)
    else:
        clock.ahead_s += FILE_WITHIN_S + 0.1
    found = observer.observe(state).trees[0].exit
    assert found is not None
    assert found.how_known == ("keeper-file" if comes else "keeper")
    assert comes or found == told


def test_a_silent_keeper_is_believed_to_know_nothing(
    observer: Observer, clock: MovedClock, directory: RunDirectory, pair: Pair
) -> None:
    """An adopted run without a pipe: the root gone, the keeper alive, no file for 30 s."""
    write_keeper(directory, pair)
    state = state_of(pair, clock.monotonic())
    pair.end_root()
    assert observer.observe(state).trees[0].exit is None
    clock.ahead_s += SILENT_KEEPER_S - 1.0
    assert observer.observe(state).trees[0].exit is None
    assert _identity(pair.keeper.pid)
    clock.ahead_s += 2.0
    assert observer.observe(state).trees[0].exit == ExitStatus(
        code=None, signal=None, how_known="gone"
    )


def test_the_kernel_tells_where_no_keeper_is_left(
    observer: Observer, clock: MovedClock, directory: RunDirectory, pair: Pair
) -> None:
    """A root that was held on to while it lived; older kernels tell its parent alone."""
    write_keeper(directory, pair)
    state = state_of(pair, clock.monotonic())
    assert observer.observe(state).trees[0].exit is None
    watch = current().watch_exit(_identity(pair.root.pid))
    pair.keeper.kill()
    pair.keeper.wait(10)
    pair.end_root()
    told = watch is not None and watch.status() is not None
    if watch is not None:
        watch.close()
    expected = ExitStatus(code=None, signal=9, how_known="kernel")
    gone = ExitStatus(code=None, signal=None, how_known="gone")
    clock.ahead_s += 2.0
    assert observer.observe(state).trees[0].exit == (expected if told else gone)
    observer.close()


def test_a_living_root_is_waited_for(
    observer: Observer, clock: MovedClock, directory: RunDirectory, pair: Pair
) -> None:
    """As long as the root lives a keeper has nothing to tell."""
    write_keeper(directory, pair)
    state = state_of(pair, clock.monotonic())
    for _ in range(3):
        clock.ahead_s += SILENT_KEEPER_S * 2
        assert observer.observe(state).trees[0].exit is None
    assert os.path.exists(f"/proc/{pair.root.pid}")


def test_a_removed_directory_raises_nothing(
    observer: Observer, clock: MovedClock, pair: Pair, tmp_path: Path
) -> None:
    """Looks go on where there is nothing to read any more."""
    state = state_of(pair, clock.monotonic())
    (tmp_path / "run-1").rename(tmp_path / "elsewhere")
    seen = observer.observe(state)
    assert seen.trees[0].exit is None
    assert seen.sample.log_bytes == 0
    assert pair.root.pid in {member.member.pid for member in seen.sample.members}


def test_an_adoption_does_not_forget_when_the_tree_was_gone(
    context: SimpleNamespace, observer: Observer, tmp_path: Path
) -> None:
    """What was saved shortly before is read in full, by whoever scans."""
    asked: list[SurveyRequest] = []
    hands: Any = LocalHands(context)  # type: ignore[arg-type]
    context.tasks.scan_checkpoints = lambda request, _, **__: asked.append(request)
    context.staging_dir = tmp_path
    context.policy = Policy(recovery=Recovery(checkpoints=(str(tmp_path),)))
    gone = (builders.exited(1), e.TreeGone())
    adopted = e.Adopted(pid=2, start=2, boot_id="b", previous_pid=1, why="gone")
    launching = e.AttemptLaunching(token="t", plan=builders.plan())
    state = builders.fold((builders.RUN_STARTED, launching, *gone, adopted), at=50.0)
    performer = Performer(context, observer, (hands,))  # type: ignore[arg-type]
    seen = builders.observation(builders.sample(60.0))
    assert not list(performer.perform(StartSurvey(level="quick"), state, seen))
    assert [request.full_since for request in asked] == [1e9 + 50.0 - AROUND_KILL_S]
    # Of an attempt whose tree is not said to be gone yet the moment of the scan counts, and
    # nothing is waited for as soon as nobody is left.
    state = builders.fold((builders.RUN_STARTED, launching, builders.exited(1)), at=50.0)
    for looks, settle_s, since in ((1, 2.0, None), (2, 0.0, seen.wall - AROUND_KILL_S)):
        seen = builders.observation(builders.sample(60.0, empty_looks=looks))
        assert not list(performer.perform(StartSurvey(level="quick"), state, seen))
        assert (asked[-1].settle_s, asked[-1].full_since) == (settle_s, since)


class SteppingHands(LocalHands):
    """A training that steps until a moment; only when it is looked at is real."""

    until = float("inf")

    def sample(self, state: State, now: float, *, late_s: float, quiet: bool) -> None:
        self.looks = [*getattr(self, "looks", []), now]
        rank = builders.rank(words=1 + int(10 * min(now, self.until)))
        self._sample = builders.sample(now, rank, cpu_s=min(now, self.until))


def test_looks_are_further_apart_only_while_steps_go_on(
    context: SimpleNamespace, clock: MovedClock, pair: Pair
) -> None:
    """After two minutes of progress at every look; the first look without one ends that."""
    hands = SteppingHands(context)
    observer, state, begun = Observer(context, (hands,)), state_of(pair, 0.0), clock.monotonic()
    hands.until = begun + 200.2

    def apart(first: int, last: int) -> set[int]:
        looks = [at - begun for at in hands.looks if first <= at - begun < last]
        return {round(after - before) for before, after in itertools.pairwise(looks)}

    rests = set()
    while clock.ahead_s < 220:
        observer.observe(state)
        if observer.rests_until > clock.monotonic():
            rests.add(round(clock.ahead_s))
        clock.ahead_s += 0.25
    assert rests, "nothing is done between two looks that are two seconds apart"
    assert (min(rests), max(rests)) == (121, 204), "until the first look that finds no step"
    assert apart(2, 119) == {1}
    assert apart(124, 200) == {2}
    assert apart(204, 220) == {1}


def test_what_a_look_has_found_comes_with_a_sample_taken_after_it(
    context: SimpleNamespace, clock: MovedClock, pair: Pair
) -> None:
    """Else it may be of the work that followed a silence, and be believed of the silence."""
    observer, state = Observer(context, (LocalHands(context),)), state_of(pair, 0.0)  # type: ignore[arg-type]
    observer.observe(state)
    answers: list[Any] = [None, builders.result()]

    def answer() -> None:
        context.tasks.look = answers.pop(0) if answers else context.tasks.look

    context.tasks.poll = answer
    clock.ahead_s += 1.0
    assert observer.observe(state).trees[0].look is None, "it came while the processes were seen"
    clock.ahead_s += 0.2
    seen = observer.observe(state)
    assert (seen.trees[0].look is not None, seen.sample.at) == (True, clock.monotonic())
    # One sample is enough, however long the look waits for those of other machines.
    clock.ahead_s += 0.2
    assert observer.observe(state).sample.at < clock.monotonic()


def test_a_sample_is_taken_at_the_moment_that_decides(
    context: SimpleNamespace, clock: MovedClock, pair: Pair
) -> None:
    """Not at the poll after it."""
    observer, state = Observer(context, (SteppingHands(context),)), state_of(pair, 0.0)
    observer.observe(state)
    observer.sample_by(clock.monotonic() + 0.4)
    clock.ahead_s += 0.4
    assert observer.observe(state).sample.at == clock.monotonic()
