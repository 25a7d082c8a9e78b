"""Windows Job objects, as far as another system can check them: layouts, parsing, order of calls.

Nothing here shows that they work on Windows: the library is played.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Signal
from watchdog_train.core.events import KillStage
from watchdog_train.core.model import ProcessId, said
from watchdog_train.core.notices.news import news
from watchdog_train.core.policy import Policy
from watchdog_train.keeper import job_object as keeper_side
from watchdog_train.report.why_text import why_text
from watchdog_train.supervisor.hands.group import AttemptGroup
from watchdog_train.supervisor.hands.local import deliver
from watchdog_train.system import job_object
from watchdog_train.system.job_object import ERROR_MORE_DATA, JobObject, parse_ids
from watchdog_train.system.protocol import SignalResult
from watchdog_train.system.windows import SIGINT, SIGTERM, WindowsSystem

RUN = "x"
NAME = "Global\\wtrain-x-1"
wide = pytest.mark.skipif(sys.maxsize < 2**32, reason="the layout of 64 bits")


class Function:
    """Takes signatures as a function of ctypes does, and answers with what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self.answer(*arguments)


class Kernel32:
    """The few calls, on one job with these pids; handles that are open are counted."""

    def __init__(self, pids: tuple[int, ...] = (), *, fails: str = "") -> None:
        self.job = list(pids)
        self.open: set[int] = set()
        self.calls: list[str] = []
        self.error = 0
        self.exists = False
        self._fails = fails
        self.OpenJobObjectW = Function(self._handle("OpenJobObjectW"))
        self.CreateJobObjectW = Function(self._handle("CreateJobObjectW"))
        self.GetCurrentProcess = Function(lambda: -1)
        self.AssignProcessToJobObject = Function(lambda *_: self._done("AssignProcessToJobObject"))
        self.TerminateJobObject = Function(lambda *_: self._done("TerminateJobObject"))
        self.QueryInformationJobObject = Function(self._query)
        self.CloseHandle = Function(self._close)

    def last_error(self) -> int:
        return self.error

    def _done(self, name: str) -> int:
        self.calls.append(name)
        if name == self._fails:
            self.error = 5
            return 0
        return 1

    def _handle(self, name: str) -> Any:
        def make(*_: object) -> int | None:
            if not self._done(name):
                return None
            self.error = keeper_side.ERROR_ALREADY_EXISTS if self.exists else 0
            self.open.add(77)
            return 77

        return make

    def _close(self, handle: int) -> int:
        self.open.remove(handle)
        return 1

    def _query(self, _job: int, kind: int, buffer: Any, size: int, _needed: object) -> int:
        assert kind == job_object.BASIC_PROCESS_ID_LIST
        if not self._done("QueryInformationJobObject"):
            return 0
        room = (size - job_object.HEAD_BYTES) // job_object.ID_BYTES
        some = self.job[:room]
        written = listed(*some, assigned=len(self.job))
        ctypes.memmove(buffer, written, len(written))
        self.error = ERROR_MORE_DATA
        return int(len(some) == len(self.job))


def listed(*pids: int, assigned: int | None = None, claimed: int | None = None) -> bytes:
    """What Windows writes into the buffer."""
    head = (len(pids) if assigned is None else assigned, len(pids) if claimed is None else claimed)
    numbers = [number.to_bytes(4, sys.byteorder) for number in head]
    return b"".join([*numbers, *(pid.to_bytes(job_object.ID_BYTES, sys.byteorder) for pid in pids)])


def opened(library: Kernel32) -> JobObject:
    return JobObject(NAME, job_object.declare(library), library.last_error)


@wide
def test_layout_is_that_of_winnt() -> None:
    """Two 32-bit counts, then ids of pointer size; handles are not cut to an int."""
    assert ctypes.sizeof(job_object.ProcessIdList) == 16
    assert job_object.HEAD_BYTES == 8
    assert ctypes.sizeof(job_object.HANDLE) == 8
    assert ctypes.sizeof(job_object.DWORD) == ctypes.sizeof(job_object.BOOL) == 4


def test_every_function_has_a_signature() -> None:
    """On both sides: without one ctypes takes every argument and result for an int."""
    library = Kernel32()
    opened(library)
    assert keeper_side.enter(NAME, (library, library.last_error)) is None
    for name in (*job_object.SIGNATURES, *keeper_side.SIGNATURES):
        assert getattr(library, name).restype is not None
        assert getattr(library, name).argtypes is not None


@wide
def test_ids_of_a_list() -> None:
    """As many as are claimed and as there is room for."""
    assert parse_ids(listed(4, 8, 12)) == (3, (4, 8, 12))
    assert parse_ids(listed(4, 8, assigned=300)) == (300, (4, 8))
    assert parse_ids(listed(4, claimed=2**32 - 1)) == (1, (4,))
    assert parse_ids(b"") == (0, ())


@given(st.binary(max_size=200))
def test_no_buffer_is_too_strange(data: bytes) -> None:
    """It is never read beyond its end."""
    _, pids = parse_ids(data)
    assert len(pids) * job_object.ID_BYTES <= len(data)


def test_a_long_list_is_asked_for_again() -> None:
    """With more room, until it is whole."""
    library = Kernel32(tuple(range(1, 1001)))
    assert opened(library).pids() == frozenset(range(1, 1001))
    assert library.calls.count("QueryInformationJobObject") == 2


def test_a_failure_says_what_and_where() -> None:
    """As an OSError; and no handle stays open after it."""
    with pytest.raises(OSError, match="OpenJobObject failed with Windows error 5") as refused:
        opened(Kernel32(fails="OpenJobObjectW"))
    assert refused.value.filename == NAME
    library = Kernel32((4,), fails="TerminateJobObject")
    job = opened(library)
    with pytest.raises(OSError, match="TerminateJobObject"):
        job.end_all()
    job.close()
    job.close()
    assert not library.open
    with pytest.raises(OSError, match="closed"):
        job.pids()


def test_the_keeper_holds_its_job_open() -> None:
    """The name lives as long as a handle."""
    library = Kernel32()
    assert keeper_side.enter(NAME, (library, library.last_error)) is None
    assert library.calls == ["CreateJobObjectW", "AssignProcessToJobObject"]
    assert library.open
    assert keeper_side.enter(None) is None


@pytest.mark.parametrize(
    ("fails", "exists", "words"),
    [
        ("CreateJobObjectW", False, "CreateJobObject of"),
        ("AssignProcessToJobObject", False, "AssignProcessToJobObject of"),
        ("", True, "exists already"),
    ],
)
def test_a_keeper_without_a_job(fails: str, exists: bool, words: str) -> None:
    """It goes on, says why, and does not enter what somebody else has made."""
    library = Kernel32(fails=fails)
    library.exists = exists
    problem = keeper_side.enter(NAME, (library, library.last_error))
    assert problem is not None
    assert words in problem
    assert not library.open
    assert ("AssignProcessToJobObject" in library.calls) == (fails == "AssignProcessToJobObject")


class PlayedSystem(WindowsSystem):
    """Opens jobs of a played library."""

    def __init__(self, library: Kernel32) -> None:
        super().__init__()
        self._library = library

    def open_group(self, name: str) -> JobObject:
        assert name == NAME
        return opened(self._library)


def keeper_says(folder: Path, **about: object) -> Path:
    who = {"keeper_pid": 4, "keeper_start": 1, "pid": 8, "start": 1}
    record = {**who, "error": None, "started_at": 0.0, "runs": True, **about}
    (folder / "keeper.json").write_text(json.dumps(record))
    return folder


def test_the_group_of_an_attempt(tmp_path: Path) -> None:
    """Asked for members; ended as a whole only when everybody in it is on record."""
    library = Kernel32((4, 8, 12))
    group = AttemptGroup(PlayedSystem(library))
    group.follow(tmp_path, RUN, 1)
    assert group.pids() == frozenset()
    group.follow(keeper_says(tmp_path, job=NAME), RUN, 1)
    assert group.pids() == {4, 8, 12}
    assert not group.end(frozenset({4, 8}))
    assert "TerminateJobObject" not in library.calls
    assert group.end(frozenset({4, 8, 12, 16}))
    assert library.calls[-1] == "TerminateJobObject"
    group.forget()
    assert not library.open


def test_a_record_that_names_another_group_is_not_believed(tmp_path: Path) -> None:
    """Training may write there; who is in another run's group must never become a member."""
    library = Kernel32((4,))
    group = AttemptGroup(PlayedSystem(library))
    group.follow(keeper_says(tmp_path, job=NAME), "another", 1)
    assert group.pids() == frozenset()
    assert "no group of this supervisor" in (group.trouble or "")
    assert not library.calls


@pytest.mark.parametrize(
    "fails", ["OpenJobObjectW", "QueryInformationJobObject", "TerminateJobObject", "keeper"]
)
def test_without_a_group_the_tree_does(tmp_path: Path, fails: str) -> None:
    """Every failing call leaves a reason, no exception and no handle."""
    library = Kernel32((4,), fails=fails)
    group = AttemptGroup(PlayedSystem(library))
    problem = "a job exists already" if fails == "keeper" else None
    group.follow(keeper_says(tmp_path, job=NAME, job_problem=problem), RUN, 1)
    assert not group.end(frozenset({4}))
    assert group.trouble is not None
    assert ("exists already" if problem else fails.removesuffix("W")) in group.trouble
    group.forget()
    assert not library.open


def test_only_groups_of_ours_are_sent_a_break() -> None:
    """Windows may take the whole console for the group of another process."""
    system = WindowsSystem()
    stranger = ProcessId(2**22 + 1, 5)
    assert system.process_group(stranger.pid) is None
    assert system.send_signal_to_group(stranger, SIGINT) == "gone"
    me = system.identity(os.getpid())
    assert me is not None
    assert system.send_signal_to_group(me, SIGTERM) == "denied"
    system.expect_leader(me)
    assert system.process_group(me.pid) == me.pid


def test_names_of_jobs() -> None:
    """One backslash, after the namespace, and never too long for Windows."""
    name = WindowsSystem().group_name("a\\b c" + "x" * 300 + "-20261122-1", 12)
    assert name is not None
    assert name.startswith("Global\\wtrain-")
    assert name.endswith("-20261122-1-12")
    assert name.count("\\") == 1
    assert len(name) < 260


class Refusing(WindowsSystem):
    """Ends everybody but 12, which is not ours to end one by one."""

    def send_signal(self, who: ProcessId, signal_number: int) -> SignalResult:
        return "denied" if who.pid == 12 else "sent"


@pytest.mark.parametrize(
    ("stage", "number", "pid", "can", "told"),
    [
        ("launchers", 9, 12, True, ["denied", "sent"]),
        ("launchers", 9, 12, False, ["denied"]),
        ("launchers", 9, 8, True, ["sent"]),
        ("kill", 9, 12, True, ["denied"]),
        ("terminate", 15, 12, True, ["denied"]),
    ],
)
def test_the_whole_group_is_ended_last(
    stage: KillStage, number: int, pid: int, can: bool, told: list[str]
) -> None:
    """Only in the last stage, and only for what refuses."""
    asked: list[bool] = []

    def end_group() -> bool:
        asked.append(True)
        return can

    target = ProcessId(pid, 1)
    action = Signal(
        host="", sequence="hang", stage=stage, targets=(target,), signal=number, why=said("")
    )
    events = list(deliver(action, {}, Refusing(), end_group))
    assert [event.result for event in events] == told
    assert bool(asked) == (stage == "launchers" and pid == 12)


def test_a_lacking_group_is_said_once() -> None:
    """With what is done instead."""
    launching = e.AttemptLaunching(token="t", plan=b.plan())
    launched = e.AttemptLaunched(pid=10, start=1010, keeper_pid=9, keeper_start=1009)
    begun = (b.RUN_STARTED, e.PlanMade(plan=b.plan()), launching, launched)
    seen = b.observation(b.sample(1.0, b.keeper(), b.rank()), group_trouble="CreateJobObject of x")
    told = [event for event in news(seen, b.fold(begun), Policy()) if isinstance(event, e.Noticed)]
    assert [event.kind for event in told] == ["group"]
    assert "CreateJobObject of x" in why_text(told[0].why)
    again = b.fold((*begun, *told))
    assert not [event for event in news(seen, again, Policy()) if isinstance(event, e.Noticed)]
