"""Continue a finished run from its newest valid checkpoint, with the user's changes.

In a job with a leader the first task reopens the run, and the others become agents again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from watchdog_train.config import load
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.remedies import parted
from watchdog_train.core.starting.jobs import JobTask
from watchdog_train.errors import WtrainError
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.registry import live_runs
from watchdog_train.store.run_directory import name_from_command, none_here, point_latest, resolve
from watchdog_train.store.run_paths import AGENTS, RunDirectory, default_runs_dir, runs_in
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.duplicates import (
    find_twins,
    refuse_twins,
    training_key,
)
from watchdog_train.supervisor.job_task import environment_of, is_led, own_task
from watchdog_train.supervisor.setup import RunSession, link_of, take_lock, this_supervisor
from watchdog_train.supervisor.start import start_run, write_settings
from watchdog_train.system import current
from watchdog_train.system.protocol import ProcessSystem

Settings = Mapping[str, Any]
"""Settings by key that replace the run's own."""


def find_run(run_ref: str | None, runs_dir: Path | None) -> RunDirectory:
    """The run, or what an agent left of it here; WtrainError: unknown or ambiguous."""
    place = runs_dir or default_runs_dir()
    try:
        if not run_ref and not runs_in(place):  # one of another directory must be named
            raise none_here("there is no run in this directory", place)
        return resolve(run_ref, runs_dir)
    except WtrainError:
        left = _parts(place)
        name = RunDirectory(Path(run_ref)).name if run_ref else None
        own = [run for run in left if name in (None, run.name.rpartition("-")[0])]
        if not own:
            raise
        return own[-1]


def _parts(home: Path) -> tuple[RunDirectory, ...]:
    """What tasks of jobs have left, the agents last."""
    return (*runs_in(home), *runs_in(home / AGENTS))


def own_part(
    run: RunDirectory, state: State, changed: Settings
) -> tuple[RunDirectory, JobTask | None]:
    """The last run of this task of the job (or of another agent), and the task.

    The task is None for a run of no job with a leader. WtrainError: not the run's job, or the
    leader's run is not here.
    """
    policy = load(run.config, None, changed, limits=state.limits).policy
    before = state.crew.task if state.crew is not None else None
    task = own_task(os.environ, current(), policy.job, state.launcher)
    task = task if before is not None or is_led(task, policy.job) else None
    base = policy.name or name_from_command(state.argv)
    if before is not None and task is None:
        raise _not_alone(before, base)
    if task is None:
        return run, None
    if before is None or (before.kind, before.tasks) != (task.kind, task.tasks):
        size = f"{before.tasks} {before.kind}s" if before is not None else "one task"
        raise WtrainError(
            f"this run had {size}, and now there are {task.tasks} {task.kind}s",
            context=run.run_id,
            hint="start the job again with as many, or as a new run with: wtrain run -- COMMAND",
            reference="run-part-of-job",
        )
    if before.task != task.task or task.task:
        named = f"{base}-{task.name_of(task.task)}"
        left = [each for each in _parts(_home(run)) if each.name == named]
        if not (left or task.task):
            raise WtrainError(
                "the first task of the job leads, and its run is not here",
                context=base,
                hint="start the line where the run of the leader is, or share the run directories",
                reference="run-part-of-job",
            )
        run = max(left, key=lambda each: each.stamp, default=run)
    return run, task


def _home(run: RunDirectory) -> Path:
    folder = run.path.parent
    return folder.parent if folder.name == AGENTS else folder


def start_agent(
    run: RunDirectory,
    changed: Settings,
    *,
    environment: Mapping[str, str],
    on_launched: Callable[[RunSession], None] | None,
) -> RunSession:
    """Become an agent of the leader that reopens its run, with this run's command.

    WtrainError: refused, as a new run would be.
    """
    state = read_state(run)
    settings = {**changed, "runs_dir": str(_home(run))}
    policy = load(run.config, None, settings, limits=state.limits).policy
    _refuse_missing_place(state)
    os.chdir(state.cwd)
    os.environ.update(environment)
    return start_run(policy, state.argv, on_launched=on_launched)


def reopen_run(
    directory: RunDirectory,
    *,
    task: JobTask | None,
    changed: Settings,
    with_remedies: tuple[str, ...],
    allow: tuple[str, ...],
    environment: Mapping[str, str],
    fresh_budget: bool,
    on_launched: Callable[[RunSession], None] | None,
) -> RunSession:
    """Make one more attempt of a finished run, and supervise it like any other.

    `changed` settings, remedies and `allow` are in effect from now on, beside the run's own. With a
    task it leads that job; see own_part(). `fresh_budget`: --max-restarts is counted from 0.

    Raises:
        WtrainError: it has not ended, it succeeded, its place is gone, or something of it lives.
    """
    system = current()
    _refuse(read_state(directory), system)  # says so without touching anything
    lock = take_lock(directory, system)
    # Another supervisor may have continued it while we waited for the lock.
    state = read_state(directory)
    _refuse(state, system)
    policy = _policy(directory, state, changed, with_remedies, allow)
    environment = environment_of(task, environment)
    if policy.recovery.duplicates != "ignore":
        live = live_runs(boot_id=system.boot_id())
        twins = find_twins(training_key(state.argv, state.cwd, environment), live, system)
        refuse_twins(twins, unwatched=True)
    children = ChildTable(system)
    link = link_of(task, children)
    write_settings(
        directory,
        policy,
        environment,
        hint="start it in another place with: wtrain run --runs-dir DIR -- COMMAND",
    )
    point_latest(directory.path.parent, directory.run_id)
    session = RunSession(
        directory,
        policy,
        environment=environment,
        cwd=state.cwd,
        on_launched=on_launched,
        state=state,
        reopen=True,
        lock=lock,
        task=task,
        children=children,
        link=link,
    )
    me = this_supervisor(system)
    context = session.context
    session.supervisor.record(
        e.Reopened(
            pid=me.pid,
            start=me.start,
            boot_id=me.boot_id,
            slot_dir=str(context.slot_dir) if context.slot_dir else None,
            with_remedies=with_remedies,
            allow=allow,
            why=_why(state, with_remedies, allow),
            fresh_budget=fresh_budget,
        )
    )
    if task is not None:
        session.supervisor.record(e.TaskJoined(task=task, host=me.host))
    session.register()
    session.run()
    return session


def _not_alone(task: JobTask, name: str) -> WtrainError:
    return WtrainError(
        f"this run had {task.tasks} {task.kind}s, and is restarted in all of them at once",
        hint=f"start the same line in each {task.kind}, under Slurm: srun wtrain restart {name}",
        reference="run-part-of-job",
    )


def _refuse(state: State, system: ProcessSystem) -> None:
    if not state.run_id or not state.attempts:
        raise WtrainError(
            "this run has made no attempt that it could go on from",
            context=state.run_id,
            hint="start it again with: wtrain run -- COMMAND",
            reference="run-empty",
        )
    if not state.finished:
        raise WtrainError(
            "the run has not ended",
            context=state.run_id,
            hint=f"wtrain stop {state.run_id}, or wtrain adopt {state.run_id} if nobody watches it",
            reference="run-not-finished",
        )
    if state.outcome == "succeeded":
        raise WtrainError(
            "the run has succeeded: there is nothing left to go on with",
            context=state.run_id,
            hint="train again with: wtrain run -- COMMAND",
            reference="run-succeeded",
        )
    _refuse_missing_place(state)
    living = [member.pid for member in state.members if system.is_alive(member.identity)]
    if living:
        raise WtrainError(
            f"processes of it live still: {', '.join(map(str, living[:8]))}",
            context=state.run_id,
            hint="wtrain clean shows them, wtrain clean --yes ends them",
            reference="run-alive",
        )


def _refuse_missing_place(state: State) -> None:
    if not os.path.isdir(state.cwd):
        raise WtrainError(
            "the directory it was started in is gone",
            context=state.cwd,
            hint="start it from its new place with: wtrain run -- COMMAND",
            reference="run-place-gone",
        )


def _policy(
    directory: RunDirectory,
    state: State,
    changed: Settings,
    with_remedies: tuple[str, ...],
    allow: tuple[str, ...],
) -> Policy:
    """The run's settings with the additions, in effect from now on."""
    policy = load(directory.config, None, changed, limits=state.limits).policy
    recovery = policy.recovery
    merged = msgspec.structs.replace(
        recovery,
        with_remedies=tuple(dict.fromkeys((*recovery.with_remedies, *with_remedies))),
        without_remedies=tuple(
            name
            for name in recovery.without_remedies
            if name not in dict(map(parted, with_remedies))
        ),
        allow=tuple(dict.fromkeys((*recovery.allow, *allow))),
        # A run that was only observed is restarted by a person who wants more than a report.
        observe=False,
    )
    return msgspec.structs.replace(policy, recovery=merged)


def _why(state: State, with_remedies: tuple[str, ...], allow: tuple[str, ...]) -> Why:
    why = Why("restarted", option=state.outcome or "", because=(state.why,) if state.why else ())
    if with_remedies:
        why = why.plus(Why("with-remedies", names=with_remedies))
    return why.plus(Why("allowed", names=allow)) if allow else why
