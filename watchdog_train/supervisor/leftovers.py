"""Leftovers of ended runs on this machine: processes, memory, locks, old directories.

Searches and lists. A thing is wtrain's by a record of wtrain (a log, a registration, the private
folder it lies in), never by its name alone; doubtful things are listed and not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.model import ProcessId, Value
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import redact_argv
from watchdog_train.store import registry
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import AGENTS, RunDirectory, latest_target, original_of, runs_in
from watchdog_train.supervisor.hands.semaphores import mapped_names
from watchdog_train.supervisor.resources import size_bytes
from watchdog_train.system.file_systems import runtime_bases
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import is_own

Kind = Literal["process", "training", "slots", "memory", "lock", "entry", "run"]

FRESH_S = 60.0
"""Younger files may belong to a run that is being started."""


class Leftover(Value):
    kind: Kind
    what: str
    """A path, a name in shared memory, or `pid N`."""
    why: str
    bytes: int | None = None
    removable: bool = True
    """False: listed only; the reason says what a person can do."""
    process: ProcessId | None = None


def names_in(path: Path) -> list[str]:
    """Sorted; none of what cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


_PURPOSES = ("spill", "staging", "lock", "claims")
_RUN_ID = re.compile(r".+-\d{8}-\d{6}-[0-9a-f]{4}")
_TORCH_MEMORY = re.compile(r"torch_(\d{1,10})_")


def find_leftovers(
    system: ProcessSystem,
    runs_dir: Path,
    *,
    keep_last: int | None,
    older_than_s: float | None,
) -> tuple[Leftover, ...]:
    """Everything left over on this machine, processes first; old runs of `runs_dir`.

    Ended runs count as old beyond the `keep_last` newest, or after `older_than_s`; None: no limit.
    """
    machine = look_around(system, runs_dir)
    found = [*_processes(machine, system), *_folders(machine), *_shared_memory(machine, system)]
    found += [*_locks(machine), *_entries(machine)]
    if keep_last is not None or older_than_s is not None:
        for place in (runs_dir, runs_dir / AGENTS):
            found += _old_runs(machine, place, keep_last, older_than_s)
    return tuple(found)


def _processes(machine: Machine, system: ProcessSystem) -> Iterable[Leftover]:
    for who, run_id in sorted(machine.left.items()):
        why = f"no part of the training of {run_id}, left running; to end it: kill {who.pid}"
        yield Leftover(kind="process", what=f"pid {who.pid}", why=why, removable=False)
    for run_id, members in sorted(machine.living.items()):
        if run_id in machine.held:
            continue
        over = run_id in machine.finished
        known = any(run.run_id == run_id for run in machine.runs)
        if known and not over:
            pids = ", ".join(str(who.pid) for who in members[:8])
            yield Leftover(
                kind="training",
                what=f"pid {pids}",
                why=f"training of {run_id} that nobody watches: wtrain adopt {run_id}, "
                f"or wtrain stop {run_id}",
                removable=False,
            )
            continue
        for who in members:
            name = " ".join(redact_argv(system.command_line(who.pid) or ()))[:80] or "?"
            ours = machine.recorded.get(who) == run_id
            why = f"outlived {run_id}, which has ended: {name}"
            if not ours:
                why = (
                    f"carries the token of {run_id}, but no log recorded it as a part of the "
                    f"training; left alone: {name}"
                )
            yield Leftover(
                kind="process", what=f"pid {who.pid}", why=why, removable=ours, process=who
            )


def _folders(machine: Machine) -> Iterable[Leftover]:
    """Slot directories and other private folders in memory of runs that are over."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    prefix = f"wtrain-{user}-"
    for base in runtime_bases():
        for name in names_in(base):
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if _RUN_ID.fullmatch(rest):
                yield from _folder(machine, base / name, rest, "slots")
            elif rest in _PURPOSES:
                for run_id in names_in(base / name):
                    purpose: Kind = "memory" if rest in ("spill", "staging") else "lock"
                    yield from _folder(machine, base / name / run_id, run_id, purpose)
            elif rest == "link":
                yield from _links(base / name)


def _links(folder: Path) -> Iterable[Leftover]:
    """Folders of leaders that listened to agents of this machine; a living one holds its folder."""
    for name in names_in(folder):
        path = folder / name
        with suppress(OSError):
            about = path.lstat()
            fresh = time.time() - about.st_mtime < FRESH_S
            if stat.S_ISDIR(about.st_mode) and is_own(path) and not fresh and not _is_locked(path):
                why = "the leader of a job listened here; it was killed"
                yield Leftover(kind="lock", what=str(path), why=why, bytes=size_bytes(path))


def _is_locked(folder: Path) -> bool:
    if sys.platform == "win32":
        return True  # there is no link
    import fcntl

    opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def _folder(machine: Machine, path: Path, run_id: str, kind: Kind) -> Iterable[Leftover]:
    try:
        about = path.lstat()
    except OSError:
        return
    if not stat.S_ISDIR(about.st_mode) or (hasattr(os, "getuid") and about.st_uid != os.getuid()):
        return
    if run_id in machine.held or machine.living.get(run_id):
        return
    # Its supervisor maps the control page, whether or not the run could be registered.
    used = machine.mapped is not None and f"-{run_id}/" in machine.mapped
    if used or time.time() - about.st_mtime < FRESH_S:
        return
    why_not = None
    known = any(run.run_id == run_id for run in machine.runs)
    if run_id not in machine.finished and machine.mapped is None:
        why_not = f"whether {run_id} still uses it cannot be told here"
    elif path.parent.name.endswith("-spill") and known and names_in(path):
        why_not = f"events of {run_id} wait here for a disk that takes them: wtrain adopt {run_id}"
    yield Leftover(
        kind=kind,
        what=str(path),
        why=why_not or f"{run_id} does not run any more",
        bytes=size_bytes(path),
        removable=why_not is None,
    )


def _shared_memory(machine: Machine, system: ProcessSystem) -> Iterable[Leftover]:
    """Shared tensors of recorded processes that no process maps."""
    if machine.mapped is None:
        return
    alive = {row.pid for row in system.all_processes().values()}
    by_pid = {who.pid: run_id for who, run_id in machine.recorded.items()}
    for name in sorted(system.shared_memory_names() or ()):
        match = _TORCH_MEMORY.match(name)
        pid = int(match[1]) if match else -1
        if pid in by_pid and pid not in alive and f"/{name}" not in machine.mapped:
            why = f"shared by pid {pid} of {by_pid[pid]}, which is gone, and mapped by nobody"
            yield Leftover(kind="memory", what=name, why=why)


def _locks(machine: Machine) -> Iterable[Leftover]:
    for run in machine.runs:
        text = run.lock.with_name(f"{run.lock.name}.json")
        if run.run_id not in machine.held and text.exists():
            why = "names a supervisor that is gone; the lock itself ended with it"
            yield Leftover(kind="lock", what=str(text), why=why)


def _entries(machine: Machine) -> Iterable[Leftover]:
    """Runs whose supervisor was killed between its last event and the cleanup."""
    for run in registry.live_runs():
        over = run.run_id in machine.finished and run.run_id not in machine.held
        if over and not machine.living.get(run.run_id):
            why = f"lists {run.run_id} as live, which has ended"
            yield Leftover(kind="entry", what=str(registry.entry_path(run.run_id)), why=why)


def _old_runs(
    machine: Machine, runs_dir: Path, keep_last: int | None, older_than_s: float | None
) -> Iterable[Leftover]:
    latest = latest_target(runs_dir)
    # `latest` is kept whatever is asked for, and known runs that have not ended are not old.
    kept = machine.held | {run.run_id for run in machine.runs} - machine.finished | {latest}
    ended = [
        run
        for run in runs_in(runs_dir)
        if run.run_id not in kept and not machine.living.get(run.run_id) and is_ours(run)
    ]
    if keep_last is not None:
        ended = ended[: max(0, len(ended) - max(0, keep_last - 1))]
    for run in ended:
        age_s = _age_s(run)
        if older_than_s is not None and (age_s is None or age_s < older_than_s):
            continue
        days = "" if age_s is None else f", {age_s / 86400:.1f} days old"
        yield Leftover(
            kind="run", what=str(run.path), why=f"an ended run{days}", bytes=size_bytes(run.path)
        )


def _age_s(run: RunDirectory) -> float | None:
    with suppress(OSError):
        return time.time() - run.events.stat().st_mtime
    return None


def remove(leftover: Leftover, system: ProcessSystem, *, within_s: float = 5.0) -> str | None:
    """Remove one leftover; None, or why it could not be removed."""
    if not leftover.removable:
        return "it is only listed"
    if leftover.process is not None:
        return _end(leftover.process, system, within_s)
    if leftover.kind == "memory" and "/" not in leftover.what:
        return None if system.remove_shared_memory(leftover.what) else "it could not be removed"
    path = Path(leftover.what)
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            if path.parent.name.startswith("wtrain-"):
                with suppress(OSError):  # others of its kind are left
                    path.parent.rmdir()
        else:
            path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _end(who: ProcessId, system: ProcessSystem, within_s: float) -> str | None:
    hardest = getattr(signal, "SIGKILL", signal.SIGTERM)
    for number in (signal.SIGTERM, hardest):
        result = system.send_signal(who, number)
        if result not in ("sent", "gone"):
            return f"it may not be signalled ({result})"
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if system.is_alive(who) is False:
                return None
            time.sleep(0.05)
    return "it does not end (in the kernel?)"


RUNS_READ = 200
"""Logs of this place that are read for their recorded processes; newest first."""


class Machine(Value):
    """What the search knows of this user's runs before it judges anything.

    A process belongs to a run by that run's log: its token alone proves nothing.
    """

    runs: tuple[RunDirectory, ...]
    recorded: Mapping[ProcessId, str]
    """The run id of each root, keeper and member that a log recorded."""
    finished: frozenset[str]
    held: frozenset[str]
    """Runs with a living supervisor, or where that is unknown."""
    mapped: str | None
    """See mapped_names()."""
    left: Mapping[ProcessId, str]
    """What the runs left running on purpose; not in `living`."""
    living: Mapping[str, tuple[ProcessId, ...]]
    """By run id: processes that carry its token, started under this boot."""


def look_around(system: ProcessSystem, runs_dir: Path) -> Machine:
    """Read the logs of this user's runs, and the processes that carry a token of wtrain."""
    boot_id = system.boot_id()
    listed = [entry.directory for entry in registry.live_runs(boot_id=boot_id)]
    agents = runs_in(runs_dir / AGENTS)[-RUNS_READ:]
    known = (*runs_in(runs_dir)[-RUNS_READ:], *agents, *listed)
    # The log of another user's run, or of a copy, is no ground to kill processes.
    runs = {run.path.resolve(): run for run in known if is_ours(run)}
    recorded: dict[ProcessId, str] = {}
    finished = set()
    held = set()
    left: dict[ProcessId, str] = {}
    for run in runs.values():
        if is_held(run.lock) is not False:
            held.add(run.run_id)
        try:
            events = read_events(run.events, strict=False, spill_dir=run.spill_dir).events
        except WtrainError:
            continue  # a damaged log proves nothing about any process
        state = replay(events)
        if None not in (state.boot_id, boot_id) and state.boot_id != boot_id:
            finished.add(run.run_id)  # in any state, the reboot has ended it
            continue
        for event in events:
            if isinstance(event, e.AttemptLaunched):
                recorded[ProcessId(event.pid, event.start)] = run.run_id
                recorded[ProcessId(event.keeper_pid, event.keeper_start)] = run.run_id
            elif isinstance(event, e.Progress):
                recorded.update((who.identity, run.run_id) for who in event.members or ())
        left.update((daemon.process, run.run_id) for daemon in state.left)
        if state.finished:  # by its last word: a finished run may have been reopened since
            finished.add(run.run_id)
    return Machine(
        runs=tuple(runs.values()),
        recorded=recorded,
        finished=frozenset(finished),
        held=frozenset(held),
        mapped=mapped_names(system),
        left={who: run_id for who, run_id in left.items() if system.is_alive(who)},
        living=_living_members(system, left),
    )


def is_ours(run: RunDirectory) -> bool:
    """Whether it is a run of this user, and no copy of one."""
    return is_own(run.path) and original_of(run.path) is None


def _living_members(
    system: ProcessSystem, left: Mapping[ProcessId, str]
) -> dict[str, tuple[ProcessId, ...]]:
    boot_id = system.boot_id() or "unknown"
    names = (layout.ENV_RUN_ID, layout.ENV_TOKEN, layout.ENV_SCOPE)
    found: dict[str, list[ProcessId]] = {}
    for row in system.all_processes().values():
        who = ProcessId(row.pid, row.start)
        if who.pid == os.getpid() or who in left:
            continue
        variables = system.environment(who.pid, names)
        if not variables or layout.ENV_TOKEN not in variables:
            continue
        if f"/{boot_id}/" in variables.get(layout.ENV_SCOPE, ""):
            run_id = variables.get(layout.ENV_RUN_ID, "")
            if system.is_alive(who):
                found.setdefault(run_id, []).append(who)
    return {run_id: tuple(members) for run_id, members in found.items()}
