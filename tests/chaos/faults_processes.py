"""Signals to the processes of a run, and pids that come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from tests.chaos.case import Case, NotReachedError

FIND_S = 3.0
SOON_S = 15.0
"""For a process that a run is about to start."""
NEW_S = 0.05
SHORT_STOP_S = 1.2
"""Shorter than the shortest limit of the fast settings: nothing may come of it."""
SUPERVISOR_STOP_S = 6.0
"""Longer than `late_s`: the gap must not count as silence."""


def send(role: str, number: signal.Signals, *, harmless: bool = False) -> Callable[[Case], None]:
    """One signal to one process of a role; harmless: training must not notice."""

    def strike(case: Case) -> None:
        case.expected.harmless = harmless
        case.kill(case.one(role, FIND_S), number)

    return strike


def stop(role: str) -> Callable[[Case], None]:
    """For a moment, which is nobody's business, or for good."""

    def strike(case: Case) -> None:
        pid = case.one(role, FIND_S)
        case.kill(pid, signal.SIGSTOP)
        if case.chance.random() < 0.5:
            case.expected.harmless = True
            case.wait(case.chance.uniform(0.2, SHORT_STOP_S))
            case.go_on(pid)

    return strike


def kill_supervisor(case: Case) -> None:
    case.expected.harmless = True
    case.expected.never_started = not case.events
    if case.expected.never_started:
        case.expected.codes |= {-9, 78}
    case.kill(case.one("supervisor"), signal.SIGKILL)


def kill_supervisor_twice(case: Case) -> None:
    """The one that adopts is killed, too: in the middle of looking, or later."""
    kill_supervisor(case)
    assert case.supervisor is not None
    case.supervisor.process.wait(10)
    if not case.events or any(event["type"] == "run_finished" for event in case.events):
        return
    case.adopt()
    case.wait(case.chance.choice((0.3, 0.8, 2.0)) * case.chance.random())
    if not case.ended():
        case.kill(case.one("supervisor"), signal.SIGKILL)


def stop_supervisor(case: Case) -> None:
    case.expected.harmless = True
    pid = case.one("supervisor")
    case.kill(pid, signal.SIGSTOP)
    case.wait(case.chance.uniform(1.0, SUPERVISOR_STOP_S))
    case.go_on(pid)


def term_supervisor(case: Case) -> None:
    case.expected.codes = {0, 77} if is_ending(case) else {77}
    if not case.events:
        # Nothing is installed that early: it dies as every program does.
        case.expected.codes = {-15, 77}
        case.expected.never_started = True
    case.kill(case.one("supervisor"), signal.SIGTERM)


def hup_supervisor(case: Case) -> None:
    case.expected.harmless = True
    if not case.events:
        case.expected.codes = {0, -1}
        case.expected.never_started = True
    case.kill(case.one("supervisor"), signal.SIGHUP)


def is_ending(case: Case) -> bool:
    """The training may have ended, or be about to, by itself."""
    return any(event["type"] == "attempt_exited" for event in case.events) or bool(
        [line for line in case.journal() if line[3] == "finished"]
    )


def stop_keeper(case: Case) -> None:
    case.expected.harmless = True
    pid = case.one("keeper", FIND_S)
    case.kill(pid, signal.SIGSTOP)
    case.wait(case.chance.uniform(0.5, 4.0))
    case.go_on(pid)


def kill_supervisor_and_keeper(case: Case) -> None:
    keeper = case.one("keeper", FIND_S)
    case.kill(case.one("supervisor"), signal.SIGKILL)
    case.kill(keeper, signal.SIGKILL)


def kill_scans(case: Case) -> None:
    """As the OOM killer does: the first scan of checkpoints, or every one."""
    case.kill(case.one("scan", SOON_S), signal.SIGKILL)
    if case.chance.random() < 0.5:
        case.expected.codes |= {75}
        case.notes.append("and every scan after it")
        _kill_all(case, "scan")


def _kill_all(case: Case, role: str) -> None:
    for pid in case.pids(role):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not case.ended():
        case.later(0.0, lambda: _kill_all(case, role))


def stop_scan(case: Case) -> None:
    """As a network file system that does not answer: a scan that never ends."""
    case.kill(case.one("scan", SOON_S), signal.SIGSTOP)


def kill_new_keeper(case: Case) -> None:
    """Before it has started the training, while it does, or just after."""
    pid = case.one("new keeper", SOON_S)
    time.sleep(case.chance.uniform(0.0, NEW_S))
    case.kill(pid, signal.SIGKILL)


def reuse_pids(case: Case) -> None:
    """The training is killed, and strangers get the pids of whoever has gone."""
    pids = [case.one("rank", FIND_S), *case.pids("rank"), *case.pids("worker")]
    members = sorted({*pids, *case.pids("launcher")})
    case.kill(pids[0], signal.SIGKILL)
    assert case.crowd is not None
    until = time.monotonic() + 15.0
    taken = 0
    while members and time.monotonic() < until and not case.ended():
        for pid in list(members):
            if not os.path.exists(f"/proc/{pid}"):
                members.remove(pid)
                taken += case.crowd.take_pid(pid)
        case.wait(0.005)
    if not taken:
        raise NotReachedError("no pid came free in time")
    case.notes.append(f"{taken} heirs")
