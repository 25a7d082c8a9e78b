"""Between two attempts: is it over, and if not, which checkpoint and settings come next. Pure.

Nothing is launched while it could not be started or recorded, or while its next save would be torn
as the last one: a full disk often has room again a minute later.

No attempt is planned from a failed scan of checkpoints: a training that begins at step 0 for it
overwrites its own checkpoints. It gets more time, what the hooks noted, a wait, and at last 75.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, Launch, Observation, Record, StartSurvey, Wait
from watchdog_train.core.commands import before_restart
from watchdog_train.core.fold.state import State
from watchdog_train.core.job.machines import of_the_culprit, with_guilty_nodes
from watchdog_train.core.job.rendezvous import across_of, meet
from watchdog_train.core.model import ScanLevel, Value, Why, said, written
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import daemons, gpu_memory, keeping, kill, ladder
from watchdog_train.core.recovery.outcome import finish, give_up
from watchdog_train.core.recovery.remedies import Remedies
from watchdog_train.core.requests import asking
from watchdog_train.errors import EXIT_RETRY_ELSEWHERE

QUICK_TRIES = 3
"""At once: a usual scan, one with more time, one of what the hooks noted."""
WAIT_FIRST_S, WAIT_MOST_S = 15.0, 300.0
"""Before the next pair of tries, with more time and of what the hooks noted; doubles."""
ROOM_LOOK_S = 1.0


def between_attempts(
    observation: Observation, state: State, policy: Policy, remedies: Remedies
) -> Action | None:
    """Launch what is planned, plan what is due, or finish; None while an attempt is under way."""
    attempt, backing_off = state.attempt, _backoff(observation, state)
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
            waits = daemons.wait_for(observation, state, policy.timing, since)
            if waits is not None:
                return waits
        if asking.looks_for_proof(observation, state):
            return Wait(until=observation.now + 0.05)
        return Record(events=(with_guilty_nodes(finish(state), state),))
    if state.next_plan is not None:
        return (
            backing_off
            or gpu_memory.before_launch(observation, state, policy)
            or _room_to_launch(observation, state, policy)
            or keeping.before_launch(observation, state, policy)
            or before_restart(observation, state, policy)
            or Launch(plan=state.next_plan, hosts=observation.hosts)
        )
    return _plan_again(observation, state, policy, remedies)


def scan_early(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Scan for checkpoints once all writers have exited, parallel to evidence and keeper."""
    attempt = state.attempt
    if attempt is None or not attempt.ended or attempt.settled:
        return None
    if observation.survey is not None or "survey" in observation.running or observation.short:
        return None
    if not kill.nobody_left(observation) or _is_over(state, policy):
        return None
    return _start_scan(observation, state)


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
    if observation.survey is None:
        if "survey" in observation.running:
            return Wait(until=observation.now + 0.05)
        lacking = observation.short
        waits = lacking and _wait_for_room(lacking, observation, state, policy)
        return waits or _start_scan(observation, state)
    if observation.survey.failed:
        return _failed_scan(observation, state, policy)
    step = ladder.next_step(state, observation.survey, policy, remedies)
    if isinstance(step, e.GivenUp):
        if step.exit_code == EXIT_RETRY_ELSEWHERE:
            step = msgspec.structs.replace(step, guilty=of_the_culprit(state))
        return Record(events=(step,), consumes=("survey",))
    restoring = keeping.restore(observation, state, step.plan, policy.recovery.resume_arg)
    if restoring is not None:
        return restoring
    events: list[e.AnyEvent] = [*step.choice.rejected]
    if observation.survey.cut:
        why = Why("scan-cut", problem=observation.survey.problem or "")
        events.append(e.Noticed(kind="scan", pids=(), why=why))
    if observation.survey.warnings and "plugin" not in state.notices:
        why = Why("scan-cut", problem="; ".join(observation.survey.warnings))
        events.append(e.Noticed(kind="plugin", pids=(), why=why))
    if (chosen := step.choice.chosen) is not None:
        events.append(
            e.CheckpointChosen(
                path=chosen.path,
                format=chosen.format,
                step=chosen.step,
                how_checked=chosen.how_checked,
                why=said(chosen.said),
            )
        )
    # Counted from the end, so evidence and scan are included. After a boot the clock restarts.
    ended = state.attempt.ended_mono if state.attempt is not None else observation.now
    until = min(ended, observation.now) + step.delay_s
    left_s = until - observation.now
    if left_s > 0:
        # Before the plan: a supervisor that dies between the two must not leave a plan that
        # the next one launches at once.
        events.append(e.BackingOff(delay_s=left_s, until_mono=until, why=step.plan.why))
    port = observation.other_port
    plan = step.plan
    if across_of(state) is not None:
        plan = meet(plan, state, port)
    elif port is not None:
        env, why = {**plan.env, "MASTER_PORT": str(port)}, Why("port-taken", count=port)
        plan = msgspec.structs.replace(plan, env=env, why=plan.why.plus(why))
    events.append(e.PlanMade(plan=plan))
    return Record(events=tuple(events), consumes=("survey",))


def _start_scan(observation: Observation, state: State) -> Action:
    if (backing_off := _backoff(observation, state)) is not None:
        return backing_off
    attempt, failures = state.attempt, state.scan_failures
    crashed = attempt is not None and attempt.stall_id is None
    level: ScanLevel = "full" if crashed else "quick"
    if failures and failures % 2 == 0:
        level = "noted"
    return StartSurvey(level=level, again=failures > 0)


def _backoff(observation: Observation, state: State) -> Wait | None:
    until = state.backoff_until or 0.0
    return Wait(until=min(until, observation.now + 0.5)) if observation.now < until else None


def _failed_scan(observation: Observation, state: State, policy: Policy) -> Action:
    """Announce what comes next, or give up: no attempt is planned from a failed scan."""
    failures = state.scan_failures + 1
    problem = observation.survey.problem if observation.survey is not None else None
    why = Why("scan-failed", problem=problem or "unknown")
    waited_s = observation.now - state.scan_since_mono if failures > 1 else 0.0
    left_s = policy.recovery.room_wait_s - waited_s
    if failures > QUICK_TRIES and left_s <= 0:
        why = why.plus(Why("scans-failed", count=failures, seconds=waited_s))
        return give_up(why, EXIT_RETRY_ELSEWHERE, consumes=("survey",))
    wait_s = 0.0
    if failures % 2 == 0:
        why = why.plus(Why("next-noted"))
    elif failures < QUICK_TRIES:
        why = why.plus(Why("scan-again"))
    else:
        why = why.plus(Why("waits-for-scan", limit_s=max(left_s, 0)))
        wait_s = WAIT_FIRST_S * 2.0 ** ((failures - QUICK_TRIES) // 2)
        wait_s = max(0.0, min(wait_s, WAIT_MOST_S, left_s))
    events: list[e.AnyEvent] = [e.Noticed(kind="scan", pids=(), why=why)]
    if wait_s:
        until = observation.now + wait_s
        events.append(e.BackingOff(delay_s=wait_s, until_mono=until, why=why))
    return Record(events=tuple(events), consumes=("survey",))


class TornSave(Value):
    """An incomplete save, and the valid one from which the size of the next save is estimated."""

    whole: str
    torn: tuple[str, ...]
    """The next save may overwrite these: their size is room for it."""


def torn_save(state: State) -> TornSave | None:
    """The last attempt's half-written save; None if every save is valid."""
    plan = state.next_plan
    if plan is None or plan.checkpoint is None or not state.torn:
        return None
    return TornSave(whole=plan.checkpoint.path, torn=state.torn)


def _room_to_launch(observation: Observation, state: State, policy: Policy) -> Action | None:
    postponed, limit_s = state.postponed, policy.recovery.room_wait_s
    if postponed is not None and observation.now - postponed.since >= limit_s:
        return _give_up_for_room(Why("cannot-start", because=(postponed.why,)), limit_s)
    lacking = observation.short or observation.no_room
    # The size of the next save is an estimate: no run gives up for it.
    known, lacking = lacking is not None, lacking or observation.no_save_room
    if lacking is None:
        return None
    return _wait_for_room(lacking, observation, state, policy, for_good=known)


def _wait_for_room(
    lacking: str, observation: Observation, state: State, policy: Policy, *, for_good: bool = True
) -> Action | None:
    why, limit_s = said(lacking), policy.recovery.room_wait_s
    told = next((notice for notice in state.noticed if notice.kind == "room"), None)
    if told is None:
        why = why.plus(Why("waits-for-room", limit_s=limit_s))
        return Record(events=(e.Noticed(kind="room", pids=(), why=why),))
    if observation.now - told.mono < limit_s:
        return Wait(until=observation.now + ROOM_LOOK_S)
    if not for_good:
        return None
    return _give_up_for_room(why, limit_s)


def _give_up_for_room(why: Why, limit_s: float) -> Record:
    return give_up(why.plus(Why("no-better", limit_s=limit_s)), EXIT_RETRY_ELSEWHERE)
