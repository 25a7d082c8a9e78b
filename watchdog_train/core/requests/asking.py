"""Requests that the training itself answers: to save, and to save and exit. Pure.

A request is no save: the proof is a valid checkpoint that was finished after it. If a training
cannot be asked, the user is told, and a stop sends a signal; a gentle stop does not interrupt a
save under way.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Action,
    AskSave,
    AskStop,
    Observation,
    Record,
    StartSurvey,
    TaskName,
    Wait,
)
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Sample, SlotReading, Why, WhyCode, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import kill

PROOF_S = 60.0
"""Seconds. A save that no scan has found valid by then is not checked again."""
SAVE_LATE_S = 600.0
"""A request to save without a proof after this is reported as unproven."""
AHEAD_STEPS = 3
"""Ranks agree on a step some steps ahead: after this many the request can have been answered."""
AHEAD_STEPS_OF_SEVERAL = 14
"""Ranks of several tasks: the request has to reach the others, and a second try is 8 ahead."""


def ask_save(observation: Observation, by: str) -> AskSave:
    """A request to save, with whether a hook can take it."""
    return AskSave(can_be_asked=_can_save(observation.sample), by=by)


def awaits_proof(state: State) -> bool:
    """Whether a finished save would prove something."""
    asked = state.stop_asked
    stop = asked is not None and asked.expects_save and asked.saved is None
    return stop or state.save_requested > state.save_proven


def prove(observation: Observation, state: State, _policy: Policy) -> Action | None:
    """After a request: a valid checkpoint that a hook saw finished since is the proof."""
    if not awaits_proof(state):
        return None
    attempt = state.attempt
    save = observation.last_save
    running = attempt is not None and not attempt.ended
    proofs = _proofs(observation, state)
    if save is None or not proofs:
        return _late(observation, state) if running else None
    # After the end the scan belongs to the next plan and is only read; a stop has no next plan.
    ours = running or state.stop is not None
    if observation.survey is None:
        old = observation.wall - save.t > PROOF_S
        if old or not ours or "survey" in observation.running or "not-whole" in state.notices:
            return None
        return StartSurvey(level="quick")
    consumes: tuple[TaskName, ...] = ("survey",) if ours else ()
    names = (save.path, save.saved_at)  # it may have been renamed since
    findings = observation.survey.findings
    found = next((one for one in findings if one.path in names or one.saved_at in names), None)
    if found is not None and found.whole:
        proven = (msgspec.structs.replace(proof, path=found.path) for proof in proofs)
        return Record(events=tuple(proven), consumes=consumes)
    if running or (ours and observation.survey.beside_writers):
        return Record(events=(), consumes=consumes)
    if not ours or "not-whole" in state.notices:
        return None
    problem = observation.survey.problem
    unknown = said(problem) if problem else Why("not-among-found")
    if observation.survey.failed:
        unknown = Why("scan-failed", problem=problem or "unknown")
    why = Why("not-proven", path=save.path).plus(said(found.said) if found else unknown)
    noticed = e.Noticed(kind="not-whole", pids=(), why=why)
    return Record(events=(noticed,), consumes=consumes)


def looks_for_proof(observation: Observation, state: State) -> bool:
    """Whether the validity of the last save is still unknown after the end of the run."""
    return "survey" in observation.running and bool(_proofs(observation, state))


def stop(observation: Observation, state: State, policy: Policy) -> Action | None:
    """A user's stop: ask the script if it can answer, else signal the root."""
    request, attempt, sample = state.stop, state.attempt, observation.sample
    if request is None or state.kill is not None:
        return None
    if attempt is None or not attempt.launched or attempt.ended:
        return None
    stall = state.stall(attempt.stall_id)
    pending = stall is not None and not stall.collected
    if request.mode == "soft" and (pending or state.is_collecting):
        return None  # the dumps are on disk before the first signal
    if request.mode == "now":
        return kill.begin_first("now", observation, state, Why("asked", who=request.by))
    slots = [slot for _, slot in sample.judged]
    if any(slot.can_stop for slot in slots):
        saves = _can_save(sample)
        return AskStop(
            can_be_asked=True,
            why=Why("asked-to-save" if saves else "asked-to-stop", who=request.by),
            step=_step(slots),
            expects_save=saves,
        )
    if _is_saving(observation, slots) and observation.now < request.mono + policy.stopping.grace_s:
        if "save" in state.notices:
            return Wait(until=observation.now + kill.LOOK_AGAIN_S)
        limit_s = policy.stopping.grace_s
        why = Why("save-under-way", limit_s=limit_s)
        return Record(events=(e.Noticed(kind="save", pids=(), why=why),))
    reason = Why("cannot-ask" if _step(slots) is not None else "no-step-yet")
    why = Why("asked", who=request.by).plus(reason)
    return kill.begin_first("stop", observation, state, why)


def ask_until(observation: Observation, state: State, policy: Policy) -> float:
    """Monotonic moment until which a training asked to stop may take; later while it cannot answer.

    A request is read at the end of a step. A long step, an evaluation or a save cannot answer, and
    a signal would cost the work that the request was to save.
    """
    under_way, asked = state.kill, state.stop_asked
    if under_way is None:
        return observation.now
    if asked is not None and asked.refused:
        return observation.now
    most = under_way.stage_mono + max(policy.timing.ask_most_s, policy.stopping.ask_s)
    slots = [slot for _, slot in observation.sample.judged]
    if asked is not None and observation.verdict.kind == "alive" and slots:
        step = _step(slots)
        ahead = AHEAD_STEPS if state.crew is None else AHEAD_STEPS_OF_SEVERAL
        early = step is None or asked.step is None or step < asked.step + ahead
        busy = any(slot.phase in ("eval", "checkpoint") for slot in slots)
        if busy or (early and asked.answered_mono is None):
            return most
    since = under_way.stage_mono
    if asked is not None and asked.answered_mono is not None:
        since = max(since, asked.answered_mono)
    return min(since + policy.stopping.ask_s, most)


def _can_save(sample: Sample) -> bool:
    return any(member.slot is not None and member.slot.can_save for member in sample.members)


def _proofs(observation: Observation, state: State) -> tuple[e.SaveProven, ...]:
    """What the newest save would prove, if it is valid."""
    save = observation.last_save
    if save is None:
        return ()
    found = []
    if state.save_requested > state.save_proven and save.t >= state.save_wall:
        found.append(e.SaveProven(sequence=state.save_requested, path=save.path, step=save.step))
    asked = state.stop_asked
    if asked is not None and asked.expects_save and asked.saved is None and save.t >= asked.wall:
        found.append(
            e.SaveProven(sequence=asked.sequence, path=save.path, step=save.step, request="stop")
        )
    return tuple(found)


def _late(observation: Observation, state: State) -> Action | None:
    pending = state.save_requested > state.save_proven and state.can_be_asked_to_save
    if not pending or "save-late" in state.notices or state.save_refused >= state.save_requested:
        return None
    waited_s = observation.wall - state.save_wall
    if waited_s < SAVE_LATE_S:
        return None
    taken = state.save_answered >= state.save_requested
    code: WhyCode = "save-taken" if taken else "save-not-taken"
    why = Why("save-late", seconds=waited_s).plus(Why(code), Why("no-save-since"))
    return Record(events=(e.Noticed(kind="save-late", pids=(), why=why),))


def _is_saving(observation: Observation, slots: list[SlotReading]) -> bool:
    alive = observation.verdict.kind == "alive"
    return alive and any(slot.phase == "checkpoint" for slot in slots)


def _step(slots: list[SlotReading]) -> int | None:
    return max((slot.step for slot in slots if slot.step is not None), default=None)


def answers(observation: Observation, state: State) -> list[e.AnyEvent]:
    """Requests that a rank has answered since the last poll, or found no common step for."""
    slots = [slot for _, slot in observation.sample.judged]
    step = _step(slots)
    found: list[e.AnyEvent] = []
    number, done = state.save_requested, max(state.save_answered, state.save_proven)
    if number > done and any(slot.save_answered >= number for slot in slots):
        found.append(e.RequestAnswered(request="save", sequence=number, step=step))
    refused = any(slot.save_refused >= number for slot in slots)
    if number > max(done, state.save_refused) and refused:
        found.append(e.RequestRefused(request="save", sequence=number, step=step))
    asked = state.stop_asked
    if asked is not None and asked.answered_mono is None:
        number = asked.sequence
        if any(slot.stop_answered >= number > 0 for slot in slots):
            found.append(e.RequestAnswered(request="stop", sequence=number, step=step))
        if not asked.refused and any(slot.stop_refused >= number > 0 for slot in slots):
            found.append(e.RequestRefused(request="stop", sequence=number, step=step))
    return found
