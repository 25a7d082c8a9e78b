"""Adopt a run whose supervisor is gone: check its open intents, then supervise it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from watchdog_train.client import layout
from watchdog_train.config import load
from watchdog_train.core import events as e
from watchdog_train.core.actions import Request
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Why
from watchdog_train.core.starting.jobs import is_begun_again
from watchdog_train.errors import WtrainError
from watchdog_train.store.log_reading import read_state
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.children import ChildTable
from watchdog_train.supervisor.environment import INJECT_DIRECTORY, environment_again
from watchdog_train.supervisor.hands.launch import hold_streams, stream_files
from watchdog_train.supervisor.job_task import own_task
from watchdog_train.supervisor.setup import RunSession, link_of, take_lock, this_supervisor
from watchdog_train.system import current
from watchdog_train.trusted_files import ENVIRONMENT as HELD

StopMode = Literal["soft", "now"]


def adopt_run(
    directory: RunDirectory,
    *,
    stop_mode: StopMode | None = None,
    opening: str | None = None,
    on_adopted: Callable[[RunSession], None] | None = None,
) -> RunSession:
    """Become the supervisor of a run until it is finished; `stop_mode` stops it instead.

    Raises:
        WtrainError: the run is finished, still supervised, or its log is corrupt.
    """
    _unfinished(directory)  # says so without touching anything
    system = current()
    lock = take_lock(directory, system)
    others_ended = False
    try:
        # Its holder may have ended the run while we waited for the lock.
        state = _unfinished(directory)
        task = state.crew.task if state.crew is not None else None
        others_ended = stop_mode is not None and is_begun_again(task, os.environ)
        if others_ended or (stop_mode is not None and task is not None and task.task):
            task = None  # it is stopped without the others
        children = ChildTable(system)
        session = RunSession(
            directory,
            load(directory.config, limits=state.limits).policy,
            environment=_environment(directory, state),
            cwd=state.cwd,
            on_launched=on_adopted,
            opening=opening,
            state=state,
            lock=lock,
            task=task,
            children=children,
            link=link_of(task, children),
        )
        if state.crew is None and stop_mode is None:
            with suppress(WtrainError):  # reported when the run was started
                job = session.context.policy.job
                environment = session.context.environment
                session.context.unled = own_task(environment, system, job, state.launcher)
    except BaseException:
        lock.release()
        raise
    me = this_supervisor(session.system)
    rebooted = state.boot_id is not None and state.boot_id != me.boot_id
    why = Why("rebooted" if rebooted else "supervisor-gone")
    if session.context.log.torn_tail is not None:
        why = why.plus(Why("event-torn"))
    attempt = state.attempt
    if attempt is not None and attempt.keeper is not None and not attempt.tree_gone:
        attempt_dir = directory.attempt(attempt.attempt)  # before the log names us as supervisor
        session.context.ends = hold_streams(attempt.keeper, attempt_dir, session.system)
    session.supervisor.record(
        e.Adopted(
            pid=me.pid,
            start=me.start,
            boot_id=me.boot_id,
            previous_pid=state.supervisor.pid if state.supervisor is not None else 0,
            why=why,
        )
    )
    for tree in state.trees if others_ended else ():
        if tree.host and not tree.settled:
            session.supervisor.record(e.MachineLost(where=tree.host, why=Why("requeued")))
    session.register()
    if on_adopted is not None:
        on_adopted(session)
    attempt = session.supervisor.state.attempt
    if attempt is not None and not attempt.tree_gone:
        streams = stream_files(directory.attempt(attempt.attempt))
        session.context.display.follow(streams, from_end=True)
    if stop_mode is not None:
        kind: Literal["stop", "stop_now"] = "stop" if stop_mode == "soft" else "stop_now"
        session.supervisor.ask(Request(kind=kind, by="wtrain stop"))
    session.run()
    return session


def _unfinished(directory: RunDirectory) -> State:
    """The state by its log; WtrainError: nothing is left to supervise."""
    state = read_state(directory)
    if not state.run_id:
        raise WtrainError(
            "this run has no first event: its supervisor ended before it started anything",
            context=str(directory.events),
            hint="start it again with: wtrain run -- COMMAND",
            reference="run-empty",
        )
    if state.finished:
        raise WtrainError(
            f"the run is finished already: {state.outcome}, exit code {state.exit_code}",
            context=state.run_id,
            hint=f"wtrain status {state.run_id}",
            reference="run-finished",
        )
    return state


def _environment(directory: RunDirectory, state: State) -> dict[str, str]:
    """The living keeper's environment without wtrain's additions, else the one kept by the run."""
    attempt = state.attempt
    environment: dict[str, str] = {}
    if attempt is not None and attempt.keeper is not None:
        import psutil

        with suppress(psutil.Error):
            environment = dict(psutil.Process(attempt.keeper.pid).environ())
    if attempt is None or environment.get(layout.ENV_TOKEN) != attempt.token:
        return environment_again(directory, os.environ, same_job=True).variables
    for name, value in attempt.plan.env.items():
        if environment.get(name) == value:
            del environment[name]
    environment.pop(HELD, None)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(entry for entry in path if entry and entry != str(INJECT_DIRECTORY))
    environment.pop("PYTHONPATH", None)
    if kept:
        environment["PYTHONPATH"] = kept
    return environment
