"""Which trials `wtrain bisect` makes, how long each may take, and what it reads off their runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core import builders as b
from watchdog_train.cli.bisect import closing, setting_words, table
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.recovery.bisect import (
    AS_GIVEN,
    MOST_TRIALS,
    Change,
    Levels,
    Outcome,
    Setting,
    Trial,
    best,
    command_of,
    judge,
    levels_of,
    limits_s,
    next_setting,
)
from watchdog_train.remedies.catalogue import CATALOGUE

TORCHRUN = ("torchrun", "--nproc_per_node", "4", "train.py", "--lr", "1")
ALL = levels_of(TORCHRUN, {})
GONE = {"workers": 9, "evaluation": 1, "ranks": 4, "examples": 10_000}


def amounts(setting: Setting) -> dict[str, int]:
    return {**GONE, **{change.what: change.amount for change in setting}}


def trial(setting: Setting, outcome: Outcome, seconds: float = 10.0, *lacks: str) -> Trial:
    effective = tuple(change for change in setting if change.what not in lacks)
    return Trial(
        setting=setting, outcome=outcome, seconds=seconds, run_dir="/r", effective=effective
    )


def search(
    hangs: Callable[[dict[str, int]], bool], *lacks: str, levels: Levels = ALL
) -> tuple[list[str], str | None]:
    """The trials of a training that hangs under a condition, and the answer."""
    trials: list[Trial] = []
    while (setting := next_setting(trials, levels)) is not None:
        seen = tuple(change for change in setting if change.what not in lacks)
        outcome: Outcome = "hung" if hangs(amounts(seen)) else "ran"
        trials.append(trial(setting, outcome, 10.0, *lacks))
    found = best(trials)
    names = [setting_words(one.setting) for one in trials]
    return names, None if found is None else setting_words(found.effective)


ALL_LESS = "no workers, no evaluation, 1 rank, 2 examples"
SINGLE = ["no workers", "no evaluation", "1 rank", "2 examples"]


@pytest.mark.parametrize(
    ("hangs", "more", "answer"),
    [
        (lambda _: False, [], None),
        (lambda n: n["examples"] >= 100, [*SINGLE, "100 examples"], "2 examples"),
        (lambda n: n["examples"] >= 101, [*SINGLE, "100 examples"], "100 examples"),
        (lambda n: n["workers"], ["no workers", "1 worker"], "no workers"),
        (lambda n: n["workers"] > 1, ["no workers", "1 worker"], "1 worker"),
        (lambda n: n["evaluation"], SINGLE[:2], "no evaluation"),
        (lambda n: n["ranks"] > 1, [*SINGLE[:3], "2 ranks"], "1 rank"),
        (lambda n: n["ranks"] > 2, [*SINGLE[:3], "2 ranks"], "2 ranks"),
        # Only two changes together avoid it.
        (
            lambda n: n["workers"] or n["ranks"] > 1,
            [
                *SINGLE,
                "no workers, no evaluation, 1 rank",
                "no workers, no evaluation",
                "no workers, 1 rank",
            ],
            "no workers, 1 rank",
        ),
        (lambda _: True, SINGLE, None),
    ],
)
def test_the_search_ends_at_the_smallest_change_that_avoids_the_hang(
    hangs: Callable[[dict[str, int]], bool], more: list[str], answer: str | None
) -> None:
    names, found = search(hangs)
    assert names == [ALL_LESS, "as given", *more]
    assert found == answer
    assert len(names) == len(set(names)) <= MOST_TRIALS


def test_a_change_that_nothing_takes_is_not_tried_again_and_not_advised() -> None:
    names, found = search(lambda n: n["examples"] > 99, "workers", "evaluation")
    assert names == [ALL_LESS, "as given", "1 rank", "2 examples", "100 examples"]
    assert found == "2 examples"
    assert search(lambda n: n["ranks"] == 4, *GONE, levels=ALL) == ([ALL_LESS, "as given"], None)


@pytest.mark.parametrize("outcome", ["ran", "failed", "unclear"])
def test_without_a_hang_nothing_else_is_tried(outcome: Outcome) -> None:
    done = [trial((), "ran"), trial(AS_GIVEN, outcome)]
    levels = {what: least for what, least in ALL.items() if what == "workers"}
    first = next_setting([], levels)
    assert first is not None
    assert next_setting([trial(first, "ran"), done[1]], levels) is None
    assert best([trial(first, "ran"), done[1]]) is None


def test_at_most_fifteen_trials() -> None:
    first = next_setting([], ALL)
    assert first is not None
    many = [trial(first, "ran"), *[trial(AS_GIVEN, "hung")] * 14]
    assert next_setting(many[:14], ALL) is not None
    assert next_setting(many, ALL) is None


def test_the_settings_of_trials_exist() -> None:
    for what, tried in ALL.items():
        for amount in tried:
            name = Change(what=what, amount=amount).remedy.partition("=")[0]
            assert name in CATALOGUE or (what == "ranks" and name == "")


@pytest.mark.parametrize(
    ("command", "ranks", "one"),
    [
        (TORCHRUN, (1, 2), ("torchrun", "--nproc-per-node=1", "train.py", "--lr", "1")),
        (
            ("accelerate", "launch", "--num_processes=2", "a.py"),
            (1,),
            ("accelerate", "launch", "--num-processes=1", "a.py"),
        ),
        (("torchrun", "--nproc-per-node=1", "a.py"), None, None),
        (("torchrun", "--nproc-per-node=gpu", "a.py"), (1, 2), None),
        (("python", "a.py"), None, ("python", "a.py")),
        (("bash", "-c", "torchrun --nproc-per-node=2 a.py"), None, None),
    ],
)
def test_fewer_ranks_where_a_launcher_stands_in_the_command(
    command: tuple[str, ...], ranks: tuple[int, ...] | None, one: tuple[str, ...] | None
) -> None:
    assert levels_of(command, {}).get("ranks") == ranks
    if one is not None:
        assert command_of(command, (Change(what="ranks", amount=1),)) == one
    assert command_of(command, AS_GIVEN) == command


NONE_LESS = (Change(what="workers", amount=0),)


@pytest.mark.parametrize(
    ("trials", "total_s", "silence_s"),
    [
        ([], 600, None),
        ([trial(NONE_LESS, "hung", 100)], 600, None),
        ([trial(NONE_LESS, "ran", 4)], 600, 30),
        ([trial(NONE_LESS, "ran", 50)], 600, 150),
        ([trial(NONE_LESS, "ran", 500)], 600, 300),
        ([trial(NONE_LESS, "ran", 20), trial(AS_GIVEN, "hung", 50)], 210, 60),
        ([trial(NONE_LESS, "failed", 5), trial(AS_GIVEN, "hung", 90)], 270, None),
    ],
)
def test_limits_come_from_the_first_trial_that_ran(
    trials: list[Trial], total_s: float, silence_s: float | None
) -> None:
    assert limits_s(trials, 600) == (total_s, silence_s)


# -- what became of a trial -----------------------------------------------------------------------


def judged(state: State, setting: Setting = AS_GIVEN, *, late: bool = False) -> Trial:
    before = [Trial(setting=AS_GIVEN, outcome="hung", seconds=9, run_dir="/r", step=7)]
    return judge(state, before if setting else [], setting, seconds=9, late=late)


def said(took: bool) -> e.RemedyTaken:
    return e.RemedyTaken(remedy="num-workers-0", pid=1, took=took, why="iterable")


def test_a_hang_an_exception_and_an_end_are_told_apart() -> None:
    assert judged(b.running(b.stall())).outcome == "hung"
    assert judged(b.running(b.exited(code=3))).outcome == "failed"
    assert judged(b.running(b.exited(code=0))).outcome == "ran"
    assert judged(State()).outcome == "unclear"


def test_a_trial_at_its_time_limit_ran_only_if_it_passed_the_step_of_the_hang() -> None:
    state = b.running(e.FirstStep(rank=0, pid=1, step=8, after_s=1.0))
    assert judged(b.running(), late=True).outcome == "unclear"
    assert judged(state, NONE_LESS, late=True).outcome == "ran"
    early = b.running(e.FirstStep(rank=0, pid=1, step=6, after_s=1.0))
    assert judged(early, NONE_LESS, late=True).outcome == "unclear"


def test_a_setting_that_the_training_refused_had_no_effect() -> None:
    ended = b.exited(code=0)
    assert judged(b.running(said(took=True), ended), NONE_LESS).avoids
    for events in ((said(took=False), ended), (ended,)):
        refused = judged(b.running(*events), NONE_LESS)
        assert (refused.outcome, refused.avoids) == ("ran", False)
        assert "no effect" in table([refused])[1]
    # It hung before its loader was made.
    assert judged(b.running(b.stall()), NONE_LESS).effective == NONE_LESS


def test_the_closing_lines_name_the_line_to_paste() -> None:
    one = (Change(what="ranks", amount=1), Change(what="examples", amount=2))
    trials = [trial(one, "ran"), trial(AS_GIVEN, "hung"), trial(one[:1], "ran")]
    assert closing(trials, TORCHRUN)[-1] == (
        "  wtrain run -- torchrun --nproc-per-node=1 train.py --lr 1"
    )
    assert closing(trials[:2], TORCHRUN)[-1] == (
        "  wtrain run --with subset=2 -- torchrun --nproc-per-node=1 train.py --lr 1"
    )
    assert "none of 1 smaller setting" in closing([trial(one, "hung"), trials[1]], TORCHRUN)[-1]
    assert closing(trials[:1], TORCHRUN) == ["The command was not tried as given."]
