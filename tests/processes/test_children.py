"""The table of our own children: exact statuses, deadlines, and orphans that are given to us."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support import is_alive, run_command, wait_until
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Patience, Why
from watchdog_train.supervisor.children import Child, ChildTable
from watchdog_train.supervisor.status_files import ReportPage
from watchdog_train.system import current


def finish(table: ChildTable, count: int = 1, timeout_s: float = 15.0) -> list[Child]:
    """The next children that end."""
    finished: list[Child] = []

    def look() -> bool:
        finished.extend(table.poll())
        return len(finished) >= count

    wait_until(look, timeout_s, f"{count} children have ended")
    return finished


@pytest.fixture
def table() -> ChildTable:
    return ChildTable(current())


def test_nobody_outlives_our_own_end(table: ChildTable, tmp_path: Path) -> None:
    """Whoever is deaf to SIGTERM is killed, with what it has started itself."""
    body = "trap '' TERM; sleep 60 & echo $! > {0}/helper; touch {0}/deaf; wait; wait"
    deaf = table.spawn(["sh", "-c", body.format(tmp_path)], name="deaf", deadline_s=600)
    polite = table.spawn(["sleep", "60"], name="polite", deadline_s=None)
    wait_until((tmp_path / "deaf").exists, 10, "it is deaf")
    table.end_all()
    assert table.running() == ()
    helper = int((tmp_path / "helper").read_text())
    wait_until(lambda: not is_alive(helper), 5, "its helper has ended")
    assert not [pid for pid in (deaf.pid, polite.pid) if is_alive(pid)]


def test_code_and_signal_are_exact(table: ChildTable) -> None:
    """What a child ended with is told by its name."""
    table.spawn(["sh", "-c", "exit 7"], name="seven", deadline_s=10)
    table.spawn(["sh", "-c", "kill -9 $$"], name="killed", deadline_s=10)
    ended = {child.name: (child.code, child.signal) for child in finish(table, 2)}
    assert ended == {"seven": (7, None), "killed": (None, 9)}
    assert table.running() == ()


def test_missing_command_raises(table: ChildTable) -> None:
    """A command that is not there is the caller's to know, at once."""
    with pytest.raises(FileNotFoundError):
        table.spawn(["no-such-command-anywhere"], name="x", deadline_s=1)
    assert table.running() == ()


def test_poll_never_blocks(table: ChildTable) -> None:
    """A child that runs on is not reported and not waited for."""
    child = table.spawn(["sleep", "60"], name="slow", deadline_s=60)
    assert table.poll() == []
    assert table.running() == (child,)
    table.end(child)
    assert finish(table)[0].timed_out


def test_deadline_ends_a_child_and_its_own_children(tmp_path: Path) -> None:
    """Past its deadline a child gets SIGTERM, later SIGKILL, and what it started goes with it."""
    now = [100.0]
    table = ChildTable(current(), clock=lambda: now[0])
    program = "trap '' TERM; sleep 60 & echo $! >inner; while :; do sleep 0.05; done"
    child = table.spawn(["sh", "-c", program], name="deaf", deadline_s=5, cwd=tmp_path)
    path = tmp_path / "inner"
    wait_until(lambda: path.exists() and path.read_text(), 10, "the child has a child")
    inner = int(path.read_text())
    now[0] += 4.9
    assert table.poll() == []
    assert is_alive(inner)
    now[0] += 0.2
    assert table.poll() == []
    assert child.timed_out
    assert is_alive(child.pid), "it ignores SIGTERM"
    now[0] += 2.0
    (ended,) = finish(table)
    assert ended.timed_out
    assert ended.signal == signal.SIGKILL
    wait_until(lambda: not is_alive(inner), 5, "its own child is gone")


def test_nobody_waits_for_a_child_that_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that does not answer: it is reported a moment after SIGKILL, and left."""
    now = [100.0]
    system = current()
    monkeypatch.setattr(system, "send_signal_to_group", lambda who, number: None)
    table = ChildTable(system, clock=lambda: now[0])
    child = table.spawn(["sleep", "60"], name="stuck", deadline_s=5)
    try:
        now[0] = 150.0  # late: we were stopped ourselves
        assert table.poll() == []
        now[0] = 152.9
        assert table.poll() == []
        now[0] = 153.1
        (ended,) = table.poll()
        assert (ended.name, ended.timed_out, ended.code) == ("stuck", True, None)
        assert table.running() == ()
        assert child.pid in table.pids()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


def test_group_goes_even_when_the_leader_obeys(tmp_path: Path) -> None:
    """A leader that ends at SIGTERM does not leave a deaf child behind."""
    table = ChildTable(current())
    program = "(trap '' TERM; echo 1 >ready; exec sleep 60) & echo $! >name; mv name inner; wait"
    child = table.spawn(["sh", "-c", program], name="obeys", deadline_s=60, cwd=tmp_path)
    wait_until((tmp_path / "ready").exists, 10, "the inner one is deaf")
    wait_until((tmp_path / "inner").exists, 10, "its pid is known")
    inner = int((tmp_path / "inner").read_text())
    table.end(child)
    assert finish(table)[0].timed_out
    wait_until(lambda: not is_alive(inner), 5, "the inner one is gone")


def test_children_are_alone_in_their_session(table: ChildTable, tmp_path: Path) -> None:
    """A Ctrl-C at our terminal does not reach a collector; its input is empty."""
    out = tmp_path / "out"
    program = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    with out.open("wb") as file:
        table.spawn([sys.executable, "-c", program], name="x", deadline_s=20, stdout=file)
    assert finish(table)[0].code == 0
    assert out.read_text() == "True ''\n"


def test_released_child_is_nobodys_business(table: ChildTable) -> None:
    """A keeper that is to outlive us is neither reported nor ended."""
    child = table.spawn(["sleep", "60"], name="keeper", deadline_s=None)
    table.release(child)
    assert table.poll() == []
    assert is_alive(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


ADOPTING = """
import os, sys, time
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.system import current

system = current()
assert system.become_subreaper()
table = ChildTable(system)
FORK_ORPHANS = (
    "import os\\n"
    "for _ in range(200):\\n"
    "    if os.fork() == 0:\\n"
    "        os._exit(0)\\n"
    "os._exit(9)\\n"
)
# Its 200 children, never waited for, become our zombies when it ends.
table.spawn([sys.executable, "-c", FORK_ORPHANS], name="orphans", deadline_s=60)
finished = []
started = 0
most = 0
deadline = time.monotonic() + 60
while len(finished) < 201 and time.monotonic() < deadline:
    if started < 200:
        started += 1
        table.spawn(["sh", "-c", f"exit {started % 100 + 1}"], name=f"n{started}", deadline_s=60)
    rows = system.all_processes()
    mine = sum(row.ppid == os.getpid() and row.state == "Z" for row in rows.values())
    most = max(most, mine)
    finished += table.poll(rows)
rows = system.all_processes()
table.poll(rows)
left = [row.pid for row in system.all_processes().values() if row.ppid == os.getpid()]
expected = {f"n{n}": n % 100 + 1 for n in range(1, 201)} | {"orphans": 9}
got = {child.name: child.code for child in finished}
assert got == expected, (len(got), {k: v for k, v in got.items() if expected[k] != v})
assert not left, left
print("most zombies at once", most)
assert most >= 100, most
"""


@pytest.mark.needs_subreaper
def test_no_status_is_lost_among_adopted_exits() -> None:
    """200 failing children during 200 adopted exits: every status is right, no zombie is left."""
    run_command([sys.executable, "-c", ADOPTING], timeout_s=120)


def test_a_long_wait_is_written_into_the_page_and_so_is_its_end(
    table: ChildTable, tmp_path: Path
) -> None:
    """Whoever opens it at night sees what is waited for; frequent waits cost little."""
    page = ReportPage(table, tmp_path)

    def is_written(event: e.AnyEvent, at: float, since: float = 0.0) -> bool:
        state = State(silent_since=since)
        page.follow(msgspec.structs.replace(event, mono=at), state)
        page.poll(state)
        running = len(table.running())
        table.end_all()
        return bool(running)

    wait = e.Looked(patience=Patience(row="poll"), limit_s=900.0)
    over = e.SuspicionEnded(why=Why("progress"))
    assert not is_written(wait, 30.0), "it is short so far"
    assert not is_written(msgspec.structs.replace(wait, limit_s=75.0), 67.0), "a stall comes soon"
    assert is_written(wait, 70.0)
    assert not is_written(wait, 130.0), "it is there already"
    assert is_written(over, 140.0)
    again = msgspec.structs.replace(wait, since_mono=200.0)
    assert not is_written(again, 300.0, since=200.0)
    assert not is_written(over, 310.0)
    again = msgspec.structs.replace(wait, since_mono=700.0)
    assert is_written(again, 800.0, since=700.0)
