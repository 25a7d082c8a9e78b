"""One plan for all tasks of a job: taken over from its proposer, agreed to, launched. Pure.

It must not let two tasks launch an attempt under different plans: see core.job.peers.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record
from watchdog_train.core.fold.state import State
from watchdog_train.core.job import meeting
from watchdog_train.core.job.peers import PeerView, Proposal, called, own_proposal
from watchdog_train.core.job.together import in_one_boat, lower_peers
from watchdog_train.core.model import Plan, Why
from watchdog_train.core.recovery.plans import launcher_environment, with_arguments

_replace = msgspec.structs.replace
MOST_UNSEEN = 20
"""Checkpoints of a peer's record that are looked at."""


def received(observation: Observation, state: State) -> Action | None:
    """The best plan that any task proposes for an attempt after ours, if it is not ours already."""
    job = state.job
    if job is None:
        return None
    last = state.attempt.attempt if state.attempt is not None else 0
    peers = in_one_boat(observation, state)
    offers = [
        peer.summary.proposal
        for peer in peers
        if peer.summary.proposal is not None and peer.summary.proposal.plan.attempt > last
    ]
    own = own_proposal(state)
    if own is not None and own.plan.attempt > last:
        offers.append(own)
    # Whoever has launched one has seen all agree to it: then it is that one and no other.
    launched = {
        peer.summary.agreed.digest
        for peer in peers
        if peer.summary.agreed is not None
        and peer.summary.attempt == peer.summary.agreed.attempt > last
    }
    begun = [offer for offer in offers if offer.digest in launched]
    best = min(begun or offers, key=lambda offer: offer.order, default=None)
    if best is None or (job.agreed is not None and job.agreed.digest == best.digest):
        return None
    if best.plan.checkpoint is not None and job.task.coordination is not None:
        path = best.plan.checkpoint.path
        seen = dict(observation.job.visible).get(path) if observation.job is not None else None
        if not seen:
            return _unseen(path, state) if seen is False else None
    return Record(events=_take_over_plan(best, observation, state))


def _unseen(path: str, state: State) -> Action | None:
    """Our ranks could not load it: its proposer has to choose another one."""
    job = state.job
    if job is None or any(path == known for _, known, _ in job.unseen):
        return None
    who = f"{job.task.kind} {job.task.task} ({state.host})"
    why = Why("unseen", who=who)
    return Record(events=(e.CheckpointUnseen(task=job.task.task, path=path, why=why),))


def learn_unseen(observation: Observation, state: State) -> Action | None:
    """Checkpoints that a peer's machine does not see are passed over by whoever plans."""
    job = state.job
    if job is None or lower_peers(observation, state):
        return None
    known = {path for _, path, _ in job.unseen}
    for peer in in_one_boat(observation, state):
        for path in peer.summary.unseen[-MOST_UNSEEN:]:
            if path in known:
                continue
            who = called(peer.summary, job.task)
            why = Why("unseen", who=who)
            event = e.CheckpointUnseen(task=peer.summary.task, path=path, why=why)
            return Record(events=(event,))
    return None


def _take_over_plan(
    offer: Proposal, observation: Observation, state: State
) -> tuple[e.AnyEvent, ...]:
    taken: list[e.AnyEvent] = [
        e.PlanReceived(
            proposer=offer.proposer, plan_attempt=offer.plan.attempt, digest=offer.digest
        )
    ]
    if offer.delay_s > 0:
        until = observation.now + offer.delay_s
        taken.append(e.BackingOff(delay_s=offer.delay_s, until_mono=until, why=offer.plan.why))
    taken.append(e.PlanMade(plan=_for_this_task(offer, state)))
    return tuple(taken)


def _for_this_task(offer: Proposal, state: State) -> Plan:
    """The plan with our own command and our own launcher's variables; all else is the leader's."""
    plan, argv = offer.plan, state.argv
    if argv == offer.base_argv:
        argv = plan.argv
    elif (same := meeting.as_this_node(plan.argv, offer.base_argv, argv)) is not None:
        argv = same
    else:
        if plan.resume_arg:
            path = plan.checkpoint.path if plan.checkpoint is not None else ""
            argv = with_arguments(argv, plan.resume_arg, path)
        argv = meeting.with_options(argv, offer.env)
    env = {**launcher_environment(state, plan.attempt), **offer.env}
    return _replace(plan, argv=argv, env=env)


def launch_together(observation: Observation, state: State) -> Action | None:
    """What has to be recorded before this plan may be launched by all."""
    job = state.job
    if job is None or job.agreed is None:
        return None
    better = received(observation, state) or learn_unseen(observation, state)
    if better is not None:
        return better
    if may_launch(observation, state):
        return None
    peers = in_one_boat(observation, state)
    beyond = max((peer.summary.attempt for peer in peers), default=0)
    mine = job.agreed.proposer == job.task.task
    if mine and beyond >= job.agreed.attempt and state.next_plan is not None:
        # A peer has begun that number by itself before it knew of us: it needs a later one.
        plan = _replace(state.next_plan, attempt=beyond + 1)
        return Record(events=(e.PlanMade(plan=plan),))
    return None


def may_launch(observation: Observation, state: State) -> bool:
    """Every task has agreed to this very plan, or somebody has seen that and has launched it."""
    job, peers = state.job, in_one_boat(observation, state)
    if job is None or job.agreed is None:
        return True
    if any(peer.summary.agreed == job.agreed == _launched(peer) for peer in peers):
        return True
    all_heard = len(peers) == job.task.met - 1
    return all_heard and all(peer.summary.agreed == job.agreed for peer in peers)


def _launched(peer: PeerView) -> object:
    agreed = peer.summary.agreed
    return agreed if agreed is not None and agreed.attempt == peer.summary.attempt else None
