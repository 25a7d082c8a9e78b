"""What befalls the tasks of a led job: its agents, and leader and agents at once."""

from __future__ import annotations

import signal

from tests.chaos.case import ADOPT_WITHIN_S, Case, NotReachedError
from tests.chaos.faults_processes import is_ending
from tests.support import of_type

FIND_S = 3.0
SILENT_S = 12.0
"""Longer than an agent may be silent before it counts as not heard."""


def kill_agent(case: Case) -> None:
    """Training continues, and a person takes its run back soon after."""
    case.expected.harmless = True
    _may_not_have_begun(case)
    case.kill(case.one("agent", FIND_S), signal.SIGKILL)
    case.later(case.chance.uniform(0.1, ADOPT_WITHIN_S), case.adopt_agents)


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
    """A person takes each of their runs back."""
    agent = case.one("agent", FIND_S)
    _may_not_have_begun(case)
    case.kill(case.one("supervisor"), signal.SIGKILL)
    case.kill(agent, signal.SIGKILL)
    if not case.agent_runs():
        raise NotReachedError("the agent had not begun")
    case.later(case.chance.uniform(0.1, ADOPT_WITHIN_S), case.adopt_agents)


def _may_not_have_begun(case: Case) -> None:
    """An agent that dies before it is heard never comes: the job is given back."""
    if not of_type(case.events, "machine_heard"):
        case.expected.codes |= {75}
