"""What a search for leftovers knows of this machine: runs, their processes, mapped files.

Only reads. A process belongs to a run by that run's log; its token alone proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from watchdog_train.client import layout
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.model import ProcessId, Value
from watchdog_train.errors import WtrainError
from watchdog_train.store import registry
from watchdog_train.store.copies import original_of
from watchdog_train.store.lock import is_held
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import AGENTS, RunDirectory, runs_in
from watchdog_train.system.protocol import ProcessSystem
from watchdog_train.trusted_files import is_own

RUNS_READ = 200
"""Logs of this place that are read for the processes they recorded; newest first."""


class Machine(Value):
    """What the search knows of this user's runs before it judges anything."""

    runs: tuple[RunDirectory, ...]
    recorded: Mapping[ProcessId, str]
    """Every process that a log recorded as a member, with its run."""
    finished: frozenset[str]
    held: frozenset[str]
    """Runs that a living supervisor holds."""
    mapped: str | None
    """See mapped_names()."""
    left: Mapping[ProcessId, str]
    """What the runs left running on purpose; not among the living ones."""
    living: Mapping[str, tuple[ProcessId, ...]]
    """By run id: processes that carry its token, started under this boot."""


def look_around(system: ProcessSystem, runs_dir: Path) -> Machine:
    """Read the logs of this user's runs, and the processes that carry a token of ours."""
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
            finished.add(run.run_id)  # whatever it was, the reboot has ended it
            continue
        for event in events:
            recorded.update((who, run.run_id) for who in _named(event))
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
        living=_living(system, left),
    )


def is_ours(run: RunDirectory) -> bool:
    """Whether it is a run of this user, and no copy of one."""
    return is_own(run.path) and original_of(run.path) is None


def _named(event: e.AnyEvent) -> Iterable[ProcessId]:
    if isinstance(event, e.AttemptLaunched):
        yield ProcessId(event.pid, event.start)
        yield ProcessId(event.keeper_pid, event.keeper_start)
    elif isinstance(event, e.Progress):
        yield from (member.identity for member in event.members or ())


def _living(
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


def mapped_names(system: ProcessSystem) -> str | None:
    """What the processes of this user share as memory: `INODE PATH` a line; None: unknown."""
    if system.shared_mappings(os.getpid()) is None:
        return None
    names: set[str] = set()
    for row in system.all_processes().values():
        if hasattr(os, "getuid") and system.user_id(row.pid) == os.getuid():
            names.update(system.shared_mappings(row.pid) or ())
    return "".join(f"\n{name}" for name in sorted(names)) + "\n"
