"""What bisect tries, and what it concludes from the outcomes."""

from __future__ import annotations

import pytest

from tests.core import builders as b
from watchdog_train.bisecting.settings import TRIAL_SETTINGS
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress
from watchdog_train.core.recovery.bisect import (
    ALL_CHANGES,
    AS_IT_IS,
    Change,
    Outcome,
    Trial,
    changes,
    conclude,
    has_enough,
    judge,
)
from watchdog_train.core.starting.command_line import with_one_rank
from watchdog_train.remedies.catalogue import CATALOGUE


def trial(name: str, outcome: Outcome, why: str = "") -> Trial:
    known = {change.id: change for change in (AS_IT_IS, *changes(2, None, ()))}
    return Trial(change=known[name], outcome=outcome, why=why, seconds=1.0, run_dir="/r")


def test_every_setting_of_a_change_exists() -> None:
    """A change that names a setting nobody has would be a trial of nothing."""
    for change in changes(2, None, ()):
        for name in change.remedies:
            assert name in CATALOGUE or name in TRIAL_SETTINGS, name
        assert change.for_good is None or change.for_good in CATALOGUE


def test_a_trial_of_the_catalogue_is_none() -> None:
    """What is only good for a trial is not offered to a run."""
    assert not set(TRIAL_SETTINGS) & set(CATALOGUE)


def test_what_the_diagnosis_names_comes_first() -> None:
    """And every change once."""
    found = [change.id for change in changes(2, "train", ("omp-1",))]
    assert found[0] == "threads-1"
    assert sorted(found) == sorted(ALL_CHANGES)


@pytest.mark.parametrize("ranks", [None, 1])
def test_one_rank_is_tried_only_where_there_are_more(ranks: int | None) -> None:
    """Where the command does not tell, nothing can be taken away."""
    assert "one-rank" not in [change.id for change in changes(ranks, None, ())]


def test_before_data_is_loaded_services_come_first() -> None:
    """A hang in a download has nothing to do with loader workers."""
    early = [change.id for change in changes(None, "download", ())]
    assert early.index("offline") < early.index("workers-0")
    late = [change.id for change in changes(None, "train", ())]
    assert late.index("workers-0") < late.index("offline")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "train.py"),
        ("torchrun --nproc_per_node=2 --standalone train.py -x", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", "train.py"),
    ],
)
def test_one_rank_of_torchrun(command: str, expected: str) -> None:
    """The last word counts, and it stands before the script."""
    words = with_one_rank(tuple(command.split()))
    assert words is not None
    assert words[words.index(expected) - 1] == "--nproc-per-node=1"


def test_one_rank_of_accelerate() -> None:
    """It has a name of its own for it."""
    words = with_one_rank(("accelerate", "launch", "--num_processes", "2", "train.py"))
    assert words == (
        *("accelerate", "launch", "--num_processes", "2", "--num_processes=1", "train.py"),
    )


@pytest.mark.parametrize("command", [("python", "train.py"), ("bash", "-c", "torchrun a.py")])
def test_no_rank_is_taken_away_where_no_launcher_is_seen(command: tuple[str, ...]) -> None:
    """A shell's words are the user's own."""
    assert with_one_rank(command) is None


# -- the outcome of one trial -----------------------------------------------------------------


def judged(state: State, change: Change = AS_IT_IS, steps: int = 5) -> Trial:
    return judge(change, state, seconds=3.0, run_dir="/r", steps=steps)


def stepped(first: int, last: int, *more: e.AnyEvent) -> State:
    made = e.Progress(progress=RunProgress(step=last), ranks=(), members=())
    return b.running(e.FirstStep(rank=0, pid=1, step=first, after_s=1.0), made, *more)


@pytest.mark.parametrize(
    ("first", "last", "enough"), [(1, 4, False), (1, 5, True), (96, 100, True)]
)
def test_steps_are_counted_from_the_first_of_the_trial(first: int, last: int, enough: bool) -> None:
    """A trial that goes on from a checkpoint begins at its step."""
    assert has_enough(stepped(first, last), 5) is enough


def test_a_hang_a_crash_and_an_end() -> None:
    """Each is told from the others, and a stall that went by itself is none."""
    assert judged(b.running(b.stall())).outcome == "hung"
    gone_by = e.StallRecovered(stall_id="0001", why="a step was made")
    assert judged(b.running(b.stall(), gone_by)).outcome == "unclear"
    assert judged(b.running(b.exited(code=3))).outcome == "crashed"
    assert judged(b.running(b.exited(code=0))).outcome == "ran"


def test_nothing_seen_is_unclear() -> None:
    """Neither a step nor a standstill: no word about the change."""
    assert judged(b.running()).outcome == "unclear"


def test_a_setting_that_did_not_take_is_no_trial() -> None:
    """That it hangs without the change in effect says nothing about the change."""
    refused = e.RemedyTaken(remedy="num-workers-0", pid=1, took=False, why="iterable")
    change = next(one for one in changes(None, None, ()) if one.id == "workers-0")
    state = stepped(1, 9, refused)
    assert judged(state, change).outcome == "not-applied"
    assert judged(state).outcome == "ran"


# -- the sentence -----------------------------------------------------------------------------


def test_it_names_what_helps_and_what_does_not() -> None:
    """In one sentence, with the ids that --try and the table have."""
    found = conclude(
        [
            trial("as-it-is", "hung"),
            trial("workers-0", "ran"),
            trial("spawn", "ran"),
            trial("threads-1", "hung"),
            trial("no-compile", "not-applied"),
        ]
    )
    assert found.found
    assert found.helps == ("workers-0", "spawn")
    assert found.words == (
        "It hangs as it is, and not with workers-0 and spawn; it still hangs with threads-1."
    )


def test_the_number_of_examples_is_told() -> None:
    """`Hangs with 10,000 examples and not with 2`: between which numbers it begins."""
    found = conclude(
        [
            trial("as-it-is", "hung"),
            trial("examples-2", "ran"),
            trial("examples-100", "ran"),
            trial("examples-1000", "hung"),
        ]
    )
    assert "With 100 examples it runs; it begins at 1000." in found.words


@pytest.mark.parametrize("outcome", ["ran", "unclear"])
def test_without_a_failure_nothing_is_concluded(outcome: Outcome) -> None:
    """The command as it is did not hang: no change can be blamed."""
    found = conclude([trial("as-it-is", outcome, "made 5 steps")])
    assert not found.found
    assert not found.helps


def test_nothing_helped() -> None:
    """Said as it is."""
    found = conclude([trial("as-it-is", "crashed"), trial("workers-0", "crashed")])
    assert not found.found
    assert found.words == "It crashes as it is, and with each of 1 changes that were tried."
    assert conclude([]).words == "Nothing was tried."
