"""Milestones of ranks compared, bounded, told in words and recorded when they should be."""

from __future__ import annotations

import msgspec
import pytest

from tests.core import builders as b
from tests.golden.compare import assert_golden
from watchdog_train.core import events as e
from watchdog_train.core.actions import HookReport, Record
from watchdog_train.core.decide import decide
from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.model import ExitStatus, Milestone, RankPlaces, said
from watchdog_train.core.notices.milestones import MOST_RANKS, bounded, milestones_event
from watchdog_train.core.policy import Policy
from watchdog_train.report.places_text import (
    milestone_lines,
    place_lines,
    place_sentences,
    places_object,
    process_sentences,
)


def at(name: str, begin: float, end: float | None = None, **changes: object) -> Milestone:
    return Milestone(name=name, begin=begin, end=end, **changes)  # type: ignore[arg-type]


def rank(number: int, *milestones: Milestone) -> RankPlaces:
    return RankPlaces(rank=number, local_rank=number, pid=100 + number, milestones=milestones)


PASSED = rank(0, at("import torch", 1, 4), at("wandb.init", 10, 12))
INSIDE = rank(1, at("import torch", 1, 5), at("wandb.init", 10))
BEFORE = rank(2, at("import torch", 1, 9))


def test_ranks_are_merged_by_time_with_one_number_for_each_place() -> None:
    """Two ranks: one has passed what the other is inside of; a mark is the user's own words."""
    places = (
        rank(
            0, at("import torch", 1, 4.25), at("arguments parsed", 4.3, 4.3),
            at("wandb.init", 5, 6.5), at("init_process_group", 8, 9), at("model created", 10.123,
            10.123, mark=True), at("first batch", 11),
        ),
        rank(
            1, at("import torch", 1.5, 4), at("arguments parsed", 4.1, 4.1),
            at("init_process_group", 7, 9), at("load model", 9.5, 10, failed=True, times=2),
        ),
    )  # fmt: skip
    lines = milestone_lines(places, 72.0, 0.5, epoch=1.8e9 + 0.001, ranks=2)
    assert_golden("milestones_two_ranks.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("places", "now", "sentences"),
    [
        ((PASSED, INSIDE, BEFORE), 322.0,
         (("rank 1 is inside wandb.init for 5 min 12 s; rank 0 passed it after 2 s; "
           "rank 2 has not reached it"),)),
        # Equal places are one sentence, ordered by how long; shortest and longest of those passed.
        ((rank(0, at("first step", 20)), rank(1, at("first step", 30)),
          rank(2, at("first batch", 5, 25), at("first step", 25, 26)),
          rank(3, at("first step", 25, 29), at("load model", 90))), 100.0,
         ("ranks 0-1 are inside first step for 1 min 20 s; ranks 2-3 passed it after 1 s to 4 s",
          "rank 3 is inside load model for 10 s; ranks 0-2 have not reached it")),
        ((rank(0, at("load model", 1), at("hub download", 3)),), 63.0,
         ("rank 0 is inside hub download (in load model) for 1 min",)),
        ((PASSED, BEFORE), 100.0, ()),  # between milestones nothing is invented
        ((), 1.0, ()),
    ],
)  # fmt: skip
def test_who_is_inside_who_has_passed_and_who_has_not_come(places, now, sentences) -> None:
    assert place_sentences(places, now) == sentences


def test_the_way_of_a_rank_line_by_line() -> None:
    place = rank(
        0,
        at("load model", 2, 8),
        at("hub download", 3, 7, failed=True),
        at("data ready", 9, 9, mark=True),
        at("map dataset", 10, 10.5, times=3),
        at("first step", 20),
    )
    assert place_lines((place,), 40.0, 1.0) == (
        "rank 0, local rank 0, pid 100",
        "         1 s  load model                          took 6 s",
        "         2 s    hub download                      took 4 s and failed",
        "         8 s  data ready                          mark",
        "         9 s  map dataset                         took 0.5 s, 3 times",
        "        19 s  first step                          inside for 20 s",
    )


def test_hostile_names_cannot_move_a_terminal() -> None:
    """A mark is text of the training: control characters and escapes are taken out."""
    evil = "\x1b[2J\x1b]0;x\x07rm\n-rf \u202e"
    lines = place_lines((rank(0, at(evil, 1)),), 5.0, 0.0)
    text = "\n".join(lines) + "".join(place_sentences((rank(0, at(evil, 1)),), 5.0))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "rm -rf" in text


def test_json_has_seconds_and_null_for_what_is_not_over() -> None:
    (found,) = places_object((INSIDE,), 322.0, 0.5)
    assert found["inside"] == ["wandb.init"]
    assert found["milestones"][0]["took_s"] == 4.0
    assert found["milestones"][1] == {
        "name": "wandb.init", "at_s": 9.5, "took_s": None, "inside_s": 312.0,
        "times": 1, "failed": False, "mark": False,
    }  # fmt: skip


def test_a_bundle_tells_its_ranks_only() -> None:
    of_rank = ProcessEvidence(
        pid=1, start=1, ppid=0, role="rank", rank=1, milestones=(at("wandb.init", 10),),
        milestones_at=40.0,
    )  # fmt: skip
    worker = msgspec.structs.replace(of_rank, pid=2, role="worker")
    told = process_sentences(Evidence(why="stall", processes=(worker, of_rank)))
    assert told == ("rank 1 is inside wandb.init for 30 s",)


def test_what_a_line_of_the_log_can_take() -> None:
    """Of many ranks those that are inside something are kept first."""
    many = [rank(n, at("import torch", 1, 2)) for n in range(100)] + [rank(500, at("x", 3))]
    kept = bounded(many)
    assert len(kept) == MOST_RANKS
    assert kept[-1].rank == 500


def events_of(action: object) -> list[e.AnyEvent]:
    return list(action.events)


def test_they_are_recorded_at_the_first_step_and_not_again() -> None:
    state = b.running()
    poll = b.sample(5.0, b.rank(words=1))
    seen = b.observation(poll, places=(PASSED,))
    events = events_of(decide(seen, state, Policy(), {}))
    assert [event for event in events if isinstance(event, e.Milestones)] == [
        e.Milestones(ranks=(PASSED,))
    ]
    after = b.running(*events)
    assert after.places == (PASSED,)
    options = ("--resume",)
    (told,) = milestones_event(msgspec.structs.replace(seen, resume_options=options), after)
    known = evolve(after, told)
    assert known.resume_options == options
    assert milestones_event(seen, known) == (), "a later attempt has not read its arguments yet"
    assert evolve(known, e.Milestones(ranks=(INSIDE,))).resume_options == options
    again = decide(seen, after, Policy(), {})
    assert not isinstance(again, Record) or not any(
        isinstance(event, e.Milestones) for event in again.events
    )


def test_they_are_recorded_at_the_end() -> None:
    first = e.FirstBeat(rank=0, pid=b.ROOT, after_s=1.0)
    state = b.running(first)
    ended = ExitStatus(code=1, signal=None, how_known="keeper")
    seen = b.observation(
        b.sample(9.0, b.rank()), places=(INSIDE,), exit=ended, last_words=(b.rank(),)
    )
    kinds = [type(event) for event in events_of(decide(seen, state, Policy(), {}))]
    assert kinds[-2:] == [e.Milestones, e.AttemptExited]


def test_a_hook_that_is_not_armed_is_said_once() -> None:
    reports = tuple(
        HookReport(
            hook="transformers", pid=pid, status="skipped", why="transformers 9.9 is outside"
        )
        for pid in (b.ROOT, 11)
    )
    seen = b.observation(b.sample(5.0, b.rank()), hooks=reports)
    state = b.running(e.FirstBeat(rank=0, pid=b.ROOT, after_s=1.0))
    events = events_of(decide(seen, state, Policy(), {}))
    assert [event.hook for event in events if isinstance(event, e.HookNotArmed)] == ["transformers"]
    after = b.running(e.FirstBeat(rank=0, pid=b.ROOT, after_s=1.0), *events)
    assert [hook.why for hook in after.hooks] == [said("transformers 9.9 is outside")]
    action = decide(seen, after, Policy(), {})
    assert not isinstance(action, Record) or not any(
        isinstance(event, e.HookNotArmed) for event in action.events
    )
