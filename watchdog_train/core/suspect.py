"""From a verdict to a stall: suspect, look, then decide with patience. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, StartEvidence, StartLook, Wait
from watchdog_train.core.detection.budgets import patience_s
from watchdog_train.core.detection.detect import BUSY, Verdict
from watchdog_train.core.fold.state import LASTING, State
from watchdog_train.core.model import Basis, Patience, Why, said
from watchdog_train.core.notices.milestones import milestones_event
from watchdog_train.core.notices.news import progress_event
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.remedy_spec import RemedySpec

ASKS = "it waits for somebody to type"
FINISHING_PATIENCE_S = 60.0
"""Uploads wait quietly for a server; nothing is lost by waiting, for training is over."""
SURER: tuple[Patience, ...] = ("proven", "input", "healthy", "may-end", "unknown")
"""Of the looks at several machines the first of these counts."""


def next_stall_id(observation: Observation, state: State) -> str:
    """Bundles are numbered from 0001 through the whole run; a number on disk is never reused."""
    return f"{max(len(state.stalls), observation.bundles) + 1:04d}"


def watch(
    observation: Observation, state: State, policy: Policy, _remedies: Mapping[str, RemedySpec]
) -> Action | None:
    """What the verdict of this moment asks for."""
    attempt = state.attempt
    if attempt is None or not attempt.launched or attempt.ended or state.stop is not None:
        return None
    verdict = observation.verdict
    match verdict.kind:
        case "alive":
            silence = set(state.notices) - set(LASTING)
            if state.suspicion or silence or state.muted:
                return Record(events=(e.SuspicionEnded(why=Why("progress")),), consumes=("look",))
            return None
        case "stopped" | "input":
            if verdict.kind in state.notices:
                return None
            noticed = e.Noticed(kind=verdict.kind, pids=verdict.pids, why=verdict.why)
            return Record(events=(noticed,))
        case "stall":
            return None if state.muted else _declare(observation, state, verdict.basis, verdict.why)
        case "suspect":
            if state.muted:
                return None
            if verdict.basis in BUSY:
                return _busy(observation, state, verdict)
            return _quiet(observation, state, policy, verdict)


def _busy(observation: Observation, state: State, verdict: Verdict) -> Action | None:
    """Over the hard limit but working, or held by the kernel: dumped, said once, never killed."""
    if state.suspicion != verdict.basis:
        # Also after a quiet moment: its patience must not go on counting while the job works.
        return Record(events=(_suspected(verdict),))
    kind = BUSY[verdict.basis]
    printing = kind == "busy" and verdict.prints
    word: e.NoticeKind = "no-progress" if printing else kind
    if kind in state.notices or (kind == "busy" and "no-progress" in state.notices):
        return None
    if observation.is_collecting or any(stall.collecting for stall in state.stalls):
        return Record(events=(e.Noticed(kind=word, pids=verdict.pids, why=verdict.why),))
    return StartEvidence(
        host=observation.trees[0].host,
        stall_id=next_stall_id(observation, state),
        bundle_why="manual",
        kind=kind,
        verdict=verdict,
    )


def _quiet(
    observation: Observation, state: State, policy: Policy, verdict: Verdict
) -> Action | None:
    if state.suspicion != shown_basis(verdict):
        # Also when the rest of the job falls silent, too: patience begins then, with a new look.
        return Record(events=(_suspected(verdict),), consumes=("look",))
    look = state.look
    if look is None:
        for sight in observation.trees:
            if sight.look is None and "look" not in sight.running:
                return StartLook(host=sight.host, verdict=verdict)
        if any(sight.look is None for sight in observation.trees):
            return Wait(until=observation.now + 0.1)
        return Record(events=(_looked(observation),), consumes=("look",))
    if look.patience == "input":
        if "input" in state.notices:
            return None
        return Record(events=(e.Noticed(kind="input", pids=verdict.pids, why=said(ASKS)),))
    why = verdict.why.plus(*((look.why,) if look.why is not None else ()))
    if look.patience == "proven":
        basis: Basis = "proven" if verdict.basis == "quiet" else verdict.basis
        return _declare(observation, state, basis, why)
    if verdict.alone or verdict.quiet_at_work:
        return None
    waited_s = observation.now - state.suspicion_mono
    allowed_s = _patience_s(state, policy, verdict)
    if waited_s < allowed_s or verdict.quiet_s < verdict.least_s:
        return None
    why = why.plus(Why("waited", seconds=waited_s))
    return _declare(observation, state, verdict.basis, why)


def shown_basis(verdict: Verdict) -> Basis:
    """The basis of a suspicion."""
    return "alone" if verdict.alone else verdict.basis


def _suspected(verdict: Verdict) -> e.Suspected:
    return e.Suspected(
        basis=shown_basis(verdict),
        phase=verdict.phase,
        ranks=verdict.ranks,
        age_s=round(verdict.age_s, 1),
        why=verdict.why,
    )


def _looked(observation: Observation) -> e.Looked:
    # What can never end on one machine never ends for those that wait for it.
    looks = [sight.look for sight in observation.trees if sight.look is not None]
    result = min(looks, key=lambda look: SURER.index(look.patience), default=None)
    if result is None or result.explanation is None:
        problem = result.problem if result is not None else None
        return e.Looked(patience="unknown", why=said(problem) if problem else Why("no-stacks"))
    return e.Looked(patience=result.patience, explanation=result.explanation)


def _patience_s(state: State, policy: Policy, verdict: Verdict) -> float:
    attempt = state.attempt
    look = state.look
    if verdict.basis == "finishing" and not verdict.stirs:
        return FINISHING_PATIENCE_S
    through_s = 0.0
    if verdict.may_be_through:
        finishing_s = policy.detection.phases.finishing.soft_s
        through_s = finishing_s + FINISHING_PATIENCE_S - verdict.soft_s
    startup_s = attempt.first_step_s if attempt is not None and attempt.first_step_s else 0.0
    usual_s = patience_s(
        phase=verdict.phase,
        steady=verdict.steady,
        stirs=verdict.stirs,
        look=look.patience if look is not None else "unknown",
        cost_s=startup_s + verdict.unsaved_s,
        detection=policy.detection,
    )
    return max(usual_s, through_s)


def _declare(observation: Observation, state: State, basis: Basis, why: Why) -> Record:
    verdict = observation.verdict
    declared = e.StallDeclared(
        stall_id=next_stall_id(observation, state),
        basis=basis,
        phase=verdict.phase,
        ranks=verdict.ranks,
        age_s=round(verdict.age_s, 1),
        why=why,
    )
    progress = progress_event(observation.sample, state, observation.now)
    return Record(events=(progress, *milestones_event(observation, state), declared))
