"""Processes that outlive the first one of a training, or have left its session. Pure.

After exit code 0 such a process may be the training itself, which has daemonized; an uploader at
work; or idle. A process outside the session is killed on a ground, or left. A session is judged as
one: a daemon and its helpers, a window of tmux with its programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation, Record, TreeSight, Wait
from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.fold.state import State, Tree
from watchdog_train.core.model import (
    Daemon,
    DaemonFacts,
    ExitStatus,
    Hold,
    MemberSample,
    RankEnd,
    Why,
)
from watchdog_train.core.policy import Policy, Timing
from watchdog_train.core.recovery import kill

NOTHING = Hold(ground="none")


SAID_AFTER_S = 5.0
"""Seconds after which a wait for a process that outlives the script is reported."""
LOOK_AGAIN_S = 0.5
SETTLED_S = 2.0
"""After this long a started process shows what it is: Python, and no fork of a shell."""


def exit_of(
    observation: Observation, state: State, policy: Policy, tree: Tree
) -> ExitStatus | Record | Wait | None:
    """How a tree has ended; None while its training continues without its first process."""
    sight = observation.of(tree.host)
    status, attempt = sight.exit, state.attempt
    if status is None or status.code != 0 or attempt is None or state.crew is not None:
        return status
    known = {pid for each in state.noticed if each.kind == "goes-on" for pid in each.pids}
    others = [one for one in _others(sight) if one.member.identity != tree.root]
    own_steps = any(
        end.identity == tree.root and end.step is not None for end in sight.sample.ended
    )
    going = [one for one in others if one.member.pid in known or _trains(one)]
    if own_steps and not _grows(observation, sight, policy.timing):
        going = []  # a helper that has made steps before
    if going:
        new = tuple(one.member.pid for one in going if one.member.pid not in known)
        if not new:
            return None
        step = max((one.slot.step or 0 for one in going if one.slot is not None), default=0)
        why = Why("goes-on", pids=new, step=step)
        return Record(events=(e.Noticed(kind="goes-on", pids=(*known, *new), why=why),))
    ends = [end for end in sight.sample.ended if end.pid in known]
    if ends and not own_steps:
        return _as_seen(ends)
    stepped = attempt.first_step_s is not None or any(
        end.step is not None for end in sight.sample.ended
    )
    if stepped or state.stop is not None or tree.kill is not None:
        return status
    # One of them may make its first step yet: it imports torch, or a shell is about to start it.
    until = sight.exited_at + SETTLED_S if others else 0.0
    if any(one.slot is not None for one in others):
        until = max(sight.exited_at, observation.busy_at) + policy.patience.unknown_early_s
    elif any(one.member.name.startswith("python") for one in others):
        until = _until(sight.exited_at, observation, policy.timing)
    return _wait(observation, state, policy.timing, sight.exited_at, until=until) or status


def wait_for(
    observation: Observation, state: State, timing: Timing, since: float
) -> Record | Wait | None:
    """Wait for processes that outlive a success at `since`; None: their time is over."""
    until = _until(since, observation, timing)
    return _wait(observation, state, timing, since, until=until)


def _until(since: float, observation: Observation, timing: Timing) -> float:
    idle = max(since, observation.busy_at) + timing.outlive_s
    return min(idle, since + max(timing.outlive_s, timing.outlive_working_s))


def _wait(
    observation: Observation, state: State, timing: Timing, since: float, *, until: float
) -> Record | Wait | None:
    now, found = observation.now, observation.sample.outliving
    if now >= until:
        return None
    if found and observation.busy_at - since >= SAID_AFTER_S and "outlives" not in state.notices:
        why = Why("outlives", outliving=found, limit_s=timing.outlive_working_s)
        pids = tuple(one.pid for one in found)
        return Record(events=(e.Noticed(kind="outlives", pids=pids, why=why),))
    return Wait(until=min(until, now + LOOK_AGAIN_S))


def _others(sight: TreeSight) -> Iterable[MemberSample]:
    for one in sight.sample.members:
        dead = one.state in ("Z", "X") or one.member.name in kill.HELPERS
        if one.member.role in ("rank", "other") and not dead:
            yield one


def _trains(one: MemberSample) -> bool:
    return one.slot is not None and one.slot.trains and not one.slot.exiting


def _grows(observation: Observation, sight: TreeSight, timing: Timing) -> bool:
    """Whether any process has made a recent step since the exit."""
    at = observation.verdict.progress_at
    return at > sight.exited_at and observation.now - at < timing.outlive_s


def _as_seen(ends: list[RankEnd]) -> ExitStatus:
    """The exit of a training that was not its keeper's child, if known."""
    end = next(filter(has_failed, ends), ends[-1])
    if end.code is not None or end.signal is not None:
        return ExitStatus(code=end.code, signal=end.signal, how_known="kernel")
    if end.said is None:
        return ExitStatus(code=None, signal=None, how_known="gone")
    return ExitStatus(code=int(end.said == "exception"), signal=None, how_known="slot")


def judge(found: Iterable[DaemonFacts]) -> tuple[Daemon, ...]:
    sessions: dict[int, list[DaemonFacts]] = {}
    for facts in sorted(found, key=lambda one: (one.process.start, one.process.pid)):
        sessions.setdefault(facts.session, []).append(facts)
    judged: dict[int, Hold] = {}
    for session, members in sessions.items():  # a parent's session is older than its child's
        judged[session] = next(_reasons(members, judged), NOTHING)
    return tuple(
        Daemon(process=facts.process, command=facts.command, hold=judged[session])
        for session, members in sessions.items()
        for facts in members
    )


def matching(command: str, patterns: Iterable[str]) -> str | None:
    return next((each for each in patterns if fnmatchcase(command, f"*{each}*")), None)


def _reasons(members: list[DaemonFacts], judged: Mapping[int, Hold]) -> Iterator[Hold]:
    """The user's setting, then users of it outside the training, then what it holds."""
    yield from (Hold(ground="leave", what=one.leave) for one in members if one.leave is not None)
    yield from (Hold(ground="take", what=one.take) for one in members if one.take is not None)
    for one in members:
        above = judged.get(one.parent_session or 0, NOTHING)
        if one.own_terminal:
            yield Hold(ground="own-terminal")
        if one.client is not None:
            yield Hold(ground="clients", what=one.client)
        if above.ground in ("own-terminal", "clients", "leave"):
            yield above
    for one in members:
        yield from one.holds
