"""Which processes to dump: a tree that wtrain did not start, or a run by its log.

Only reads.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from watchdog_train.client.layout import ENV_SLOT_DIR
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Member, ProcessRow, Role
from watchdog_train.core.starting.command_line import starts_ranks
from watchdog_train.system.protocol import ProcessSystem

MEMBERS_CAP = 4096
_SPAWNED = re.compile(r"multiprocess(?:ing)?\.(?:spawn|forkserver)|--multiprocessing-fork")
_TRACKER = re.compile(r"multiprocess(?:ing)?\.resource_tracker|compile_worker")
_PYTHON = re.compile(r"python|pypy|pt_main_thread", re.IGNORECASE)


def tree_of(
    system: ProcessSystem, root: int, *, without: Collection[int] = ()
) -> tuple[Member, ...]:
    """The process and all its descendants; empty when there is no such process.

    Args:
        system: where to look.
        root: pid of the topmost process.
        without: pids that are left out, each with its descendants: this command itself, when
            asked about the shell that it was started from.
    """
    rows = system.all_processes()
    if root not in rows:
        return ()
    children: dict[int, list[int]] = {}
    for row in rows.values():
        children.setdefault(row.ppid, []).append(row.pid)
    found: list[Member] = []
    waiting: list[tuple[int, Member | None]] = [(root, None)]
    seen = {root, *without}
    while waiting and len(found) < MEMBERS_CAP:
        pid, parent = waiting.pop(0)
        member = _member(system, rows[pid], parent)
        found.append(member)
        for child in sorted(children.get(pid, ())):
            if child not in seen:
                seen.add(child)
                waiting.append((child, member))
    return _numbered(_with_launchers(found, rows))


def living_members(state: State, system: ProcessSystem) -> tuple[Member, ...]:
    """Living processes of a run: those in its log, and all below its root now."""
    alive: tuple[Member, ...] = tuple(
        member for member in state.members if system.is_alive(member.identity) is not False
    )
    root = state.attempt.root if state.attempt else None
    if root is not None and system.is_alive(root) is not False:
        known = {member.pid for member in alive}
        below = tree_of(system, root.pid, without=(os.getpid(),))
        alive += tuple(member for member in below if member.pid not in known)
    return alive


def slot_dir_of(system: ProcessSystem, members: Iterable[Member]) -> Path | None:
    """The processes' slot directory, if one of them is a training of a run of this user.

    Then they can write their stacks themselves. Another user's directory is not trusted.
    """
    for member in members:
        named = (system.environment(member.pid, (ENV_SLOT_DIR,)) or {}).get(ENV_SLOT_DIR)
        if not named:
            continue
        try:
            status = os.lstat(named)
        except OSError:
            continue
        mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        if stat.S_ISDIR(status.st_mode) and mine:
            return Path(named)
    return None


def _member(system: ProcessSystem, row: ProcessRow, parent: Member | None) -> Member:
    command = system.command_line(row.pid) or ()
    role, rank = _role(system, row, command, parent)
    return Member(pid=row.pid, start=row.start, ppid=row.ppid, name=row.name, role=role, rank=rank)


def _role(
    system: ProcessSystem, row: ProcessRow, command: tuple[str, ...], parent: Member | None
) -> tuple[Role, int | None]:
    text = " ".join(command[:12])
    python = bool(_PYTHON.search(row.name) or (command and _PYTHON.search(command[0])))
    inside = parent is not None and parent.role in ("rank", "worker")
    if not python:
        return ("other", parent.rank) if parent and inside else ("launcher", None)
    if _TRACKER.search(text):
        return "other", parent.rank if parent else None
    if parent is not None and inside:
        same = command == (system.command_line(parent.pid) or ())
        return ("worker" if same or _SPAWNED.search(text) else "other"), parent.rank
    if starts_ranks(command):
        return "launcher", None
    rank = (system.environment(row.pid, ("RANK",)) or {}).get("RANK", "")
    return "rank", int(rank) if rank.isdigit() and len(rank) < 8 else None


def _with_launchers(members: list[Member], rows: Mapping[int, ProcessRow]) -> list[Member]:
    """A shell or launcher without a rank below it is the process to dump."""
    if any(member.role == "rank" for member in members) or not rows:
        return members
    first = members[0]
    return [msgspec.structs.replace(first, role="other"), *members[1:]]


def _numbered(members: list[Member]) -> tuple[Member, ...]:
    """Worker ids in the order of birth; rank 0 for a single rank without a number."""
    ranks = [member for member in members if member.role == "rank"]
    single = len(ranks) == 1 and ranks[0].rank is None
    counts: dict[int, int] = {}
    result = []
    for member in members:
        rank = 0 if single and member.role in ("rank", "worker") else member.rank
        worker = None
        if member.role == "worker":
            worker = counts.get(member.ppid, 0)
            counts[member.ppid] = worker + 1
        result.append(msgspec.structs.replace(member, rank=rank, worker=worker))
    return tuple(result)
