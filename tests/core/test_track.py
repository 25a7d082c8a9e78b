"""What one poll after the other teaches the detector: progress, gaps, quiet windows, sleep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import builders as b
from watchdog_train.core.detection import track as tracks
from watchdog_train.core.model import Sample
from watchdog_train.core.policy import Detection

DETECTION = Detection()


def track(*polls: Sample) -> tracks.Track:
    memory = tracks.new_track(polls[0].at)
    for poll in polls:
        memory = tracks.advance(memory, poll, DETECTION)
    return memory


def quiet_after(seconds: int = 8, **changes: Any) -> int:
    """Quiet windows after polls at each second; a change is a function of the second."""
    return track(
        *(
            b.sample(
                float(at),
                b.rank(words=5, state="D" if changes.get("state") else "S"),
                **{name: change(at) for name, change in changes.items() if name != "state"},
            )
            for at in range(seconds + 1)
        )
    ).quiet_windows


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, 4),
        ({"cpu_s": lambda at: 0.013 * at}, 4),  # what hung trees were measured to use
        ({"cpu_s": lambda at: 1.0 * at}, 0),  # a long matmul
        ({"cpu_s": lambda at: 0.03 * at}, 0),
        ({"cpu_s": lambda at: None}, 4),  # unknown, but nobody was ever seen running
        ({"io_bytes": lambda at: 4_500 * at}, 4),  # a lock poller
        ({"io_bytes": lambda at: 220_000 * at}, 0),  # a slow save
        ({"io_bytes": lambda at: None}, 4),  # can only add life
        ({"tcp_bytes": lambda at: 10 * at}, 4),  # keep-alives
        ({"tcp_bytes": lambda at: 10_000 * at}, 0),  # a slow download
        ({"tcp_bytes": lambda at: None}, 4),
        ({"births": lambda at: 1 + at}, 0),
        ({"deaths": lambda at: at}, 0),
        ({"births": lambda at: 1 + (at == 8)}, 0),  # one birth in the newest window
        ({"births": lambda at: 1 + (at >= 3)}, 2),  # and one that was long ago
        ({"state": True}, 0),  # D state
    ],
)
def test_quiet_windows(changes: dict[str, Any], windows: int) -> None:
    """Windows are quiet only where everything that could show life is known to show none."""
    assert quiet_after(**changes) == windows


@pytest.mark.parametrize("state", ["R", None])
def test_without_cpu_time_states_decide(state: str | None) -> None:
    """A process seen running, or states that are not known either: not quiet."""
    states = [state if at % 4 == 1 or state is None else "S" for at in range(17)]
    polls = [b.sample(at / 2, b.rank(words=5, state=s), cpu_s=None) for at, s in enumerate(states)]
    assert track(*polls).quiet_windows == 0


IDLE_RANKS = tuple(b.rank(100 + number, number, words=5) for number in range(64))
SIGNALS: dict[str, tuple[list[Sample], int]] = {
    # each of 64 ranks wakes up now and then; the sum is more than two per cent of a core
    "many idle processes": ([b.sample(float(t), *IDLE_RANKS, cpu_s=0.05 * t) for t in range(9)], 4),
    "a worker has ended": ([b.sample(float(t), b.rank(), cpu_s=100.0 - t) for t in range(9)], 0),
    "unknown CPU time in one look": (
        [b.sample(float(t), b.rank(), cpu_s=None if t == 4 else 0.0) for t in range(9)],
        1,
    ),
    "state D in one of two polls": (
        [b.sample(t / 2, b.rank(state="D" if t == 13 else "S")) for t in range(17)],
        0,
    ),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_what_is_no_silence_by_one_signal(name: str) -> None:
    """Nor is a signal silence that was lost for one look."""
    polls, windows = SIGNALS[name]
    assert track(*polls).quiet_windows == windows


def test_progress_restarts_the_windows() -> None:
    polls = [b.sample(float(at), b.rank(words=5 + (at >= 7))) for at in range(10)]
    memory = track(*polls)
    assert memory.quiet_windows == 1
    assert memory.progress_at == 7.0


@pytest.mark.parametrize("word", range(8))
def test_every_progress_word_counts(word: int) -> None:
    before = (1,) * 8
    after = tuple(value + (place == word) for place, value in enumerate(before))
    memory = track(b.sample(0.0, b.rank(words=before)), b.sample(5.0, b.rank(words=after)))
    assert memory.ranks[0].changed_at == 5.0


@pytest.mark.parametrize(
    "seam", [{"phase": "eval"}, {"phase_entries": 2}], ids=["another phase", "entered again"]
)
def test_a_phase_seam_starts_the_budget_anew(seam: dict[str, Any]) -> None:
    """A phase that is entered has its own time from then on."""
    memory = track(b.sample(0.0, b.rank(words=3)), b.sample(40.0, b.rank(words=3, **seam)))
    assert memory.ranks[0].changed_at == 40.0


def test_a_milestone_is_a_sign_of_life() -> None:
    memory = track(b.sample(0.0, b.rank()), b.sample(40.0, b.rank(milestone=2)))
    assert memory.ranks[0].changed_at == 40.0
    assert memory.progress_at == 0.0


def test_a_quiet_silence_that_ended_is_remembered_for_an_hour() -> None:
    """What came once may come again; one outlier does not count for ever."""
    polls = [b.sample(float(at), b.rank(words=5 + (at >= 40))) for at in range(50)]
    memory = track(*polls)
    assert tracks.survived_s(memory, "train", 50.0) == 40.0
    assert tracks.survived_s(memory, "eval", 50.0) == 0.0
    assert tracks.survived_s(memory, "train", 40.0 + tracks.SURVIVED_COUNTS_S + 1) == 0.0
    busy = [b.sample(float(at), b.rank(words=5 + (at >= 40)), cpu_s=at) for at in range(50)]
    assert tracks.survived_s(track(*busy), "train", 50.0) == 0.0


def stepping(gap_s: float, count: int) -> list[Sample]:
    return [b.sample(gap_s * at, b.rank(words=at + 1)) for at in range(count)]


def test_gaps_of_regular_steps_are_learnt() -> None:
    """Sleeping 30 s between steps is what this training does."""
    gaps = track(*stepping(30.0, 6)).ranks[0].gaps["train"]
    assert gaps == (30.0,) * 4  # the first gap of a phase holds its start


def test_many_steps_in_one_poll_teach_at_once() -> None:
    """Twenty steps between two polls are as many gaps, none longer than the time between them."""
    memory = track(b.sample(0.0, b.rank(words=1)), b.sample(1.0, b.rank(words=21)))
    assert memory.ranks[0].gaps["train"] == (1.0,) * 8


@pytest.mark.parametrize(
    "sleep", [{"late_s": 240.0}, {"suspended_s": 3600.0}], ids=["late poll", "suspend"]
)
def test_a_sleep_forgives_and_teaches_nothing(sleep: dict[str, float]) -> None:
    """Nobody is silent while we sleep, and steps made meanwhile have no known length."""
    memory = track(
        b.sample(0.0, b.rank(words=1)),
        b.sample(1.0, b.rank(words=1)),
        b.sample(241.0, b.rank(words=9), **sleep),
    )
    assert memory.ranks[0].changed_at == 241.0
    assert memory.ranks[0].gaps == {}
    assert memory.quiet_windows == 0


@pytest.mark.parametrize("late_s", [0.0, 4.9])
def test_a_poll_that_is_a_little_late_forgives_nothing(late_s: float) -> None:
    """A busy machine delays polls; that is no sleep."""
    memory = track(b.sample(0.0, b.rank()), b.sample(20.0, b.rank(), late_s=late_s))
    assert memory.ranks[0].changed_at == 0.0


def test_a_late_poll_moves_the_start_and_never_past_now() -> None:
    """--startup-timeout does not count our own sleep, and a memory made late is still sound."""
    memory = track(b.sample(100.0, b.rank()), b.sample(170.0, b.rank(), late_s=60.0))
    assert memory.started_at == 160.0
    assert track(b.sample(100.0, b.rank(), late_s=60.0)).started_at == 100.0


def test_a_stop_hides_no_silence_and_teaches_nothing() -> None:
    """Whoever was stopped is silent since its last progress, and its next gap is not learnt."""
    polls = [b.sample(float(at), b.rank(words=at)) for at in range(1, 10)]
    polls += [b.sample(float(at), b.rank(words=9, state="T")) for at in range(10, 50)]
    held = track(*polls)
    assert (held.ranks[0].changed_at, held.stopped_since) == (9.0, 10.0)
    polls += [b.sample(float(at), b.rank(words=at - 40)) for at in range(50, 53)]
    memory = track(*polls)
    assert memory.stopped_since is None
    assert not memory.ranks[0].interrupted
    assert set(memory.ranks[0].gaps["train"]) == {1.0}


def test_adoption_is_no_progress() -> None:
    """Ranks that are there at the first poll are the baseline; one that appears later is news."""
    first = b.sample(100.0, b.rank(words=50))
    assert track(first).progress_at == 0.0
    assert track(first, b.sample(105.0, b.rank(words=50))).progress_at == 0.0
    born = b.sample(105.0, b.rank(words=50), b.rank(11, 1))
    assert track(first, born).progress_at == 0.0
    joined = b.sample(105.0, b.rank(words=50), b.rank(11, 1, words=1))
    assert track(first, joined).progress_at == 105.0


def test_who_is_judged() -> None:
    """Ranks, and others that train; launchers, workers and the dead are evidence only."""
    poll = b.sample(
        0.0,
        b.rank(10),
        b.member(11, "launcher", slot=b.slot(11, words=1)),
        b.member(12, "worker", slot=b.slot(12, words=1)),
        b.member(13, "other", slot=b.slot(13, phase="unknown")),
        b.member(14, "other", slot=b.slot(14, phase="unknown", words=2)),
        b.member(17, "other", slot=b.slot(17, phase="load")),
        b.member(18, "other", slot=b.slot(18, phase="idle")),
        b.rank(15, state="Z"),
        b.member(16, "rank"),
        b.keeper(),
    )
    assert [reading.pid for _, reading in poll.judged] == [10, 14, 17]


def test_output_counts_as_life_without_heartbeats() -> None:
    """Where no slot reaches us the growth of the log is all there is."""
    memory = track(b.sample(0.0, b.member()), b.sample(9.0, b.member(), log_bytes=5))
    assert memory.log_at == 9.0


def test_budgets_grow_after_a_false_alarm_up_to_a_cap() -> None:
    """A stall that recovered doubles its phase's budgets, sixteenfold at most."""
    memory = tracks.new_track(0.0)
    for _ in range(6):
        memory = tracks.lengthen(memory, "eval")
    assert memory.factors == {"eval": 16.0}
