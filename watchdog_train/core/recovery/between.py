"""Between two attempts: is it over, and if not, which checkpoint and settings come next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Launch, Observation, Record, Wait
from watchdog_train.core.commands import before_restart
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.guilty import of_the_culprit, with_guilty_nodes
from watchdog_train.core.job.meeting import across_of, meet
from watchdog_train.core.model import Plan, Why, said, written
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import gpu_memory, keeping, kill, ladder, outliving, room, scan
from watchdog_train.core.recovery.giving_up import give_up
from watchdog_train.core.recovery.outcome import EXIT_RETRY_ELSEWHERE, finish
from watchdog_train.core.recovery.remedy_spec import RemedySpec
from watchdog_train.core.requests import asking

Remedies = Mapping[str, RemedySpec]


def between_attempts(
    observation: Observation, state: State, policy: Policy, remedies: Remedies
) -> Action | None:
    """Launch what is planned, plan what is due, or finish; None while an attempt is under way."""
    attempt, backing_off = state.attempt, scan.backoff(observation, state)
    if attempt is None:
        if state.stop is not None or state.given_up is not None:
            return Record(events=(with_guilty_nodes(finish(state), state),))
        if state.next_plan is not None and backing_off is not None:
            return backing_off
        if state.next_plan is not None:
            return Launch(plan=state.next_plan, hosts=observation.hosts)
        first = ladder.first_plan(state, policy, remedies)
        return Record(events=(e.PlanMade(plan=meet(first, state, observation.other_port)),))
    observing = policy.recovery.observe and attempt.ended and not state.just_reopened
    if not (attempt.settled or observing):
        return None
    unknown = tuple(
        e.AttemptExited(
            where=written(tree.host),
            code=None,
            signal=None,
            how_known="gone",
            step=attempt.last_step,
        )
        for tree in attempt.trees
        if tree.gone and not tree.ended
    )
    if unknown:
        return Record(events=unknown)
    if _is_over(state, policy):
        if observing and kill.live(observation.sample):
            since = attempt.ended_mono
            waits = outliving.wait_for(observation, state, policy.timing, since)
            if waits is not None:
                return waits
        if asking.looks_for_proof(observation, state):
            return Wait(until=observation.now + 0.05)
        return Record(events=(with_guilty_nodes(finish(state), state),))
    if state.next_plan is not None:
        return (
            backing_off
            or gpu_memory.before_launch(observation, state, policy)
            or room.before_launch(observation, state, policy)
            or keeping.before_launch(observation, state, policy)
            or before_restart(observation, state, policy)
            or Launch(plan=state.next_plan, hosts=observation.hosts)
        )
    return _plan_again(observation, state, policy, remedies)


def scan_early(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Scan for checkpoints once nobody is left to write one, beside evidence and keeper."""
    attempt = state.attempt
    if attempt is None or not attempt.ended or attempt.settled:
        return None
    if observation.survey is not None or "survey" in observation.running or observation.short:
        return None
    if not kill.nobody_left(observation) or _is_over(state, policy):
        return None
    return scan.start(observation, state)


def _is_over(state: State, policy: Policy) -> bool:
    attempt = state.attempt
    if attempt is None or state.stop is not None or state.given_up is not None:
        return True
    if state.just_reopened:
        return False
    if state.survivors or attempt.cannot_start or policy.recovery.observe:
        return True
    stall = state.last_stall if attempt.stall_id is not None else None
    if stall is not None and stall.basis == "finishing":
        return True
    return attempt.code == 0 and attempt.stall_id is None


def _plan_again(
    observation: Observation, state: State, policy: Policy, remedies: Remedies
) -> Action:
    """Choose the checkpoint and the settings of the next attempt, or give up, with the reasons."""
    if observation.survey is None:
        if "survey" in observation.running:
            return Wait(until=observation.now + 0.05)
        return room.before_survey(observation, state, policy) or scan.start(observation, state)
    if observation.survey.failed:
        return scan.failed(observation, state, policy)
    step = ladder.next_step(state, observation.survey, policy, remedies)
    if isinstance(step, ladder.Stop):
        elsewhere = step.exit_code == EXIT_RETRY_ELSEWHERE
        return give_up(
            step.why,
            step.exit_code,
            step.outcome,
            offers=step.offers,
            guilty=of_the_culprit(state) if elsewhere else (),
            consumes=("survey",),
        )
    restoring = keeping.restore(observation, state, step.plan, policy.recovery.resume_arg)
    if restoring is not None:
        return restoring
    events: list[e.AnyEvent] = [*step.rejected]
    if observation.survey.cut:
        why = Why("scan-cut", problem=observation.survey.problem or "")
        events.append(e.Noticed(kind="scan", pids=(), why=why))
    if (chosen := step.chosen) is not None:
        events.append(
            e.CheckpointChosen(
                path=chosen.path,
                format=chosen.format,
                step=chosen.step,
                how_checked=chosen.how_checked,
                why=said(chosen.said),
            )
        )
    # Counted from the end: evidence and scan are a part of it. After a boot the clock began anew.
    ended = state.attempt.ended_mono if state.attempt is not None else observation.now
    until = min(ended, observation.now) + step.delay_s
    left_s = until - observation.now
    if left_s > 0:
        # Before the plan: a supervisor that dies between the two must not leave a plan that
        # the next one launches at once.
        events.append(e.BackingOff(delay_s=left_s, until_mono=until, why=step.why))
    port = observation.other_port
    nodes = across_of(state) is not None
    plan = meet(step.plan, state, port) if nodes else _meeting_elsewhere(step.plan, port)
    events.append(e.PlanMade(plan=plan))
    return Record(events=tuple(events), consumes=("survey",))


def _meeting_elsewhere(plan: Plan, port: int | None) -> Plan:
    """The plan with another MASTER_PORT, where somebody else has taken the one that is set."""
    if port is None:
        return plan
    why = plan.why.plus(Why("port-taken", count=port))
    return msgspec.structs.replace(plan, env={**plan.env, "MASTER_PORT": str(port)}, why=why)
