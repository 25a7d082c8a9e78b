"""Processes that run the same training without a supervisor of ours: listed, never ended unasked.

The same training is the same user, command, directory and distinguishing variables. What cannot be
read (another user's environment) makes no duplicate.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.model import ProcessId, ProcessRow, Value, Why, said
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.report.words import duration
from watchdog_train.supervisor.duplicates import DISTINGUISHING, training_key
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.system.strangers import user_name

MOST_LISTED = 64
KILL_S = 10.0
"""After SIGKILL; what lives longer is in the kernel."""
LOOK_S = 0.05
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NAMES = (*DISTINGUISHING, layout.ENV_RUN_ID, layout.ENV_TOKEN)


class LookAlike(Value, frozen=True, kw_only=True):
    """One such process, without those that it has started itself."""

    process: ProcessId
    run_id: str | None
    """Whose token it carries."""
    command: str
    why: str
    same_user: bool


def find_lookalikes(
    system: ProcessSystem,
    command: tuple[str, ...],
    cwd: str,
    key: str,
    *,
    supervised: Iterable[str] = (),
) -> tuple[LookAlike, ...]:
    """The same training, oldest first.

    Args:
        system: whose processes are looked at.
        command: about to be started.
        cwd: where.
        key: of this training, duplicates.training_key().
        supervised: ids of runs that have a supervisor; their processes are none.
    """
    rows = system.all_processes()
    skipped = _ancestors(rows)
    known = frozenset(supervised)
    same: dict[int, dict[str, str]] = {}
    for pid in rows:
        if pid in skipped or not _same_words(system.command_line(pid) or (), command):
            continue
        if system.working_directory(pid) != cwd:
            continue
        theirs = system.environment(pid, _NAMES)
        if theirs is None or theirs.get(layout.ENV_RUN_ID) in known:
            continue
        if training_key(command, cwd, theirs) == key:
            same[pid] = theirs
    tops = [pid for pid in same if rows[pid].ppid not in same]
    ordered = sorted(tops, key=lambda pid: (rows[pid].start, pid))
    return tuple(_described(system, rows, pid, same[pid]) for pid in ordered[:MOST_LISTED])


def found_event(found: tuple[LookAlike, ...]) -> e.OrphansFound:
    """For the log."""
    return e.OrphansFound(
        orphans=tuple(
            e.Orphan(
                pid=one.process.pid,
                start=one.process.start,
                run_id=one.run_id,
                command=one.command,
                why=said(one.why),
            )
            for one in found
        )
    )


def _same_words(theirs: tuple[str, ...], ours: tuple[str, ...]) -> bool:
    """The same arguments, and the same program by its name: /usr/bin/python3.11 is python."""
    if not theirs or theirs[1:] != ours[1:]:
        return False
    mine, other = (os.path.basename(words[0]) for words in (ours, theirs))
    return mine == other or (mine.startswith("python") and other.startswith("python"))


def _ancestors(rows: Mapping[int, ProcessRow]) -> set[int]:
    found, pid = set[int](), os.getpid()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].ppid
    return found


def _described(
    system: ProcessSystem, rows: Mapping[int, ProcessRow], pid: int, theirs: Mapping[str, str]
) -> LookAlike:
    row, run_id = rows[pid], theirs.get(layout.ENV_RUN_ID)
    devices = next((theirs[name] for name in _DEVICES if theirs.get(name)), None)
    uid = system.user_id(pid)
    mine = not hasattr(os, "getuid") or uid == os.getuid()
    parent = rows.get(row.ppid)
    by = "its parent is gone"
    if parent is not None and row.ppid > 1:
        by = f"started by {parent.name} (pid {row.ppid})"
    parts = [
        "the same training",
        _age_words(pid),
        f"GPU {devices}" if devices else "every GPU it sees",
        by,
        f"user {user_name(uid)}" if uid is not None else "",
        f"of the run {run_id}, which nobody supervises" if run_id else "not under wtrain",
    ]
    return LookAlike(
        process=row.identity,
        run_id=run_id,
        command=" ".join(redact_argv(system.command_line(pid) or ()))[:200],
        why=", ".join(part for part in parts if part),
        same_user=mine,
    )


def _age_words(pid: int) -> str:
    import psutil  # 6 ms that a run without such processes does not need

    with suppress(psutil.Error, OSError):
        return f"{duration(time.time() - psutil.Process(pid).create_time())} old"
    return ""


# -- Ending them, when the user asks for it -------------------------------------------------------


def end_lookalikes(
    system: ProcessSystem, found: Iterable[LookAlike], *, grace_s: float
) -> Iterator[e.ProcessKilled]:
    """SIGTERM to each of the same user, SIGKILL after the grace to what is left of its tree.

    Every signal goes to a verified identity. Yields one event for each signal that was sent.
    """
    members = {one.process: one for one in found if one.same_user}
    hardest = getattr(signal, "SIGKILL", signal.SIGTERM)
    killed = set[ProcessId]()
    for who, one in tuple(members.items()):
        if system.send_signal(who, signal.SIGTERM) == "sent":
            yield _killed(one, who, signal.SIGTERM)
    kill_at = time.monotonic() + grace_s
    while time.monotonic() < kill_at + KILL_S:
        _add_children(system, members)  # before their parent is gone
        living = [who for who in members if system.is_alive(who)]
        if not living:
            return
        for who in living if time.monotonic() >= kill_at else ():
            if who not in killed and system.send_signal(who, hardest) == "sent":
                killed.add(who)
                yield _killed(members[who], who, hardest)
        time.sleep(LOOK_S)


def _add_children(system: ProcessSystem, members: dict[ProcessId, LookAlike]) -> None:
    rows = system.all_processes()
    for row in sorted(rows.values(), key=lambda row: (row.start, row.pid)):
        parent = rows.get(row.ppid)
        if parent is not None and parent.identity in members and row.identity not in members:
            members[row.identity] = members[parent.identity]


def _killed(one: LookAlike, who: ProcessId, number: int) -> e.ProcessKilled:
    why = Why("duplicates-kill", because=(said(one.why),))
    if who != one.process:
        why = Why(
            "duplicates-kill", because=(Why("started-by", pid=one.process.pid), said(one.why))
        )
    return e.ProcessKilled(pid=who.pid, start=who.start, signal=number, why=why)
