"""Warnings ahead: each is said once, and taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Ahead, SaveRecord, Why, said
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.notices.poll_events import news
from watchdog_train.core.notices.warnings import DiskRoom, Outlook, Room, advance, resumed
from watchdog_train.core.policy import Policy
from watchdog_train.report.document import Document
from watchdog_train.report.messages import news as told
from watchdog_train.report.notices import notice_rows
from watchdog_train.report.run_json import status_object
from watchdog_train.report.why_text import why_text

GB = 10**9
HOUR = 3600.0
Free = Callable[[float], float]


def seen(
    free: Free,
    hours: float,
    *,
    what: str = "disk",
    memory: Outlook | None = None,
    begin: float = 0.0,
) -> list[tuple[float, tuple[Ahead, ...]]]:
    """What is open after each look, one every half minute; 1 TB, of which `free` bytes are free."""
    found = []
    memory = memory or Outlook()
    at = begin
    while at < begin + hours * HOUR:
        at += 30.0
        left = max(0, int(free(at)))
        room = (
            Room(at=at, disks=(DiskRoom(path="/d", free_bytes=left, total_bytes=1000 * GB),))
            if what == "disk"
            else Room(at=at, memory_free_bytes=left, memory_total_bytes=1000 * GB)
        )
        poll = b.sample(at, b.rank(words=int(at)))
        memory = advance(memory, poll, room)
        found.append((at, tuple(one for one in memory.open if one.kind in ("disk", "memory"))))
    return found


def first(found: list[tuple[float, tuple[Ahead, ...]]]) -> float | None:
    return next((at for at, one in found if one), None)


@pytest.mark.parametrize("what", ["disk", "memory"])
def test_low_is_said_after_some_looks_and_is_over_when_there_is_room(what: str) -> None:
    found = seen(lambda t: 100e6 if 600 <= t <= 900 else 50 * GB, 1.0, what=what)
    spoken = [at for at, one in found if one]
    assert min(spoken) == 660.0
    assert max(spoken) == 900.0
    assert "95.4 MiB" in why_text(next(one for _, one in found if one)[0].why)
    assert first(seen(lambda t: 100e6 if 600 <= t < 650 else 50 * GB, 1.0, what=what)) is None


def test_what_was_over_is_not_said_again_within_the_hour() -> None:
    """A disk that is emptied and filled every ten minutes is one warning an hour."""
    found = seen(lambda t: 100e6 if (t // 600) % 2 else 50 * GB, 5.0)
    begun = [at for (_, a), (at, one) in itertools.pairwise(found) if one and not a]
    assert 3 <= len(begun) <= 5


def test_a_checkpoint_that_does_not_fit_is_said() -> None:
    """By the size of the newest saves, and what was free after the last one had gone."""
    save = SaveRecord(path="/d/c-1", format="hf", files={"model": (30 * GB, 1)})
    poll = b.sample(30.0, b.rank(words=1))
    room = Room(at=30.0, disks=(DiskRoom(path="/d", free_bytes=20 * GB, total_bytes=1000 * GB),))
    (warning,) = advance(Outlook(), poll, room, saves=(save,)).open
    assert warning.why == Why("checkpoint-too-large", need=30 * 10**9, path="/d", size=20 * 10**9)
    enough = msgspec.structs.replace(
        room, disks=(DiskRoom(path="/d", free_bytes=31 * GB, total_bytes=1000 * GB),)
    )
    assert advance(Outlook(), poll, enough, saves=(save,)).open == ()


def test_a_stranger_on_the_gpu_is_said_when_it_stays() -> None:
    """Not a tool that looks, and not the screen."""

    def looks(name: str, polls: int) -> tuple[Ahead, ...]:
        memory = Outlook()
        for number in range(1, polls + 1):
            gpu = GpuUse(others=(7,), other_names=(name,)) if name else None
            poll = b.sample(30.0 * number, b.rank(words=number), gpu=gpu)
            memory = advance(memory, poll, Room(at=30.0 * number))
        return memory.open

    assert looks("pid 7 (python x.py, user eve)", 4) == ()
    (warning,) = looks("pid 7 (python x.py, user eve)", 6)
    assert (warning.kind, "user eve" in why_text(warning.why)) == ("gpu-shared", True)
    assert looks("pid 7 (/usr/lib/xorg/Xorg)", 20) == ()


def test_a_save_is_overdue_by_the_intervals_before() -> None:
    """Every 20 minutes, then none: said after 50. None at all: after two hours. Slow ones: not."""

    def until(saves: Callable[[float], int], hours: float) -> float | None:
        memory = Outlook()
        for number in range(1, int(hours * 120)):
            at = 30.0 * number
            poll = b.sample(at, b.rank(words=number, saves_ended=saves(at)))
            memory = advance(memory, poll, Room(at=at))
            if memory.open:
                return at
        return None

    assert until(lambda t: int(min(t, 3600) // 1200), 4.0) == pytest.approx(3600 + 3000, abs=60)
    assert until(lambda t: 0, 4.0) == pytest.approx(7200, abs=60)
    assert until(lambda t: int(t // 6000), 9.0) is None


def test_events_say_it_once_and_take_it_back() -> None:
    """One warning and one word that it is over, in log, status and message; not once a poll."""
    state = State()
    for event in (
        e.AttemptLaunching(token="t", plan=b.plan(1)),
        e.AttemptLaunched(pid=10, start=1010, keeper_pid=9, keeper_start=1009),
    ):
        state = evolve(state, msgspec.structs.replace(event, attempt=1, mono=1.0))
    one = Ahead(kind="disk", about="/d", why=said("the disk of /d is nearly full"))
    poll = b.sample(50.0, b.rank(words=1))

    def found_now(ahead: tuple[Ahead, ...] | None) -> list[e.AnyEvent]:
        nonlocal state
        found = news(b.observation(poll, ahead=ahead), state, Policy())
        events = [each for each in found if isinstance(each, e.Warned)]
        for each in events:
            state = evolve(state, msgspec.structs.replace(each, mono=40.0))
        return list(events)

    assert found_now(None) == []
    (warned,) = found_now((one,))
    assert isinstance(warned, e.Warned)
    assert found_now((one,)) == []
    assert found_now(None) == [], "unknown takes nothing back"
    assert ("Notice", why_text(one.why)) in notice_rows(state)
    assert {"kind": "disk", "pids": [], "why": one.why} in status_object(Document(state=state))[
        "notices"
    ]
    message = told(warned, state)
    assert "nearly full" in message.line
    (over,) = found_now(())
    assert over.over
    assert notice_rows(state) == []


def test_who_takes_over_takes_nothing_back_that_cannot_be_judged_yet() -> None:
    """Time is needed to judge; then what is not found again is over."""
    one = Ahead(kind="disk", about="/d", why=said("full soon"))
    found = seen(lambda _: 50 * GB, 1.0, memory=resumed((one,), 1000.0), begin=1000.0)
    assert found[0][1] == (one,)
    assert found[-1][1] == ()
