"""Waits under the default settings: healthy pauses are spared, hangs are found in time."""

from __future__ import annotations

import sys

import pytest

from tests.support import REPOSITORY, run_command

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

BENCH = REPOSITORY / "scripts" / "bench" / "pauses"


def measured(*arguments: str) -> str:
    done = run_command([sys.executable, str(BENCH), *arguments], timeout_s=900)
    return done.stdout


def test_pauses_longer_than_any_unknown_wait_are_spared() -> None:
    """A sleep, a judge, a pool and a queue that a thread feeds: no kill, each said once."""
    kinds = ("sleep", "judge", "pool", "queue_of_a_thread")
    told = measured("--seconds", "90", "--jobs", "2", *kinds)
    assert told.count("and then continued") == len(kinds)


def test_a_deadlock_is_a_stall_within_20_s() -> None:
    """In the training and in a worker of its DataLoader."""
    measured("--hung", "--jobs", "1", "locked_twice", "worker_on_a_lock")
