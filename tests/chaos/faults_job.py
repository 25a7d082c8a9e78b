"""What befalls the tasks of a led job: its agents, and leader and agents at once."""

from __future__ import annotations

import signal

from tests.chaos.case import Case, NotReachedError
from tests.chaos.faults_processes import is_ending
from tests.support import of_type

FIND_S = 3.0
SILENT_S = 12.0
"""Longer than an agent may be silent before it counts as not heard."""


def kill_agent(case: Case) -> None:
    """The leader has its run adopted; one that had no run yet is what a starter would see."""
    case.expected.harmless = True
    _may_not_have_begun(case)
    case.kill(case.one("agent", FIND_S), signal.SIGKILL)


def kill_agent_twice(case: Case) -> None:
    kill_agent(case)
    case.wait(case.chance.choice((1.0, 3.0, 6.0)) * case.chance.random())
    found = case.pids("successor")
    if found:
        case.kill(found[0], signal.SIGKILL)


def stop_agent(case: Case) -> None:
    """Its machine cannot be heard for a while."""
    case.expected.harmless = True
    pid = case.one("agent", FIND_S)
    case.kill(pid, signal.SIGSTOP)
    case.later(case.chance.uniform(0.5, SILENT_S), lambda: case.go_on(pid))


def term_agent(case: Case) -> None:
    """An eviction of one task: all stop."""
    case.expected.codes = {0, 77} if is_ending(case) else {77}
    _may_not_have_begun(case)
    case.kill(case.one("agent", FIND_S), signal.SIGTERM)


def kill_leader_and_agent(case: Case) -> None:
    """Nobody is left to have anything adopted: a person does it, for each."""
    agent = case.one("agent", FIND_S)
    _may_not_have_begun(case)
    case.kill(case.one("supervisor"), signal.SIGKILL)
    case.kill(agent, signal.SIGKILL)
    if not case.agent_runs():
        raise NotReachedError("the agent had not begun")
    case.adopt_agents = True


def _may_not_have_begun(case: Case) -> None:
    """An agent that dies before it is heard never comes: the job is given back."""
    if not of_type(case.events, "machine_heard"):
        case.expected.codes |= {75}
