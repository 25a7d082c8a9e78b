"""One diagnosis from the evidence of all tasks of a job, made by its leader. Pure.

A task that trains one rank of a world sees one rank hang: whether it is the cause or waits for
another one is only told by the stacks of all. Nothing is held back for it: by then the evidence is
on disk, and the tree is gone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, StartJoint, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.peers import bundle_of, called
from watchdog_train.core.job.together import LOOK_AGAIN_S, in_one_boat
from watchdog_train.core.model import Explanation, Why

NOTICE: Final = "joint"


def diagnose_together(observation: Observation, state: State) -> Action | None:
    """Of a hang, before the next attempt is planned; a crash has said itself what it died of."""
    bundle, job = bundle_of(state), state.job
    if job is None or bundle is None or bundle.joint or bundle.why != "stall":
        return None
    if bundle.dir is None or not bundle.collected or NOTICE in state.notices:
        return None
    theirs = [
        (peer.summary, peer.summary.trouble.bundle)
        for peer in in_one_boat(observation, state)
        if peer.summary.trouble is not None and peer.summary.trouble.bundle
    ]
    if not theirs:
        return None
    answer = observation.joint
    if answer is None:
        if "joint" in observation.running:
            return Wait(until=observation.now + LOOK_AGAIN_S)
        bundles = (bundle.dir, *(path for _, path in theirs))
        names = (_ours(state), *(called(summary, job.task) for summary, _ in theirs))
        return StartJoint(bundles=bundles, names=names)
    event: e.AnyEvent
    if answer.explanation is None:
        why = Why("not-joint", option=job.task.kind, problem=answer.problem or "unknown")
        event = e.Noticed(kind=NOTICE, pids=(), why=why)
    else:
        tasks = tuple(sorted((job.task.task, *(summary.task for summary, _ in theirs))))
        host = _host_of(answer.where, observation, state)
        found = _on(answer.explanation, host)
        event = e.StallExplained(stall_id=bundle.id, explanation=found, tasks=tasks, host=host)
    return Record(events=(event,), consumes=("joint",))


def _ours(state: State) -> str:
    """This task in words, as called() says those of others."""
    job = state.job
    if job is None:
        return ""
    host = f" ({state.host})" if job.task.coordination is not None else ""
    return f"{job.task.kind} {job.task.task}{host}"


def _on(found: Explanation, host: str | None) -> Explanation:
    """The explanation that names the machine of its root."""
    if found.root is None or host is None:
        return found
    who = msgspec.structs.replace(found.root.who, host=host)
    return msgspec.structs.replace(found, root=msgspec.structs.replace(found.root, who=who))


def _host_of(where: str | None, observation: Observation, state: State) -> str | None:
    """The machine of the root, of a job on several."""
    job, bundle = state.job, bundle_of(state)
    if job is None or where is None or job.task.coordination is None or bundle is None:
        return None
    if where == bundle.dir:
        return state.host
    hosts = (
        peer.summary.host
        for peer in in_one_boat(observation, state)
        if peer.summary.trouble is not None and peer.summary.trouble.bundle == where
    )
    return next(hosts, None)
