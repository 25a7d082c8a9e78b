"""Requests to the ranks of several tasks: all get them, one proof is for all. Pure.

Ranks of several tasks can only agree on a step when each of them has the request (client.agree).
So a request to one task is taken over by all others, under the same number; a stop is taken over
by core.job.together. Where one task's ranks do not listen, nobody is asked.
"""

from __future__ import annotations

from typing import Literal

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, AskSave, Observation, Record
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.peer_words import SaveWord
from watchdog_train.core.job.peers import PeerView
from watchdog_train.core.job.together import UNHEARD_S, in_one_boat, missing_words, name_of
from watchdog_train.core.model import Sample
from watchdog_train.core.policy import Policy

OTHERS_PROOF_S = 10.0
"""After the end, for the task whose rank has saved to find the checkpoint whole."""


def ask_save(observation: Observation, state: State, by: str) -> AskSave:
    """A request to save; whether everybody listens is part of it."""
    can = can_save(observation.sample) and who_cannot("save", observation, state) is None
    newest = max((word.number for _, word in _words(observation, state)), default=0)
    return AskSave(can_be_asked=can, by=by, number=newest + 1 if newest else 0)


def can_save(sample: Sample) -> bool:
    """Whether a rank of this task listens to requests to save."""
    return any(member.slot is not None and member.slot.can_save for member in sample.members)


def who_cannot(what: Literal["save", "stop"], observation: Observation, state: State) -> str | None:
    """The tasks of one world, this one aside, that cannot be asked; None where there are none."""
    peers, job = in_one_boat(observation, state), state.job
    if job is None or not job.together:
        return None
    deaf = tuple(peer.summary.task for peer in peers if not _listens(what, peer))
    unheard = job.task.met - 1 - len(peers)
    return missing_words(deaf, unheard, observation, state) or None


def follow_save(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """A request to one task is one to all."""
    job, attempt = state.job, state.attempt
    if job is None or attempt is None or not attempt.launched or attempt.ended:
        return None
    if state.stop is not None or attempt.stall_id is not None:
        return None
    found = [
        (task, word)
        for task, word in _words(observation, state)
        if word.can_be_asked and word.number > state.save_requested
    ]
    if not found:
        return None
    task, word = max(found, key=lambda one: one[1].number)
    by = word.by
    if not word.relayed:
        by = f"{name_of(task, observation, state)}: {by}"
    return AskSave(
        can_be_asked=can_save(observation.sample), by=by, number=word.number, relayed=True
    )


def take_proof(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """Where another task's supervisor has found the checkpoint whole, it is proven here, too."""
    for task, word in _words(observation, state):
        if word.saved is not None and word.proven >= state.save_requested > state.save_proven:
            proven = e.SaveProven(
                sequence=state.save_requested, path=word.saved, step=word.saved_step, task=task
            )
            return Record(events=(proven,))
    asked = state.stop_asked
    if asked is None or not asked.expects_save or asked.saved is not None:
        return None
    for peer in in_one_boat(observation, state):
        stop = peer.summary.stop
        if stop is not None and stop.saved is not None:
            proven = e.SaveProven(
                sequence=asked.sequence,
                path=stop.saved,
                step=stop.saved_step,
                request="stop",
                task=peer.summary.task,
            )
            return Record(events=(proven,))
    return None


def waits_for_proof(observation: Observation, state: State) -> bool:
    """Whether another task may still find out what was saved before the end of this one."""
    asked, attempt = state.stop_asked, state.attempt
    if asked is None or not asked.expects_save or asked.saved is not None or attempt is None:
        return False
    if asked.answered_mono is None or attempt.code != 0:
        return False
    saved_here = observation.last_save is not None and observation.last_save.t >= asked.wall
    if saved_here or observation.now > attempt.ended_mono + OTHERS_PROOF_S:
        return False
    peers = in_one_boat(observation, state)
    return any(p.summary.finished is None and p.heard_s < UNHEARD_S for p in peers)


def _words(observation: Observation, state: State) -> tuple[tuple[int, SaveWord], ...]:
    """What the other tasks say of saves of this very attempt."""
    attempt = state.attempt.attempt if state.attempt is not None else 0
    return tuple(
        (peer.summary.task, peer.summary.save)
        for peer in in_one_boat(observation, state)
        if peer.summary.save is not None and peer.summary.save.attempt == attempt
    )


def _listens(what: Literal["save", "stop"], peer: PeerView) -> bool:
    signs = peer.summary.signs
    return signs.can_save if what == "save" else signs.can_stop
