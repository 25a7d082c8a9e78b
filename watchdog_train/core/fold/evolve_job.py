"""How the events of a job with several tasks change the state of one of them. Pure, total."""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import Agreed, Crew, JobState, Machine, State, plan_digest

_replace = msgspec.structs.replace


def change(state: State, event: e.AnyEvent) -> State:
    """The state after a plan or an event about the peers; without a job nothing changes."""
    if isinstance(event, e.PlanMade):
        return _plan_made(state, event)
    if not isinstance(event, e.JobEvent):
        return state
    if isinstance(event, (e.MachineHeard, e.MachineLost, e.Ordered)):
        return _led(state, event)
    if isinstance(event, e.TaskJoined):
        alone = state.attempt.attempt if state.attempt is not None else 0
        return _replace(state, crew=Crew(task=event.task, alone=alone))
    job, crew = state.job, state.crew
    if isinstance(event, e.PeerLost) and crew is not None:
        dead = (event.task, event.pid)
        return _replace(state, crew=_replace(crew, taken_over=(*crew.taken_over, dead)))
    if job is None:
        return state
    match event:
        case e.PlanReceived():
            job = _replace(
                job,
                agreed=Agreed(
                    attempt=event.plan_attempt, proposer=event.proposer, digest=event.digest
                ),
            )
        case e.CheckpointUnseen():
            job = _replace(job, unseen=(*job.unseen, (event.task, event.path, event.why)))
            plan = state.next_plan
            if plan is not None and plan.checkpoint and plan.checkpoint.path == event.path:
                return _replace(state, job=_replace(job, agreed=None), next_plan=None)
    state = _replace(state, job=job)
    return _attempt_changed(state, job, event) if state.attempts else state


def _led(state: State, event: e.MachineHeard | e.MachineLost | e.Ordered) -> State:
    crew = state.crew
    if isinstance(event, e.MachineLost):
        state = records.trees(state, event.host, lost=True)
        tree = state.tree(event.host)
        if tree is not None and not tree.ended:
            ended = {"ended": True, "ended_mono": event.mono, "how_known": "gone"}
            state = records.trees(state, event.host, **ended)
        for stall in state.stalls:
            if stall.collecting and records.has_all(state, stall.id):
                state = records.stall(state, stall.id, collecting=False, collected=True)
        return state
    if crew is None:
        return state
    if isinstance(event, e.Ordered):
        return _replace(state, crew=_replace(crew, epoch=event.epoch, done=event.number))
    others = tuple(one for one in crew.machines if one.host != event.host)
    heard = Machine(
        host=event.host,
        hostname=event.hostname,
        place=event.place,
        run_dir=event.run_dir,
        agent=event.agent,
        attempts=event.attempts,
    )
    return _replace(state, crew=_replace(crew, machines=(*others, heard)))


def _attempt_changed(state: State, job: JobState, event: e.JobEvent) -> State:
    attempt = state.attempts[-1]
    match event:
        case e.TasksCoupled():
            job = _replace(job, together=event.together)
        case e.PeerAnnounced():
            attempt = _replace(attempt, cause=event)
        case e.PeerRetracted():
            attempt = _replace(attempt, cause=None)
        case e.BarrierReached() | e.BarrierMissed():
            attempt = _replace(attempt, barrier=True)
        case e.PeerLost():
            job = _replace(job, taken_over=(*job.taken_over, (event.task, event.pid)))
    return _replace(state, job=job, attempts=(*state.attempts[:-1], attempt))


def _plan_made(state: State, event: e.PlanMade) -> State:
    """A plan of a task that acts with its peers is its proposal, unless it was received."""
    state, job, plan = _replace(state, next_plan=event.plan), state.job, event.plan
    if job is None or not job.together:
        return state
    mine, agreed = job.task.task, job.agreed
    if agreed is not None and agreed.attempt == plan.attempt and agreed.proposer != mine:
        return state
    agreed = Agreed(attempt=plan.attempt, proposer=mine, digest=plan_digest(mine, plan))
    return _replace(state, job=_replace(job, agreed=agreed))


def launching(job: JobState | None, attempt: int) -> JobState | None:
    """An attempt under an agreed plan is one that all tasks begin together."""
    if job is None or job.agreed is None or job.agreed.attempt != attempt:
        return job
    return _replace(job, base=attempt)
