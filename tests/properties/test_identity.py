"""Whom wtrain takes for its own, and in which order it ends them, whatever processes do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.process_table import KILL, TERM, SimulatedTable, Step, Story
from watchdog_train.core import events as e
from watchdog_train.core.model import ProcessId

TOLD = {
    "a child of a dead parent": "spawn, spawn 1, look, end 1, look",
    "an orphan whose parent was never seen": "spawn, spawn 1, end 1",
    "an orphan that hides its token": "spawn, hidden 1, look, end 1, look",
    "the root is gone": "hidden, spawn, look, end 0",
    "a pid comes again": "spawn, look, end 1, reuse",
    "a pid comes again unseen, as a copy": "spawn, look, end 1, reuse 0 copied-token, look",
    "a pid comes again, as another user": "spawn, look, end 1, reuse 0 other-user",
    "tokens that prove nothing": (
        "bystander 0 copied-token, bystander 0 other-user, bystander, look"
    ),
    "a helper and one that is deaf": "helper, deaf, spawn 2",
}


def step(words: str) -> Step:
    """The kind, whom of the living it is about, and what it shows."""
    kind, which, how = (*words.split(), *("", "0", "plain")[len(words.split()) :])
    return Step(kind, int(which), how)  # type: ignore[arg-type]


CASES = {name: [step(words) for words in told.split(", ")] for name, told in TOLD.items()}
"""The same are played with real processes, in tests/processes/test_identity.py."""
SEQUENCES: tuple[e.KillSequence, ...] = ("hang", "now", "sweep")

steps = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(
            ["spawn", "spawn", "hidden", "helper", "deaf", "end", "look", "bystander", "reuse"]
        ),
        which=st.integers(0, 7),
        how=st.sampled_from(["plain", "copied-token", "spooled", "other-user"]),
    ),
    max_size=14,
)


def check_end(story: Story, log: list[e.SentSignal]) -> None:
    """Nobody of ours is left, and nobody else was touched."""
    table = story.table
    assert not story.living(), "something of ours lives on"
    assert not table.alive(table.keeper), "the keeper lives on"
    assert all(table.alive(who) for who in story.others), "a bystander is gone"
    ours = {*story.ours, table.keeper}
    assert {ProcessId(event.pid, event.start) for event in log} <= ours


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_named_cases(name: str, sequence: e.KillSequence) -> None:
    """What has gone wrong in other people's supervisors."""
    story = Story(SimulatedTable())
    story.play(CASES[name])
    check_end(story, story.bring_down(sequence))


@given(steps, st.sampled_from(SEQUENCES))
@settings(max_examples=150)
def test_whatever_processes_do(played: list[Step], sequence: e.KillSequence) -> None:
    """With a subreaper nobody of ours is missed, and nobody else is ever signalled."""
    story = Story(SimulatedTable())
    story.play(played)
    check_end(story, story.bring_down(sequence))


@given(steps, st.sampled_from(SEQUENCES))
@settings(max_examples=100)
def test_without_a_subreaper(played: list[Step], sequence: e.KillSequence) -> None:
    """As on macOS: who was seen once, or shows its token, is ended; a stranger never."""
    table = SimulatedTable(subreaper=False)
    story = Story(table)
    story.play(played)
    story.bring_down(sequence)
    assert all(table.alive(who) for who in story.others)
    for who in story.living():
        assert who not in story.seen, "seen once, and forgotten"
        assert not table.processes[who.pid].shows_token


@given(steps, st.sampled_from([TERM, KILL]))
@settings(max_examples=50)
def test_a_signal_to_a_reused_pid_reaches_nobody(played: list[Step], number: int) -> None:
    """The record may be a look behind; the identity is checked when the signal is sent."""
    table = SimulatedTable()
    story = Story(table)
    story.play(played)
    for who in story.ours:
        if not table.alive(who):
            assert table.send_signal(who, number) in ("gone", "not-ours")
    assert not any(table.processes[who.pid].got for who in story.others if table.alive(who))
