"""Rules of decide() for a task that trains one world with its peers: together or not at all. Pure.

They stand before the rules of a single run and hold them back: nothing is killed before the
evidence of all tasks is on disk or its time is up. What follows the kill is in core.job.confer. In
a run that is no task of a job each of them ends at its first line.
"""

from __future__ import annotations

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, TakeOver, Wait
from watchdog_train.core.answers import present_stall
from watchdog_train.core.fold.state import JobState, State
from watchdog_train.core.job.peers import (
    JobView,
    PeerView,
    Signs,
    bundle_of,
    called,
    is_dumped,
    trouble_of,
)
from watchdog_train.core.model import Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.suspect import next_stall_id

LOOK_AGAIN_S = 0.1
RECENT_S = 5.0
"""Progress this new contradicts a peer that says the whole job is quiet."""
LAG_S = 3.0
"""Progress may be this old when its word arrives."""
DEAD_FOR_S = 3.0
"""A supervisor that has just ended may still have said why: its last record is read first."""
UNHEARD_S = 10.0
"""A supervisor of which nobody can tell whether it lives, and that says nothing, does not lead."""
TAKE_OVER_LIMIT = 3
"""A supervisor that dies again and again is not replaced for ever."""


def couple(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Find out whether the tasks of the job train one world."""
    job, attempt = state.job, state.attempt
    if job is None or attempt is None or not attempt.launched:
        return None
    found, why = _one_world(job, observation.signs, observation.job, policy)
    if found == job.together:
        return None
    event = e.TasksCoupled(together=found, world=observation.signs.world, why=why)
    return Record(events=(event,))


def _one_world(
    job: JobState, signs: Signs, view: JobView | None, policy: Policy
) -> tuple[bool, Why]:
    if job.task.kind == "node":
        return True, Why("is-node")
    if policy.job.tasks != "auto":
        return policy.job.tasks == "together", Why("job-tasks", option=policy.job.tasks)
    if signs.whole:
        return False, Why("whole-world", count=signs.world)
    tasks = job.task.tasks
    if signs.world is not None and signs.world >= tasks:
        return True, Why("part-of-world", count=signs.ranks, of=signs.world)
    for peer in view.peers if view is not None else ():
        theirs = peer.summary.signs
        one = theirs.world is not None and theirs.world >= tasks and theirs.whole is False
        if one or (peer.summary.together and peer.summary.finished is None):
            return True, Why("peer-in-world", who=called(peer.summary, job.task))
    return job.together, Why("unknown")


def follow_stop(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """A person who stops one task stops the job."""
    stop, job = state.stop, state.job
    for peer in in_one_boat(observation, state):
        word = peer.summary.stop
        if job is None or word is None:
            continue
        if stop is not None and (stop.mode == "now" or word.mode == "soft"):
            continue
        # Who it was is said once: a word that has come round already names its task.
        by = word.by if word.relayed else f"{called(peer.summary, job.task)}: {word.by}"
        event = e.StopRequested(by=by, mode=word.mode, exit_code=word.exit_code, relayed=True)
        return Record(events=(event,))
    return None


def take_over(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """The supervisor of a peer is gone: its run gets another one, or nobody would end its ranks."""
    job = state.job
    if job is None or state.stop is not None:
        return None
    lower = lower_peers(observation, state)
    if job.task.coordination is not None:  # those of another machine cannot start anything here
        lower = tuple(peer for peer in lower if peer.alive is not None)
    if lower:
        return None
    for peer in in_one_boat(observation, state):
        summary = peer.summary
        if peer.alive is not False or peer.heard_s < DEAD_FOR_S or summary.finished is not None:
            continue
        before = [pid for task, pid in job.taken_over if task == summary.task]
        if summary.pid in before or len(before) >= TAKE_OVER_LIMIT:
            continue
        return TakeOver(
            task=summary.task,
            pid=summary.pid,
            run_id=summary.run_id,
            run_dir=summary.run_dir,
            why=Why("peer-gone", who=called(summary, job.task), pid=summary.pid),
        )
    return None


def follow_trouble(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """What ends the attempt of one task ends that of all: take our evidence and get ready."""
    attempt = state.attempt
    if attempt is None or not attempt.launched or attempt.ended or state.stop is not None:
        return None
    if attempt.stall_id is not None or attempt.cause is not None:
        return None
    cause = announced(observation, state)
    if cause is None:
        return None
    over = cause.over and observation.signs.over
    stall = e.StallDeclared(
        stall_id=next_stall_id(observation, state),
        basis="finishing" if over else "peer",
        phase=observation.verdict.phase,
        ranks=(),
        age_s=round(observation.signs.age_s or 0.0, 1),
        why=Why("peer", who=name_of(cause.task, observation, state), because=(cause.why,)),
    )
    return Record(events=(cause, stall))


def announced(observation: Observation, state: State) -> e.PeerAnnounced | None:
    """The reason that a peer has found, as far as this task has to follow it."""
    for peer in in_one_boat(observation, state):
        summary = peer.summary
        if summary.finished is not None and summary.stop is None and not summary.done:
            why = Why("exited", exit=summary.finished)
            return e.PeerAnnounced(task=summary.task, kind="left", firm=True, over=False, why=why)
        trouble = summary.trouble
        if trouble is None or summary.done or not (trouble.own or summary.killing):
            continue
        if not _is_present(peer, state):
            continue
        age_s = observation.signs.age_s
        recent = age_s is not None and age_s < RECENT_S
        if trouble.firm or summary.killing or not recent:
            return e.PeerAnnounced(
                task=summary.task,
                kind=trouble.kind,
                firm=trouble.firm,
                over=trouble.over,
                why=trouble.why,
                code=trouble.code,
                signal=trouble.signal,
            )
    return None


def hold_fire(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Kill nothing before every task has its evidence, or its time is up."""
    attempt, recovery = state.attempt, policy.recovery
    if attempt is None or attempt.barrier or attempt.tree_gone or attempt.root is None:
        return None
    if state.stop is not None or recovery.observe or recovery.on_stall == "report":
        return None
    peers, trouble, bundle = in_one_boat(observation, state), trouble_of(state), bundle_of(state)
    if (
        not (peers or meets_machines(state))
        or trouble is None
        or bundle is None
        or not is_dumped(state)
    ):
        return None
    begun = any(peer.summary.killing and _is_present(peer, state) for peer in peers)
    if trouble.own and present_stall(state) is not None and not attempt.ended and not begun:
        if observation.verdict.progress_at > bundle.declared_mono:
            return None
        late = [peer for peer in peers if peer.progressed_at > bundle.declared_mono + LAG_S]
        if late and not trouble.firm:
            who = name_of(late[0].summary.task, observation, state)
            why = Why("peer-progress", who=who)
            return Record(events=(e.StallRecovered(stall_id=bundle.id, why=why),))
    elif attempt.cause is not None and not attempt.ended and announced(observation, state) is None:
        who = name_of(attempt.cause.task, observation, state)
        why = Why("taken-back", who=who)
        return Record(events=(e.StallRecovered(stall_id=bundle.id, why=why),))
    return _barrier(observation, state, bundle.declared_mono, policy)


def _barrier(observation: Observation, state: State, since: float, policy: Policy) -> Action:
    job, peers = state.job, in_one_boat(observation, state)
    waited_s = round(max(0.0, observation.now - since), 1)
    missing = tuple(p.summary.task for p in peers if not _has_dumped(p, state))
    unheard = job.task.met - 1 - len(peers) if job is not None else 0
    if not missing and unheard <= 0:
        tasks = tuple(peer.summary.task for peer in peers)
        return Record(events=(e.BarrierReached(tasks=tasks, waited_s=waited_s),))
    if waited_s < policy.job.barrier_s:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    who = missing_words(missing, unheard, observation, state)
    why = Why("no-evidence", who=who, seconds=waited_s)
    return Record(events=(e.BarrierMissed(missing=missing, waited_s=waited_s, why=why),))


def missing_words(
    missing: tuple[int, ...], unheard: int, observation: Observation, state: State
) -> str:
    """Tasks that did not come, for a person."""
    kind = state.job.task.kind if state.job is not None else "task"
    parts = []
    if missing and state.job is not None and state.job.task.coordination is not None:
        parts.append(", ".join(name_of(number, observation, state) for number in missing))
    elif missing:
        parts.append(f"{kind}{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}")
    if unheard > 0:
        parts.append(f"{unheard} {kind}{'s' if unheard > 1 else ''} that nothing was heard of")
    return " and ".join(parts)


def name_of(number: int, observation: Observation, state: State) -> str:
    """A peer's name for a person: `task 2`, `node 1 (gpu-17)`."""
    job = state.job
    kind = job.task.kind if job is not None else "task"
    for peer in observation.job.peers if observation.job is not None else ():
        if job is not None and peer.summary.task == number:
            return called(peer.summary, job.task)
    return f"{kind} {number}"


def _has_dumped(peer: PeerView, state: State) -> bool:
    return peer.summary.finished is not None or (_is_present(peer, state) and peer.summary.dumped)


def _is_present(peer: PeerView, state: State) -> bool:
    """Whether it speaks of the present attempt: one that launches late speaks of the last."""
    return state.job is not None and peer.summary.attempt >= state.job.base


def in_one_boat(observation: Observation, state: State) -> tuple[PeerView, ...]:
    """The peers with which this task trains one world, as far as they have been heard of."""
    if state.job is None or not state.job.together or observation.job is None:
        return ()
    return observation.job.peers


def meets_machines(state: State) -> bool:
    """Whether this task trains one world with tasks that may be on other machines."""
    job = state.job
    return job is not None and job.together and job.task.coordination is not None


def lower_peers(observation: Observation, state: State) -> tuple[PeerView, ...]:
    """Living tasks with lower numbers: one of them leads."""
    if state.job is None:
        return ()
    mine = state.job.task.task
    return tuple(
        peer
        for peer in (observation.job.peers if observation.job is not None else ())
        if peer.summary.task < mine and is_living(peer)
    )


def is_living(peer: PeerView) -> bool:
    """Whether its supervisor still works on the job, as far as can be told."""
    if peer.summary.finished is not None:
        return False
    return peer.alive if peer.alive is not None else peer.heard_s < UNHEARD_S
