"""The same training twice: a run of it is not started beside, a copy by hand is listed.

Same training: user, command, directory, and the variables that tell sweeps, arrays and several
tasks on a node apart. What cannot be read (another user's environment) makes no duplicate. Nobody
is ended here.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.model import ProcessRow, Value, said
from watchdog_train.core.starting.jobs import TASK_VARIABLES
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.report.words import duration
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.registry import LiveRun
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.system.strangers import user_name

JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "PBS_JOBID",
    "PBS_ARRAY_INDEX",
    "LSB_JOBID",
    "LSB_JOBINDEX",
    "SGE_TASK_ID",
    "WTRAIN_JOB",
    *TASK_VARIABLES,
)
"""Of jobs and arrays, and of the tasks of a job."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DISTINGUISHING = (*_DEVICES, *JOB_VARIABLES)
MOST_LISTED = 64
_NAMES = (*DISTINGUISHING, layout.ENV_RUN_ID, layout.ENV_TOKEN)


def training_key(command: tuple[str, ...], cwd: str, environment: Mapping[str, str]) -> str:
    """The same for the same training, safe to store: a digest, not the words."""
    parts = [*command, "", cwd, *(f"{name}={environment.get(name)}" for name in DISTINGUISHING)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Twins(Value):
    """Live runs of the same training."""

    supervised: tuple[LiveRun, ...] = ()
    unwatched: tuple[LiveRun, ...] = ()
    """Their supervisor is gone, and a process of them lives."""


def find_twins(key: str, live: Iterable[LiveRun], system: ProcessSystem) -> Twins:
    """The runs of this training among those that are listed; one of which nothing lives is none."""
    found = [run for run in live if run.training_key == key]
    return Twins(
        supervised=tuple(run for run in found if run.supervised is not False),
        unwatched=tuple(run for run in found if run.supervised is False and _lives(run, system)),
    )


def _lives(run: LiveRun, system: ProcessSystem) -> bool:
    directory = run.directory
    try:
        events = read_events(directory.events, strict=False, spill_dir=directory.spill_dir).events
    except WtrainError:
        return False  # a damaged log can be adopted by nobody
    state = replay(events)
    if state.finished:
        return False
    attempt = state.attempt
    left = {daemon.process for daemon in state.daemons if daemon.is_left}
    known = {member.identity for member in state.members} - left
    known |= {who for who in (attempt.root, attempt.keeper) if who} if attempt else set()
    return any(system.is_alive(who) for who in known)


def refuse_twins(twins: Twins) -> None:
    """Do not start beside a supervised run of the same training.

    Raises:
        WtrainError: exit code 78: there is one.
    """
    if twins.supervised:
        run = twins.supervised[0]
        raise WtrainError(
            f"the same training is supervised already: {run.run_id} (pid {run.pid})",
            hint=(
                f"wtrain status {run.run_id}, wtrain attach {run.run_id} or "
                f"wtrain stop {run.run_id}; --duplicates ignore starts beside it"
            ),
            reference="run-duplicate",
        )


def refuse_unwatched(twins: Twins) -> None:
    """Do not start beside a training of which only the supervisor is gone.

    Raises:
        WtrainError: exit code 78: there is one.
    """
    if twins.unwatched:
        run = twins.unwatched[-1]
        raise WtrainError(
            f"the same training lives already and nobody watches it: {run.run_id}",
            hint=f"wtrain adopt {run.run_id} goes on with it; wtrain stop {run.run_id} ends it",
            reference="run-duplicate",
        )


def find_lookalikes(
    system: ProcessSystem,
    command: tuple[str, ...],
    cwd: str,
    key: str,
    *,
    supervised: Iterable[str] = (),
) -> tuple[e.Orphan, ...]:
    """Processes that run the same training without a supervisor of ours, oldest first.

    Each without those that it has started itself.

    Args:
        system: whose processes are looked at.
        command: about to be started.
        cwd: where.
        key: of this training.
        supervised: ids of runs that have a supervisor; their processes are none.
    """
    rows = system.all_processes()
    skipped = ancestors(rows)
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


def _same_words(theirs: tuple[str, ...], ours: tuple[str, ...]) -> bool:
    """The same arguments, and the same program by its name: /usr/bin/python3.11 is python."""
    if not theirs or theirs[1:] != ours[1:]:
        return False
    mine, other = (os.path.basename(words[0]) for words in (ours, theirs))
    return mine == other or (mine.startswith("python") and other.startswith("python"))


def ancestors(rows: Mapping[int, ProcessRow]) -> list[int]:
    """Ourselves and who is above us, from below."""
    found, pid = list[int](), os.getpid()
    while pid in rows and pid not in found:
        found.append(pid)
        pid = rows[pid].ppid
    return found


def _described(
    system: ProcessSystem, rows: Mapping[int, ProcessRow], pid: int, theirs: Mapping[str, str]
) -> e.Orphan:
    row, run_id = rows[pid], theirs.get(layout.ENV_RUN_ID)
    devices = next((theirs[name] for name in _DEVICES if theirs.get(name)), None)
    uid = system.user_id(pid)
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
    return e.Orphan(
        pid=row.pid,
        start=row.start,
        run_id=run_id,
        command=" ".join(redact_argv(system.command_line(pid) or ()))[:200],
        why=said(", ".join(part for part in parts if part)),
    )


def _age_words(pid: int) -> str:
    import psutil  # 6 ms that a run without such processes does not need

    with suppress(psutil.Error, OSError):
        return f"{duration(time.time() - psutil.Process(pid).create_time())} old"
    return ""
