"""When to keep a copy of a checkpoint that the script overwrites in place. Pure.

Such a file has no older version: a kill during the next save loses the complete training. A child
of the supervisor makes the copy after the save hook has noted the end of a save, never the
training's process.
"""

from __future__ import annotations

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Action, KeepCopy, Observation, Record, RestoreCopy, Wait
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Plan, Sample, SaveRecord, said
from watchdog_train.core.model.recovery import UNFINISHED
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import kill
from watchdog_train.core.recovery.choice import name_of
from watchdog_train.core.recovery.plans import AUTO_RESUME

MOST_PATHS = 2
"""Files kept at a time: the newest state, and the best one."""
EVERY_S = 60.0
COST_FACTOR = 20.0
"""A copy may take a twentieth of the time: after one of 10 s the next comes 200 s later."""
AFTER_FAILURE_S = 600.0
BEFORE_LAUNCH_S = 120.0
"""Seconds that a restart waits for a copy: 4 GiB to a disk that takes 36 MB/s."""
_FORMATS = ("torch", "safetensors")


def keep(observation: Observation, state: State, policy: Policy) -> Action | None:
    told = observation.kept
    if told is not None:
        if told.problem is not None:
            event: e.AnyEvent = e.CheckpointNotKept(path=told.path, why=said(told.problem))
        else:
            event = msgspec.convert(told, e.CheckpointKept, from_attributes=True)
        return Record(events=(event,), consumes=("keep",))
    attempt = state.attempt
    if attempt is None or not attempt.launched or attempt.ended or state.kill is not None:
        return None
    if policy.recovery.keep_bytes == 0 or policy.recovery.observe or "keep" in observation.running:
        return None
    if attempt.stall_id is not None or observation.verdict.kind != "alive":
        return None
    if _is_early(observation.now, state) or _is_saving(observation.sample):
        return None
    save = to_keep(observation.saves, state, policy.recovery.keep_bytes)
    return None if save is None else KeepCopy(save=save)


def to_keep(saves: tuple[SaveRecord, ...], state: State, most_bytes: int) -> SaveRecord | None:
    """The newest save to copy, of a file overwritten in place; None: it is kept, or none fits."""
    kept = {one.path: one.saved_at for one in state.kept}
    for save in reversed(saves):
        if not save.files:  # it is being written: what an older note says of it is past
            return None
        size = sum(size for size, _ in save.files.values())
        if not _is_overwritten(save, saves) or size > most_bytes:
            continue
        if save.saved_at in kept.values():  # it may be kept under the name that it was given since
            return None
        if save.path in kept or len(kept) < MOST_PATHS:
            return save
    return None


def _is_overwritten(save: SaveRecord, saves: tuple[SaveRecord, ...]) -> bool:
    name = name_of(save.path)
    if save.format not in _FORMATS or tuple(save.files) != (name,):
        return False
    if save.is_part or UNFINISHED.search(name):
        return False  # no scan would take it for a checkpoint
    # A number in the name promises another file for the next save, until it has come twice.
    same_name = [other.path for other in saves if name_of(other.path) == name]
    if same_name.count(save.path) > 1:
        return True
    return not _has_number(save.path) and len(set(same_name)) == 1


def _has_number(path: str) -> bool:
    return any(letter.isdigit() for letter in name_of(path))


def before_launch(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Keep the checkpoint of the next attempt, if the attempt may overwrite it."""
    attempt, plan = state.attempt, state.next_plan
    if attempt is None or plan is None or plan.checkpoint is None:
        return None
    if "keep" in observation.running:
        late = observation.now > attempt.ended_mono + BEFORE_LAUNCH_S
        return None if late else Wait(until=observation.now + 0.05)
    used = plan.checkpoint
    kept = next((one for one in state.kept if one.path == used.path), None)
    # Once: the file may have changed since the scan.
    tried = state.keep_failed or state.kept[-1:] == (kept,)
    if tried and state.kept_mono >= attempt.ended_mono:
        return None
    if used.format not in _FORMATS or used.copy_of is not None:
        return None
    if policy.recovery.keep_bytes == 0 or policy.recovery.observe:
        return None
    # A restart from the beginning saves under the same numbers again.
    numbered = _has_number(used.path) and plan.resume_via != "env"
    if kept.saved_at == used.saved_at if kept is not None else numbered:
        return None
    save = SaveRecord(path=used.path, format=used.format, step=used.step)
    return KeepCopy(save=save)


def unkept(state: State, plan: Plan) -> bool:
    """Whether the attempt may begin at step 0 and overwrite a checkpoint without a copy."""
    used = plan.checkpoint
    if used is None or plan.resume_via != "env" or used.copy_of is not None:
        return False
    return all((one.path, one.saved_at) != (used.path, used.saved_at) for one in state.kept)


def restore(
    observation: Observation, state: State, plan: Plan, resume_arg: str | None = None
) -> Action | None:
    """Put a kept copy back, once, if the script opens its own path and that is torn.

    Also if the next attempt is given another one, which the script may ignore; not if it is given
    by the user's own --resume-arg.
    """
    used, told, survey = plan.checkpoint, observation.restored, observation.survey
    if told is not None:
        event = msgspec.convert(told, e.CheckpointRestored, from_attributes=True)
        # Another scan has to check the file that is at the path now.
        done = told.problem is None
        return Record(events=(event,), consumes=("restore", "survey") if done else ("restore",))
    given = plan.resume_via == "argv" and resume_arg != AUTO_RESUME
    if used is None or given or plan.resume_via == "hook":
        return None
    if "restore" in observation.running:
        return Wait(until=observation.now + 0.05)
    if state.restore_tried == plan.attempt - 1:
        return None
    findings = survey.findings if survey is not None else ()
    copies = {copy.copy_of: copy.path for copy in findings if copy.whole}
    for found in findings:
        if found.path in copies and found.whole is False and found.saved_at is not None:
            return RestoreCopy(path=found.path, saved_at=found.saved_at, copy=copies[found.path])
    return None


def _is_early(now: float, state: State) -> bool:
    if state.keep_failed:
        return now - state.kept_mono < AFTER_FAILURE_S
    wait_s = max(EVERY_S, COST_FACTOR * max((one.seconds for one in state.kept), default=0.0))
    return bool(state.kept) and now - state.kept_mono < wait_s


def _is_saving(sample: Sample) -> bool:
    """A file that is being overwritten would be copied torn."""
    return not kill.live(sample) or any(
        slot.saves_begun > slot.saves_ended for _, slot in sample.judged
    )
