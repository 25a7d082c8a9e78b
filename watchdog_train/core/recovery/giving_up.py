"""The actions that say that no further attempt is due. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Observation, Record, TaskName
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import CheckpointRef, GuiltyNode, Outcome, Why
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import kill
from watchdog_train.core.recovery.outcome import EXIT_GAVE_UP
from watchdog_train.core.recovery.plans import sure_option, with_arguments
from watchdog_train.core.recovery.remedy_spec import RemedySpec


def give_up(
    why: Why,
    exit_code: int,
    outcome: Outcome = "gave_up",
    *,
    offers: tuple[str, ...] = (),
    guilty: tuple[GuiltyNode, ...] = (),
    consumes: tuple[TaskName, ...] = (),
) -> Record:
    """No further attempt, for the whole job; the arguments are those of the event."""
    event = e.GivenUp(why=why, exit_code=exit_code, outcome=outcome, offers=offers, guilty=guilty)
    return Record(events=(event,), consumes=consumes)


def stops_what_began_anew(policy: Policy) -> bool:
    """Whether an attempt that began again instead of resuming is stopped."""
    return policy.recovery.on_not_resumed == "stop" and not policy.recovery.observe


def stop_what_began_anew(
    observation: Observation, state: State, policy: Policy, _remedies: Mapping[str, RemedySpec]
) -> Action | None:
    """Kill an attempt that would save over better checkpoints than its own, and end the run.

    Without SIGTERM, on which many trainings save; also one that was asked to save and stop.
    """
    attempt = state.attempt
    if attempt is None or attempt.resume != "contradicted" or attempt.plan.checkpoint is None:
        return None
    if attempt.ended or not stops_what_began_anew(policy):
        return None
    if state.given_up is None and state.stop is None:
        why = _began_anew(attempt.attempt, attempt.plan.checkpoint, observation, state)
        return give_up(why, EXIT_GAVE_UP)
    for tree in attempt.trees:
        sample = observation.of(tree.host).sample
        gentle = tree.kill is None or tree.kill.sequence == "stop"
        if gentle and kill.live(sample):
            why = Why("not-resumed", attempts=(attempt.attempt,))
            return kill.begin("now", state, sample, why)
    return None


def _began_anew(attempt: int, used: CheckpointRef, observation: Observation, state: State) -> Why:
    options = observation.resume_options or state.resume_options
    if options:
        template = sure_option(options) or options[0]
        command = shlex.join(with_arguments(state.argv, template, used.path))
        way = Why("resume-by-option", option=template, who=command)
    else:
        way = Why("resume-by-script", path=used.path, who=state.run_id)
    copies = [Why("copy-kept", path=x.copy) for x in state.kept if x.path == used.path]
    return Why("stopped-anew", attempts=(attempt,), step=used.step, path=used.path).plus(
        *copies[:1], way, Why("allow-anew")
    )
