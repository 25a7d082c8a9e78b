"""Whose process is it: what left the training's session is killed on a ground, or left. Pure.

A session is judged as one: a daemon and its helpers, a window of tmux and what runs in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from watchdog_train.core.model import Daemon, DaemonFacts, Hold

NOTHING = Hold(ground="none")


def judge(found: Iterable[DaemonFacts]) -> tuple[Daemon, ...]:
    """One judgement for each process, oldest first."""
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
    """The first pattern that is found in a command line."""
    return next((each for each in patterns if fnmatchcase(command, f"*{each}*")), None)


def _reasons(members: list[DaemonFacts], judged: Mapping[int, Hold]) -> Iterator[Hold]:
    """The user's word, then whoever uses it outside the training, then what it holds."""
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
