"""CPU time and I/O of a tree: totals grow, a process that ends is no peak, and none is lost."""

from __future__ import annotations

import pytest

from watchdog_train.core.model import ProcessId, ProcessRow
from watchdog_train.supervisor.hands.accounts import Accounts


def row(pid: int, ppid: int, cpu_s: float | None, reaped_s: float = 0.0, io: int = 0) -> ProcessRow:
    return ProcessRow(
        pid=pid,
        start=pid + 1000,
        ppid=ppid,
        state="S",
        cpu_s=cpu_s,
        reaped_cpu_s=reaped_s,
        io_bytes=io,
        name="python",
    )


def look(accounts: Accounts, *rows: ProcessRow, gone: tuple[int, ...] = ()) -> float:
    accounts.begin(ProcessId(pid, pid + 1000) for pid in gone)
    for each in rows:
        accounts.count(each)
    return accounts.cpu_s


@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_ends_is_no_peak(late: bool) -> None:
    """Its time comes up in what its parent has reaped, now or in the next look, and counts once."""
    accounts = Accounts()
    assert look(accounts, row(10, 9, 1.0), row(11, 10, 500.0, io=70)) == 501.0
    first = row(10, 9, 1.0, 0.0 if late else 500.4)
    assert look(accounts, first, gone=(11,)) == pytest.approx(501.0 if late else 501.4)
    assert look(accounts, row(10, 9, 1.0, 500.4)) == pytest.approx(501.4)
    assert accounts.io_bytes == 70


def test_what_nobody_saw_counts_when_it_is_reaped() -> None:
    """Children that lived between two looks: their work is life, whoever ended long before."""
    accounts = Accounts()
    look(accounts, row(10, 9, 1.0), row(11, 10, 500.0))
    # It was not waited for: this parent ignores SIGCHLD, and the kernel adds nothing.
    for _ in range(3):
        before = look(accounts, row(10, 9, 1.0), gone=(11,))
    assert look(accounts, row(10, 9, 1.0, 7.0)) == before + 7.0


def test_a_chain_of_ends_counts_once() -> None:
    """Launcher, rank and worker end one after the other."""
    accounts = Accounts()
    look(accounts, row(10, 9, 1.0), row(11, 10, 20.0), row(12, 11, 300.0))
    assert look(accounts, row(10, 9, 1.0), row(11, 10, 20.0, 300.0), gone=(12,)) == 321.0
    assert look(accounts, row(10, 9, 1.0, 320.0), gone=(11,)) == 321.0


def test_unknown_stays_unknown() -> None:
    """A total with a hole in it is none; bytes may be missing of who was never seen before."""
    accounts = Accounts()
    look(accounts, row(10, 9, None))
    assert not accounts.cpu_known
    assert accounts.io_known
