"""Where stalls come faster than saves: ask the training for a checkpoint in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_train.core.actions import Action, Observation
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import RemedyUse, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.history import Case, ids
from watchdog_train.core.recovery.remedy_spec import RemedySpec
from watchdog_train.core.requests import asking

ID = "save-sooner"
SOONEST_S = 10.0
COST_FACTOR = 10.0
"""A save may take a tenth of the time."""


def save_sooner(case: Case, catalogue: Mapping[str, RemedySpec]) -> tuple[RemedyUse, ...]:
    """The remedy, for a training that listens and has stalled after steps that nobody saved."""
    attempt, spec = case.attempt, catalogue.get(ID)
    if spec is None or ID in case.policy.recovery.without_remedies or ID in case.spoiled:
        return ()
    if any(use.id == ID for use in case.effect) or not (case.stalled and attempt.can_save):
        return ()
    began, goes_on = attempt.plan.checkpoint, case.choice.chosen
    if attempt.last_step is None or attempt.first_step is None:
        return ()
    if goes_on is not None and (began is None or goes_on.path != began.path):
        return ()
    why = Why("stalled-before-save", attempts=(attempt.attempt,))
    return (RemedyUse(id=ID, kind=spec.kind, why=why),)


def ask(
    observation: Observation, state: State, _policy: Policy, _remedies: Mapping[str, RemedySpec]
) -> Action | None:
    """Ask for a save when about half the time is over after which an attempt has stalled."""
    attempt = state.attempt
    if attempt is None or attempt.ended or attempt.first_step_s is None:
        return None
    if ID not in ids(attempt.plan) or state.kill is not None or state.stop is not None:
        return None
    if attempt.stall_id is not None or observation.verdict.kind != "alive":
        return None
    request = asking.ask_save(observation, by=f"the remedy {ID}")
    every_s = interval_s(state, observation)
    if not request.can_be_asked or every_s is None:
        return None
    waits_s = observation.wall - state.save_wall
    # One made to an earlier attempt will never be answered.
    ours = waits_s < observation.now - attempt.launching_mono
    if state.save_requested > state.save_proven and ours and waits_s < asking.SAVE_LATE_S:
        return None
    since_s = observation.now - (attempt.launching_mono + attempt.first_step_s)
    since_s = min(since_s, waits_s, observation.wall - _newest_save(observation))
    return request if since_s >= every_s else None


def interval_s(state: State, observation: Observation) -> float | None:
    """Seconds from one save to the next, None where no attempt has stalled after a step."""
    times = [found for one in state.attempts if (found := _trained_s(one, state)) is not None]
    if not times:
        return None
    # From the request on: the wait for the end of a step is part of what a save costs.
    cost_s = max(0.0, _newest_save(observation) - state.save_wall) if state.save_requested else 0.0
    return max(SOONEST_S, min(times) / 2, COST_FACTOR * cost_s)


def _newest_save(observation: Observation) -> float:
    """Unix seconds of the newest save of this attempt that a hook has noted, 0 before the first."""
    return max((save.saved_at for save in observation.saves), default=0.0)


def _trained_s(attempt: AttemptRecord, state: State) -> float | None:
    """How long an attempt trained before it stalled."""
    stall = next((one for one in state.stalls if one.id == attempt.stall_id), None)
    if stall is None or attempt.first_step_s is None:
        return None
    end = stall.declared_mono - (stall.age_s or 0.0)
    return max(0.0, end - attempt.launching_mono - attempt.first_step_s)
