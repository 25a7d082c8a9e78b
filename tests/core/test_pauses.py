"""What pauses that ended by themselves teach later runs, and what they never do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.core.test_suspect import (
    ALIVE,
    LINE,
    ask,
    event,
    limit_s,
    quiet,
    silent,
    then,
)
from watchdog_train.core import events as e
from watchdog_train.core.diagnosis.stacks import Frame
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import PatienceRow, Pause
from watchdog_train.core.pauses import MOST_PLACES, allowed_s, learn
from watchdog_train.core.policy import Detection, Policy
from watchdog_train.evidence.sources import SourceReader
from watchdog_train.store import pauses

HERE = "/home/u/train"
TWICE = Pause(own=LINE, wait="TcpWait", place="p", times=2, longest_s=120.0, directory=HERE)
WENT_ON = msgspec.structs.replace(ALIVE, progress_at=90.0)


def paused(row: PatienceRow = "unknown", *before: e.AnyEvent, **more: Any) -> State:
    return silent(row, *before, place="p", **more)


def ended(state: State, at: float = 70.0, **changes: Any) -> e.SuspicionEnded:
    found = event(
        ask(state, msgspec.structs.replace(WENT_ON, progress_at=at, moved_at=at, **changes), at)
    )
    assert isinstance(found, e.SuspicionEnded)
    return found


@pytest.mark.parametrize(
    ("row", "learnt", "expected_s"),
    [
        ("unknown", TWICE, 180.0),
        ("nobody-left", TWICE, 180.0),
        ("poll", TWICE, 900.0),  # has more already
        ("proven", TWICE, 20.0),  # never
        ("unknown", msgspec.structs.replace(TWICE, times=1), 75.0),
        ("unknown", msgspec.structs.replace(TWICE, longest_s=3000.0), 900.0),
        ("unknown", msgspec.structs.replace(TWICE, place="elsewhere"), 75.0),
    ],
)
def test_two_pauses_earn_half_as_long_again(
    row: PatienceRow, learnt: Pause, expected_s: float
) -> None:
    """At their place, up to 15 minutes."""
    state = msgspec.structs.replace(paused(row), learnt=(learnt,))
    assert limit_s(state, quiet()) == expected_s


def test_stall_timeout_ends_what_was_learnt() -> None:
    """A stall that the user's own limit has declared needs no look."""
    limited = Policy(detection=Detection(stall_timeout_s=100.0))
    state = msgspec.structs.replace(paused(), learnt=(TWICE,))
    assert isinstance(
        event(ask(state, quiet("user-limit", kind="stall"), policy=limited)), e.StallDeclared
    )


@pytest.mark.parametrize(
    ("row", "changes", "remembered"),
    [
        ("unknown", {}, True),
        ("unknown", {"disturbed_at": 70.0}, False),  # a process ended, was stopped, in state D
        ("unknown", {"at": 45.0}, False),  # far from its limit of 75 s
        ("poll", {}, False),
        ("proven", {}, False),
        ("sleep", {}, False),
    ],
)
def test_which_pauses_are_remembered(
    row: PatienceRow, changes: dict[str, Any], remembered: bool
) -> None:
    """Those that came near their limit, ended by progress and by nothing from outside."""
    assert ended(paused(row), **changes).remembered is remembered


def test_a_pause_with_a_request_or_without_progress_is_not_remembered() -> None:
    """Nobody knows what a save or a dump has set going."""
    assert not ended(msgspec.structs.replace(paused(), save_wall=2e9)).remembered
    dumped = then(paused(), e.EvidenceCollecting(stall_id="0001", why="manual", dir="d"), 50.0)
    assert not ended(dumped).remembered
    busy = event(ask(paused(), ALIVE, 70.0))
    assert isinstance(busy, e.SuspicionEnded)
    assert not busy.remembered


def test_a_run_adds_up_its_pauses() -> None:
    """One entry a place; a short pause is not said, and leaves the next one to be said."""
    state = paused()
    short = ended(state, at=20.0)
    state = then(state, short, 20.0)
    assert (short.said, state.pauses) == (False, ())
    for _ in range(2):
        state = msgspec.structs.replace(state, suspicion="quiet", look=paused().look)
        state = then(state, ended(state, at=70.0), 70.0)
    (found,) = state.pauses
    assert (found.place, found.times, found.longest_s) == ("p", 2, 70.0)


def test_the_memory_after_a_run() -> None:
    """Needed: kept and added up. Not needed by a run that succeeded there: halved, then gone."""
    new = msgspec.structs.replace(TWICE, times=1, longest_s=70.0, directory="")

    def after(*found: Pause, known: tuple[Pause, ...] = (TWICE,), **run: Any) -> tuple[Pause, ...]:
        return learn(known, found, **{"directory": HERE, "well": True, **run})

    assert after(new, known=()) == (msgspec.structs.replace(new, directory=HERE),)
    assert after(new) == (msgspec.structs.replace(TWICE, times=3),)
    (halved,) = after()
    assert (halved.longest_s, allowed_s(halved)) == (60.0, 90.0)
    assert after(known=after(known=(halved,))) == ()
    assert after(well=False) == after(directory="/elsewhere") == (TWICE,)
    assert after(msgspec.structs.replace(new, times=0), well=False) == (TWICE,)
    (capped,) = after(msgspec.structs.replace(new, longest_s=4000.0))
    assert allowed_s(capped) == 900.0
    many = [msgspec.structs.replace(new, place=str(at)) for at in range(200)]
    assert len(after(*many)) == MOST_PLACES


def test_the_file_is_whole_or_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rubbish teaches nothing, nor does what others may write; a place that takes none is said."""
    monkeypatch.setattr(pauses, "state_directory", lambda: tmp_path / "state")
    assert pauses.known() == ()
    assert pauses.remember((), directory=HERE, well=True) is None
    assert not (tmp_path / "state").exists()
    assert pauses.remember((TWICE,), directory=HERE, well=True) is None
    assert pauses.known() == (TWICE,)
    if sys.platform != "win32":
        pauses.path().chmod(0o666)
        assert pauses.known() == ()
        pauses.path().chmod(0o600)
    pauses.path().write_bytes(b'[{"own"')
    assert pauses.known() == ()
    pauses.path().unlink()
    (tmp_path / "state").rmdir()
    (tmp_path / "state").write_text("no folder")
    lost = pauses.remember((TWICE,), directory=HERE, well=True)
    assert lost is not None
    assert str(pauses.path()) in lost


SOURCE = '''\
import time

async def fetch(
    url,
):
    """Ask.

    More."""
    for _ in range(3):
        time.sleep(1)

    return url

for epoch in range(
    3
):
    time.sleep(2)
print("end")
'''


@pytest.mark.parametrize(
    ("function", "line", "first", "last"),
    [
        ("fetch", 10, "async def fetch(", "    return url\n"),
        ("Judge.fetch", 10, "async def fetch(", "    return url\n"),
        ("<module>", 17, "for epoch in range(", "    time.sleep(2)"),
        ("<lambda>", 10, None, None),
        ("fetch", 0, None, None),
        ("fetch", 99, None, None),
    ],
)
def test_the_code_of_a_function(
    tmp_path: Path, function: str, line: int, first: str | None, last: str | None
) -> None:
    """What comes after it and before it may change."""
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    found = SourceReader().function(Frame(function=function, file=str(path), line=line))
    assert (found and found.splitlines()[0]) == first
    if found is not None and last is not None:
        assert found.rstrip("\n") == found[: found.index(last)] + last.rstrip("\n")
