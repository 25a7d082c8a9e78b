"""Between two attempts of a job: wait for each other, one plan for all, and one end for all. Pure.

Rules of decide(), before those of a single run. The leader plans with what a single run plans with
(core.recovery.between); the others wait for its plan, take it over and say so, and all launch it.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, Wait
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State
from watchdog_train.core.job.agree import launch_together, learn_unseen, may_launch, received
from watchdog_train.core.job.guilty import absent_ones
from watchdog_train.core.job.joint import diagnose_together
from watchdog_train.core.job.peers import (
    PeerView,
    bundle_of,
    called,
    is_done,
    trouble_of,
)
from watchdog_train.core.job.together import (
    LOOK_AGAIN_S,
    announced,
    in_one_boat,
    is_living,
    lower_peers,
    meets_machines,
    missing_words,
    name_of,
)
from watchdog_train.core.model import Explanation, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE

_replace = msgspec.structs.replace


def confer(observation: Observation, state: State, policy: Policy) -> Action | None:
    """What a task whose attempt is over does before the rules of a single run may go on."""
    attempt = state.attempt
    if attempt is None or not attempt.tree_gone or not attempt.ended:
        return None
    if state.stop is not None or state.given_up is not None or state.survivors:
        return None
    if attempt.how_known == "not-started" or policy.recovery.observe:
        return None
    if state.just_reopened:
        waits = _wait_for_all(observation, state, policy)
        if waits is not None:
            return waits
    peers = in_one_boat(observation, state)
    if not peers:
        return _wait_to_hear(observation, state, policy)
    agreed = state.job is not None and state.job.agreed
    if agreed and agreed.attempt > attempt.attempt:
        return launch_together(observation, state) or _end_or_wait(observation, state, policy)
    if state.just_reopened:
        return _end_for_all(observation, state, policy) or _plan_for_all(observation, state)
    if is_done(state) and attempt.cause is None:
        cause = announced(observation, state)
        if cause is None or cause.over:
            return _wait_for_the_rest(observation, state, policy)
        return Record(events=(cause,))
    if is_done(state) and attempt.cause is not None and announced(observation, state) is None:
        task = attempt.cause.task
        why = Why("taken-back", who=name_of(task, observation, state))
        return Record(events=(e.PeerRetracted(task=task, why=why),))
    return (
        _end_for_all(observation, state, policy)
        or _plan_for_all(observation, state)
        or diagnose_together(observation, state)
    )


def _wait_to_hear(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Where machines meet, hearing of nobody is no reason to go on alone: the place may be gone."""
    attempt = state.attempt
    if attempt is None or not meets_machines(state) or is_done(state):
        return None
    if observation.now - attempt.ended_mono < policy.job.plan_s:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    why = Why("job-unheard", limit_s=policy.job.plan_s)
    return give_up(why, EXIT_RETRY_ELSEWHERE)


def _wait_for_all(observation: Observation, state: State, policy: Policy) -> Action | None:
    """The tasks of a job that has ended are restarted one after another: none plans alone."""
    job, attempt = state.job, state.attempt
    if job is None or attempt is None or not job.together:
        return None
    heard = len(in_one_boat(observation, state))
    unheard = job.task.met - 1 - heard
    if unheard <= 0:
        return None
    if observation.now - attempt.ended_mono < policy.job.plan_s:
        return Wait(until=observation.now + LOOK_AGAIN_S)
    who = missing_words((), unheard, observation, state)
    why = Why("not-come", who=who, limit_s=policy.job.plan_s).plus(Why("restart-every-task"))
    return give_up(why, EXIT_RETRY_ELSEWHERE)


def _wait_for_the_rest(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Our training has ended well: while a peer works it may still need us for a restart."""
    rest = [
        peer
        for peer in in_one_boat(observation, state)
        if not peer.summary.done
        and peer.summary.finished is None
        and peer.heard_s < policy.job.plan_s
    ]
    if not rest:
        return None
    if "peers" not in state.notices:
        numbers = tuple(peer.summary.task for peer in rest)
        kind = state.job.task.kind if state.job is not None else "task"
        who = missing_words(numbers, 0, observation, state)
        why = Why("waits-for-peers", option=kind, who=who)
        return Record(events=(e.Noticed(kind="peers", pids=(), why=why),))
    return Wait(until=observation.now + LOOK_AGAIN_S)


def _end_for_all(observation: Observation, state: State, policy: Policy) -> Action | None:
    """The job cannot go on: all tasks end with the same code."""
    peers, job, attempt = in_one_boat(observation, state), state.job, state.attempt
    if job is None or attempt is None:
        return None
    over = ended_elsewhere(observation, state)
    if over is not None:
        return over
    unheard = job.task.met - 1 - len(peers)
    if job.task.met < job.task.tasks:
        beyond = job.task.tasks - job.task.met
        why = Why("tasks-elsewhere", count=beyond, of=job.task.tasks)
        return give_up(why, EXIT_RETRY_ELSEWHERE)
    since = max(attempt.ended_mono, attempt.cause.mono if attempt.cause is not None else 0.0)
    late = observation.now - since > policy.job.plan_s
    if unheard > 0 or late:
        # Whoever has been heard of has its time; who has not is missing at once.
        absent = tuple(peer for peer in peers if late and not _has_come(peer, observation, state))
        numbers = tuple(peer.summary.task for peer in absent)
        who = missing_words(numbers, unheard, observation, state) or "the job"
        why = Why("no-plan", who=who)
        if late:
            why = why.plus(Why("waited-limit", limit_s=policy.job.plan_s))
        guilty = absent_ones(absent, state, Why("no-plan", who="it"))
        return give_up(why, EXIT_RETRY_ELSEWHERE, guilty=guilty)
    return None


def ended_elsewhere(observation: Observation, state: State) -> Action | None:
    """A peer has given up, or has ended: there is no further attempt for anybody."""
    job, peers = state.job, in_one_boat(observation, state)
    if job is None:
        return None
    for peer in peers:
        given = peer.summary.gave_up
        if given is not None:
            why = given.why
            if why.code != "peer":
                why = Why("peer", who=called(peer.summary, job.task), because=(why,))
            return give_up(why, given.exit_code, given.outcome)
    left = next((peer.summary for peer in peers if peer.summary.finished is not None), None)
    if left is None:
        return None
    who = called(left, job.task)
    why = Why("peer-ended", who=who, exit=left.finished)
    code = left.finished or EXIT_RETRY_ELSEWHERE
    return give_up(why, code, "failed" if code != EXIT_RETRY_ELSEWHERE else "gave_up")


def _has_come(peer: PeerView, observation: Observation, state: State) -> bool:
    """Whether it has done its part of the next plan, as far as it could."""
    summary, agreed = peer.summary, state.job.agreed if state.job is not None else None
    attempt = state.attempt.attempt if state.attempt is not None else 0
    if agreed is not None and agreed.attempt > attempt:
        return summary.agreed == agreed
    leads = not lower_peers(observation, state)
    return summary.gone and (leads or peer not in lower_peers(observation, state))


def _plan_for_all(observation: Observation, state: State) -> Action | None:
    """Take over the leader's plan; None when it is on us to make it."""
    found = received(observation, state) or learn_unseen(observation, state)
    if found is not None:
        return found
    if lower_peers(observation, state):
        return Wait(until=observation.now + LOOK_AGAIN_S)
    base = state.job.base if state.job is not None else 0
    for peer in in_one_boat(observation, state):
        if is_living(peer) and not (peer.summary.gone and peer.summary.attempt >= base):
            return Wait(until=observation.now + LOOK_AGAIN_S)
    return None


def _end_or_wait(observation: Observation, state: State, policy: Policy) -> Action | None:
    if may_launch(observation, state):
        return None
    waits = Wait(until=observation.now + LOOK_AGAIN_S)
    return _end_for_all(observation, state, policy) or waits


def as_one_job(observation: Observation, state: State) -> State:
    """The state as the ladder has to see it: what ended the attempt may have been another task."""
    peers = in_one_boat(observation, state)
    if not peers or state.attempt is None:
        return state
    if is_done(state) and state.attempt.cause is None:
        return state
    attempts = [_by_its_cause(attempt) for attempt in state.attempts]
    highest = max(peer.summary.attempt for peer in peers)
    last = attempts[-1] = _replace(attempts[-1], attempt=max(highest, attempts[-1].attempt))
    bundle = bundle_of(state) or StallRecord(
        id=last.stall_id or last.crash_id or "",
        why="stall",
        attempt=last.attempt,
        at=0.0,
        declared_mono=0.0,
        verdict=last.cause.why if last.cause is not None else Why("unknown"),
    )
    explanation = _best_explanation(state, peers)
    stalls = (
        *(stall for stall in state.stalls if stall.id != bundle.id),
        _replace(bundle, explanation=explanation),
    )
    return _replace(state, attempts=tuple(attempts), stalls=stalls)


def _by_its_cause(attempt: AttemptRecord) -> AttemptRecord:
    """An attempt that was ended because of a peer, as if that had happened here."""
    cause = attempt.cause
    if cause is None:
        return attempt
    bundle = attempt.stall_id or attempt.crash_id or f"task-{cause.task}"
    if cause.kind != "crash":
        return _replace(attempt, stall_id=bundle)
    trees = tuple(
        _replace(tree, code=cause.code, signal=cause.signal, ended=True) for tree in attempt.trees
    )
    return _replace(attempt, stall_id=None, crash_id=bundle, trees=trees)


def _best_explanation(state: State, peers: tuple[PeerView, ...]) -> Explanation | None:
    """Of the task that crashed, else the surest: most tasks of a hung job only wait for one."""
    attempt = state.attempt
    cause = attempt.cause if attempt is not None else None
    found = {peer.summary.task: peer.summary.trouble for peer in peers}
    if state.job is not None:
        found[state.job.task.task] = trouble_of(state)
    if cause is not None and cause.kind == "crash":
        guilty = found.get(cause.task)
        return guilty.explanation if guilty is not None else None
    mine, bundle = trouble_of(state), bundle_of(state)
    if mine is not None and mine.kind == "crash":
        return mine.explanation
    joint = bundle.explanation if bundle is not None and bundle.joint else None
    if joint is not None and (joint.root is not None or joint.knot):
        return joint
    told = [trouble.explanation for trouble in found.values() if trouble is not None]
    known = [one for one in told if one is not None]
    return max(known, key=lambda one: (one.root is not None, one.confidence), default=None)
