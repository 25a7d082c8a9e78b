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
from watchdog_train.core.actions import Observation, StartSurvey
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


def context_of(clock: MovedClock, directory: RunDirectory) -> SimpleNamespace:
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


class Scene:
    """A keeper that says nothing, a root, and who observes them."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.directory = MovedClock(), RunDirectory(folder)
        self.directory.attempt(1).mkdir(parents=True)
        self.directory.stalls.mkdir()
        self.context: Any = context_of(self.clock, self.directory)
        self.observer = Observer(self.context, (LocalHands(self.context),))
        self.keeper = subprocess.Popen(["sleep", "60"])
        self.root = subprocess.Popen(["sleep", "60"])
        keeper, root = _identity(self.keeper.pid), _identity(self.root.pid)
        self.launched = e.AttemptLaunched(
            pid=root.pid, start=root.start, keeper_pid=keeper.pid, keeper_start=keeper.start
        )

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def end_root(self) -> None:
        self.root.kill()
        self.root.wait(10)

    def state(self, *more: e.AnyEvent, at: float | None = None) -> State:
        plan = builders.plan()
        launching = e.AttemptLaunching(token="t", plan=plan)
        begun = (builders.RUN_STARTED, e.PlanMade(plan=plan), launching, self.launched)
        return builders.fold((*begun, *more), at=self.now if at is None else at)

    def observe(self, state: State) -> Observation:
        return self.observer.observe(state)

    def exit(self, state: State) -> ExitStatus | None:
        """What is seen of the end of the only tree."""
        return self.observe(state).trees[0].exit

    def write_keeper(self, *, runs: bool = True) -> None:
        names = ("keeper_pid", "keeper_start", "pid", "start")
        who = {name: getattr(self.launched, name) for name in names}
        record = {**who, "error": None, "started_at": 1.0, "runs": runs}
        (self.directory.attempt(1) / "keeper.json").write_text(json.dumps(record))

    def write_exit(self) -> None:
        (self.directory.attempt(1) / "exit.json").write_text('{"code": 0, "signal": null}')


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "run-1")
    yield made
    for process in (made.keeper, made.root):
        process.kill()
        process.wait(10)


def _identity(pid: int) -> ProcessId:
    found = current().identity(pid)
    assert found is not None
    return found


def test_an_exit_is_followed_by_a_fresh_look(scene: Scene) -> None:
    """A look from just before the exit is not taken for the tree of an ended attempt."""
    scene.write_keeper()
    state = scene.state()
    before = scene.observe(state)
    assert scene.root.pid in {member.member.pid for member in before.sample.members}
    scene.end_root()
    scene.write_exit()
    scene.clock.ahead_s += 0.002
    assert scene.exit(state) is not None
    ended = scene.state(builders.exited())
    after = scene.observe(ended)
    assert scene.root.pid not in {member.member.pid for member in after.sample.members}
    assert after.sample.empty_looks == 1


def test_a_launch_whose_keeper_said_no_last_word(scene: Scene) -> None:
    """What it had forked runs the training, or has ended as it must without its keeper."""
    scene.write_keeper(runs=False)
    launching = e.AttemptLaunching(token="t", plan=builders.plan())
    state = builders.fold((builders.RUN_STARTED, launching))
    root = ProcessId(scene.launched.pid, scene.launched.start)
    assert scene.observe(state).trees[0].launch is None, "a keeper that lives is waited for"
    scene.keeper.kill()
    scene.keeper.wait(10)
    seen = scene.observe(state).trees[0].launch
    assert (seen.root, seen.lost) == (root, False)
    for status, lost in ((0, False), (EXIT_AT_GATE, True), (None, True)):
        scene.end_root()
        scene.context.children.adopted_status = lambda who, status=status: status
        again = Observer(scene.context, (LocalHands(scene.context),))
        seen = again.observe(state).trees[0].launch
        assert (seen.root, seen.lost) == (None if lost else root, lost)


def test_a_second_look_at_an_ended_attempt_waits_a_moment(scene: Scene) -> None:
    """Two looks that agree are two looks at two moments."""
    scene.write_keeper()
    scene.end_root()
    scene.write_exit()
    ended = scene.state(builders.exited())
    assert scene.observe(ended).sample.empty_looks == 1
    assert scene.observe(ended).sample.empty_looks == 1
    scene.clock.ahead_s += 1.0
    assert scene.observe(ended).sample.empty_looks == 2


@pytest.mark.parametrize("comes", [False, True])
def test_the_keepers_word_counts_only_where_no_file_comes(comes: bool, scene: Scene) -> None:
    """exit.json has half a second to appear; then the exit is what the keeper has told."""
    scene.write_keeper()
    state = scene.state()
    told = ExitStatus(code=3, signal=None, how_known="keeper")
    scene.context.keeper = SimpleNamespace(exit=told, clear_wake=lambda: None)
    assert scene.exit(state) is None
    if comes:
        scene.write_exit()
    else:
        scene.clock.ahead_s += FILE_WITHIN_S + 0.1
    found = scene.exit(state)
    assert found is not None
    assert found.how_known == ("keeper-file" if comes else "keeper")
    assert comes or found == told


def test_a_silent_keeper_is_believed_to_know_nothing(scene: Scene) -> None:
    """An adopted run without a pipe: the root gone, the keeper alive, no file for 30 s."""
    scene.write_keeper()
    state = scene.state()
    scene.end_root()
    assert scene.exit(state) is None
    scene.clock.ahead_s += SILENT_KEEPER_S - 1.0
    assert scene.exit(state) is None
    assert _identity(scene.keeper.pid)
    scene.clock.ahead_s += 2.0
    assert scene.exit(state) == ExitStatus(code=None, signal=None, how_known="gone")


def test_the_kernel_tells_where_no_keeper_is_left(scene: Scene) -> None:
    """A root that was held on to while it lived; older kernels tell its parent alone."""
    scene.write_keeper()
    state = scene.state()
    assert scene.exit(state) is None
    watch = current().watch_exit(_identity(scene.root.pid))
    scene.keeper.kill()
    scene.keeper.wait(10)
    scene.end_root()
    told = watch is not None and watch.status() is not None
    if watch is not None:
        watch.close()
    expected = ExitStatus(code=None, signal=9, how_known="kernel")
    gone = ExitStatus(code=None, signal=None, how_known="gone")
    scene.clock.ahead_s += 2.0
    assert scene.exit(state) == (expected if told else gone)
    scene.observer.close()


def test_a_living_root_is_waited_for(scene: Scene) -> None:
    """As long as the root lives a keeper has nothing to tell."""
    scene.write_keeper()
    state = scene.state()
    for _ in range(3):
        scene.clock.ahead_s += SILENT_KEEPER_S * 2
        assert scene.exit(state) is None
    assert os.path.exists(f"/proc/{scene.root.pid}")


def test_a_removed_directory_raises_nothing(scene: Scene, tmp_path: Path) -> None:
    """Looks go on where there is nothing to read any more."""
    state = scene.state()
    (tmp_path / "run-1").rename(tmp_path / "elsewhere")
    seen = scene.observe(state)
    assert seen.trees[0].exit is None
    assert seen.sample.log_bytes == 0
    assert scene.root.pid in {member.member.pid for member in seen.sample.members}


def test_an_adoption_does_not_forget_when_the_tree_was_gone(scene: Scene, tmp_path: Path) -> None:
    """What was saved shortly before is read in full, by whoever scans."""
    asked: list[SurveyRequest] = []
    hands: Any = LocalHands(scene.context)
    scene.context.tasks.scan_checkpoints = lambda request, _, **__: asked.append(request)
    scene.context.staging_dir = tmp_path
    scene.context.policy = Policy(recovery=Recovery(checkpoints=(str(tmp_path),)))
    gone = (builders.exited(1), e.TreeGone())
    adopted = e.Adopted(pid=2, start=2, boot_id="b", previous_pid=1, why="gone")
    launching = e.AttemptLaunching(token="t", plan=builders.plan())
    state = builders.fold((builders.RUN_STARTED, launching, *gone, adopted), at=50.0)
    performer = Performer(scene.context, scene.observer, (hands,))
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


def test_looks_are_further_apart_only_while_steps_go_on(scene: Scene) -> None:
    """After two minutes of progress at every look; the first look without one ends that."""
    hands = SteppingHands(scene.context)
    scene.observer = Observer(scene.context, (hands,))
    state, begun = scene.state(at=0.0), scene.now
    hands.until = begun + 200.2

    def apart(first: int, last: int) -> set[int]:
        looks = [at - begun for at in hands.looks if first <= at - begun < last]
        return {round(after - before) for before, after in itertools.pairwise(looks)}

    rests = set()
    while scene.clock.ahead_s < 220:
        scene.observe(state)
        if scene.observer.rests_until > scene.now:
            rests.add(round(scene.clock.ahead_s))
        scene.clock.ahead_s += 0.25
    assert rests, "nothing is done between two looks that are two seconds apart"
    assert (min(rests), max(rests)) == (121, 204), "until the first look that finds no step"
    assert apart(2, 119) == {1}
    assert apart(124, 200) == {2}
    assert apart(204, 220) == {1}


def test_what_a_look_has_found_comes_with_a_sample_taken_after_it(scene: Scene) -> None:
    """Else it may be of the work that followed a silence, and be believed of the silence."""
    state = scene.state(at=0.0)
    scene.observe(state)
    answers: list[Any] = [None, builders.result()]

    def answer() -> None:
        scene.context.tasks.look = answers.pop(0) if answers else scene.context.tasks.look

    scene.context.tasks.poll = answer
    scene.clock.ahead_s += 1.0
    assert scene.observe(state).trees[0].look is None, "it came while the processes were seen"
    scene.clock.ahead_s += 0.2
    seen = scene.observe(state)
    assert (seen.trees[0].look is not None, seen.sample.at) == (True, scene.now)
    # One sample is enough, however long the look waits for those of other machines.
    scene.clock.ahead_s += 0.2
    assert scene.observe(state).sample.at < scene.now


def test_a_sample_is_taken_at_the_moment_that_decides(scene: Scene) -> None:
    """Not at the poll after it."""
    scene.observer = Observer(scene.context, (SteppingHands(scene.context),))
    state = scene.state(at=0.0)
    scene.observe(state)
    scene.observer.sample_by(scene.now + 0.4)
    scene.clock.ahead_s += 0.4
    assert scene.observe(state).sample.at == scene.now
