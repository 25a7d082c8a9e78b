"""From a verdict to a stall: suspect, sample the stacks, then decide when to stop waiting. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Action,
    Observation,
    Record,
    StartEvidence,
    StartLook,
    Wait,
    on_each,
)
from watchdog_train.core.detection.detect import BUSY, SELDOM_STEPS, Verdict
from watchdog_train.core.detection.device_wait import DeviceWait
from watchdog_train.core.fold.state import LASTING, State
from watchdog_train.core.model import (
    Basis,
    EvidenceResult,
    Patience,
    PatienceRow,
    SilentAt,
    Why,
    said,
    silent_at,
)
from watchdog_train.core.model.explanation import CollectiveWait, StoreWait
from watchdog_train.core.notices.milestones import milestones_event
from watchdog_train.core.notices.poll_events import job_step, progress_event
from watchdog_train.core.policy import Policy
from watchdog_train.core.policy.limits import DeviceWaits

ASKS = "it waits for somebody to type"
FRESH_S = 15.0
"""Seconds. An older sample declares no stall: its state may be over."""
LOOK_AGAIN_S = (10.0, 300.0)
"""While a wait is granted, the interval of samples doubles, from the first to the second."""
LIVE_LOCK_SAMPLES = 20
_SPINS_IN_VAIN: Mapping[PatienceRow, int] = {"live-lock": LIVE_LOCK_SAMPLES, "releaser-died": 2}
"""Samples in a row that make CPU use no sign of life."""
LIVE_LOCK_EVERY_S = 15.0
"""Longest distance of samples of a live-lock: a short wait ends in between."""
SOON_S = 0.1
SLEPT_S = 1.0
"""After the end of a sleep a sample must show within this time that the process continues."""
FINISHING_S = 150.0
"""Uploads wait quietly for a server; training is over, so waiting costs nothing."""
MOST_CHANGES_S = 3600.0
"""After this long a change of the wait extends no limit."""
WORTH_A_WORD_S = 30.0
"""A shorter pause is not reported."""


def next_stall_id(observation: Observation, state: State) -> str:
    """Bundles are numbered from 0001 through the run; a number on disk is never reused."""
    return f"{max(len(state.stalls), observation.bundles) + 1:04d}"


def watch(observation: Observation, state: State, policy: Policy) -> Action | None:
    attempt = state.attempt
    if attempt is None or not attempt.launched or attempt.ended or state.stop is not None:
        return None
    verdict = observation.verdict
    if (held := _held(observation, state)) is not None:
        return held
    match verdict.kind:
        case "alive":
            return _alive(observation, state)
        case "stall":
            return None if state.muted else _declare(observation, state, verdict.basis, verdict.why)
        case "suspect":
            if state.muted:
                return None
            if verdict.basis in BUSY:
                return _busy(observation, state, policy)
            return _quiet(observation, state, policy)


def _held(observation: Observation, state: State) -> Record | None:
    """Who may not run, and who may again."""
    found = observation.verdict.stopped
    said = next((one for one in state.noticed if one.kind == "stopped"), None)
    events: list[e.Noticed] = []
    if said is not None:
        states = {one.member.pid: one.state for one in observation.sample.members}
        free = tuple(p for p in said.pids if states.get(p) not in ("T", "t", "Z", "X", None))
        seconds = observation.now - said.mono + (said.why.seconds or 0.0)
        rank = said.why.rank if free == said.why.pids else None
        why = Why("continued", pids=free, seconds=seconds, rank=rank)
        events += [e.Noticed(kind="continued", pids=free, why=why)] if free else []
    known = (said.why, *said.why.because) if said is not None else ()
    if found and {(one.held, one.pids) for one in found} != {(x.held, x.pids) for x in known}:
        pids = tuple(pid for one in found for pid in one.pids)
        events.append(e.Noticed(kind="stopped", pids=pids, why=found[0].plus(*found[1:])))
    return Record(events=tuple(events)) if events else None


def _alive(observation: Observation, state: State) -> Record | None:
    """End a suspicion, and the notices of its silence."""
    silence = set(state.notices) - set(LASTING)
    if observation.verdict.stopped:
        silence.discard("stopped")
    if not (state.suspicion or silence or state.muted):
        return None
    look = state.look
    patience = look.patience if look is not None else None
    at = silent_at(patience, _steps(observation))
    paused_s = 0.0
    # Lost idleness alone is no progress, and a stopped process did not continue without help.
    moved = observation.verdict.moved_at > state.suspicion_mono
    told = state.suspicion not in (None, "device-wait")
    if moved and told and patience and patience.row != "stopped":
        paused_s = observation.now - state.silent_since
    ended = e.SuspicionEnded(
        why=Why("progress"),
        paused_s=round(paused_s, 1) if paused_s >= WORTH_A_WORD_S else 0.0,
        patience=patience,
        at=at,
        said=at is not None and at.own in state.pauses,
    )
    return Record(events=(ended,), consumes=("look",))


def _busy(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Over the hard limit but working, or held by the kernel: dump and report once.

    Never killed, except for a lasting wait in the kernel while nothing else moves.
    """
    verdict = observation.verdict
    if state.suspicion != verdict.basis:
        # Also after a quiet moment: its wait must not continue to count while the job works.
        return Record(events=(_suspected(verdict),), consumes=("look",))
    if verdict.basis == "uninterruptible" and _lasts(verdict, policy.detection.stuck_stall_s):
        return _declare(observation, state, verdict.basis, verdict.why)
    if verdict.device is not None:
        found = _on_device(observation, state, policy, verdict.device)
        if found is not None or verdict.age_s <= verdict.hard_s:
            return found
    return _report(observation, state, policy)


def _report(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Evidence and a report, once per silence."""
    verdict, look = observation.verdict, state.look
    device = verdict.device
    if device is not None and device.runs:
        unread = look is not None and look.device is not None and not look.device.stands
        if lacks := (*device.lacks, *(("native-stacks",) if unread else ())):
            why = verdict.why.plus(Why("device-lacks", names=lacks))
            verdict = msgspec.structs.replace(verdict, why=why)
    kind = BUSY.get(verdict.basis, "busy")
    printing = kind == "busy" and verdict.prints
    word: e.NoticeKind = "no-progress" if printing else kind
    if kind in state.notices or (kind == "busy" and "no-progress" in state.notices):
        return _spinning(observation, state, policy) if verdict.spins_s else None
    if observation.is_collecting or state.is_collecting:
        return Record(events=(e.Noticed(kind=word, pids=verdict.pids, why=verdict.why),))
    if device is not None and not _is_due(observation, state, policy):
        return None
    return StartEvidence(
        host=observation.trees[0].host,
        stall_id=next_stall_id(observation, state),
        bundle_why="manual",
        kind=kind,
        verdict=verdict,
    )


def _is_due(observation: Observation, state: State, policy: Policy) -> bool:
    every_s = policy.detection.devices.every_s
    return not state.native_mono or observation.now - state.native_mono >= every_s


def _on_device(
    observation: Observation, state: State, policy: Policy, device: DeviceWait
) -> Action | None:
    """Ranks that may only wait for GPUs: a stall, if nothing is unknown and no sample differs."""
    verdict, look = observation.verdict, state.look
    limits, found = policy.detection.devices, observation.trees[0].look
    if found is not None:
        sampled = _device_sample(observation, look, limits, device, found)
        return Record(events=(sampled,), consumes=("look",))
    if device.lacks or (look is not None and not look.times):
        return None
    if look is not None and look.limit_s is not None and look.times >= limits.samples:
        is_over = verdict.age_s >= look.limit_s and not verdict.stopped
        if is_over and look.device is not None and observation.now - look.mono <= FRESH_S:
            why = Why("device-wait", seconds=verdict.age_s, limit_s=look.limit_s, count=look.times)
            return _declare(observation, state, "device-wait", why)
    due = _is_due(observation, state, policy) and verdict.age_s >= limits.first_sample_s
    return _look(observation, device=True) if due else None


def _device_sample(
    observation: Observation,
    last: e.Looked | None,
    limits: DeviceWaits,
    device: DeviceWait,
    found: EvidenceResult,
) -> e.Looked:
    """One more stack sample, compared with the one before."""
    now, told = observation.now, found.device
    before = last.device if last is not None else None
    since, times = now, 1
    if told is None or not told.stands:  # could not be read: neither the same nor another
        told = before or told
        if last is not None and before is not None:
            since, times = last.since_mono, last.times
    elif last is None or before is None or not before.stands:
        is_early = now - device.since <= limits.first_sample_s + 2 * limits.every_s
        times = int(told.waits and is_early)
    else:
        spent_s = limits.other_cpu * len(observation.sample.judged) * (now - last.mono)
        rests = told.others_cpu_s - before.others_cpu_s <= spent_s
        same = last.times and rests and told.stands == before.stands
        since, times = last.since_mono, last.times + 1 if same else 0
    # The rank that the others wait for may be known, and have more time.
    known = found.patience.row not in ("unknown", "at-work")
    granted_s = found.patience.limit_s if known else 0.0
    limit_s = max(device.limit_s, granted_s) if times and granted_s is not None else None
    return _found(found, since_mono=since, limit_s=limit_s, times=times, device=told)


def _found(result: EvidenceResult, **more: Any) -> e.Looked:
    why = None
    if result.explanation is None:
        why = said(result.problem) if result.problem else Why("no-stacks")
    found = e.Looked(patience=result.patience, explanation=result.explanation, why=why)
    return msgspec.structs.replace(found, **more)


def _spinning(observation: Observation, state: State, policy: Policy) -> Action | None:
    """Over the hard limit, and only CPU time moves: a live-lock, if every sample shows it."""
    verdict, look, now = observation.verdict, state.look, observation.now
    if all(sight.look is not None for sight in observation.trees):
        return Record(events=(_asked(observation, state),), consumes=("look",))
    if observation.is_collecting or state.is_collecting:
        return None  # a process that another collector has stopped shows nothing of its own
    if look is None:
        return _look(observation)
    row, limit_s = look.patience.row, look.patience.limit_s
    locked = row in _SPINS_IN_VAIN
    if not locked or look.times < _SPINS_IN_VAIN[row]:
        often_s = min(LIVE_LOCK_EVERY_S, (limit_s or LOOK_AGAIN_S[1]) / LIVE_LOCK_SAMPLES)
        seldom_s = min(LOOK_AGAIN_S[1], policy.patience.live_lock_s or LOOK_AGAIN_S[1])
        due = now - look.mono >= (often_s if locked else seldom_s)
        return _look(observation) if due else None
    if row == "releaser-died":
        return _in_vain(observation, state, look, basis="proven", why=verdict.why)
    line = look.patience.line
    where = (f"{line.function} ({line.file}:{line.line})",) if line is not None else ()
    why = verdict.why.plus(Why("live-lock", count=look.times, names=where))
    if "live-lock" not in state.notices:
        return Record(events=(e.Noticed(kind="live-lock", pids=verdict.pids, why=why),))
    return _in_vain(observation, state, look, basis="live-lock", why=why)


def _in_vain(
    observation: Observation, state: State, look: e.Looked, *, basis: Basis, why: Why
) -> Action | None:
    """A stall, once the samples have shown the same for the limit of their row."""
    verdict, now, limit_s = observation.verdict, observation.now, look.patience.limit_s
    if limit_s is None or min(now - look.since_mono, verdict.spins_s) < limit_s:
        return None
    if now - look.mono > FRESH_S:
        return _look(observation)
    return _declare(observation, state, basis, why)


def _asked(observation: Observation, state: State) -> e.Looked:
    """One more sample; every machine of the job has to show the same."""
    looks = [sight.look for sight in observation.trees if sight.look is not None]
    worst = next((one for one in looks if one.patience.row not in _SPINS_IN_VAIN), looks[0])
    patience = worst.patience
    row, line = patience.row, patience.line
    if row not in _SPINS_IN_VAIN:
        patience = msgspec.structs.replace(patience, limit_s=None)
    before = state.look
    if before is not None and (row, line) != (before.patience.row, before.patience.line):
        before = None
    since = before.since_mono if before is not None else observation.now
    limit_s = patience.limit_s
    return _found(
        worst,
        patience=patience,
        since_mono=since,
        limit_s=since - state.silent_since + limit_s if limit_s is not None else None,
        times=before.times + 1 if before is not None else 1,
    )


def _lasts(verdict: Verdict, limit_s: float | None) -> bool:
    """Whether the kernel has held the job for longer than any wait for a disk should take.

    One fsync() of a large save may take long, and shows no byte until it is over.
    """
    if limit_s is None or verdict.alone:
        return False
    saves = verdict.phase == "checkpoint"
    return verdict.quiet_s > max(limit_s, verdict.hard_s if saves else 0.0)


def _quiet(observation: Observation, state: State, policy: Policy) -> Action | None:
    verdict = observation.verdict
    if state.suspicion != shown_basis(verdict):
        # Also if the rest of the job falls silent, too: the wait begins then, with a new sample.
        return Record(events=(_suspected(verdict),), consumes=("look",))
    device = verdict.device
    native = device is not None and any(s.look and s.look.device for s in observation.trees)
    if not native and all(sight.look is not None for sight in observation.trees):
        return Record(events=(_looked(observation, state, policy),), consumes=("look",))
    look = state.look
    if look is None:
        return _look(observation)
    if device is not None and look.patience.row in ("unknown", "at-work"):
        found = _on_device(observation, state, policy, device)
        if found is not None or verdict.age_s <= verdict.hard_s:
            return found
        return _report(observation, state, policy)
    if look.patience.row == "input" and "input" not in state.notices:
        return Record(events=(e.Noticed(kind="input", pids=verdict.pids, why=said(ASKS)),))
    limit_s = _limit_s(observation, state, policy, look.patience)
    sampled = observation.sample.at
    since = max(sampled - verdict.quiet_s, look.since_mono)
    over_at = since + limit_s if limit_s is not None else float("inf")
    if sampled < over_at:
        if observation.now >= _look_at(state, look, over_at, takes_s=policy.timing.look_s):
            return _look(observation)
        if over_at >= observation.now + policy.detection.poll_s:
            return None
        return Wait(until=max(over_at, observation.now + SOON_S), decides=True)
    if (verdict.alone or verdict.quiet_at_work) and look.patience.row != "proven":
        return None
    if observation.now - look.mono > FRESH_S:
        return _look(observation)
    basis = verdict.basis
    if look.patience.row in ("proven", "stopped") and basis == "quiet":
        basis = "proven" if look.patience.row == "proven" else "stopped"
    known = (look.why,) if look.why is not None else ()
    why = verdict.why.plus(*known, Why("waited", seconds=observation.now - state.suspicion_mono))
    return _declare(observation, state, basis, why)


def _look(observation: Observation, *, device: bool = False) -> Action:
    """On every machine; the result of one waits for the others."""
    missing = (sight for sight in observation.trees if sight.look is None)
    # Without rank names: those of a thousand machines would be sent to each of them.
    verdict = msgspec.structs.replace(observation.verdict, ranks=(), pids=())
    starts = (
        StartLook(host=sight.host, verdict=verdict, device=device)
        for sight in missing
        if "look" not in sight.running
    )
    return on_each(starts) or Wait(until=observation.now + SOON_S)


def _first_to_count(result: EvidenceResult) -> tuple[bool, float]:
    """All machines are needed, so the shortest limit counts; an unknown one shortens nothing."""
    patience = result.patience
    limit_s = patience.limit_s if patience.limit_s is not None else float("inf")
    return patience.row in ("unknown", "at-work"), limit_s


def _look_at(state: State, look: e.Looked, over_at: float, *, takes_s: float) -> float:
    """The next sample: at the end of a sleep, else at growing intervals, before the limit."""
    first_s, seldom_s = LOOK_AGAIN_S
    distance_s = min(seldom_s, max(first_s, look.mono - state.suspicion_mono))
    if look.patience.look_in_s is not None:
        distance_s = min(distance_s, look.patience.look_in_s + SLEPT_S)
    at = look.mono + distance_s
    return min(at, over_at - takes_s) if look.mono + FRESH_S < over_at else at


def shown_basis(verdict: Verdict) -> Basis:
    return "alone" if verdict.alone else verdict.basis


def _suspected(verdict: Verdict) -> e.Suspected:
    return e.Suspected(
        basis=shown_basis(verdict),
        phase=verdict.phase,
        ranks=verdict.ranks,
        age_s=round(verdict.age_s, 1),
        why=verdict.why,
    )


def _looked(observation: Observation, state: State, policy: Policy) -> e.Looked:
    looks = [sight.look for sight in observation.trees if sight.look is not None]
    result = min(looks, key=_first_to_count)
    patience = result.patience
    if patience.row == "unknown" and patience.limit_s is None:
        # The sample has failed, maybe because the machine is overloaded: less is known than before.
        patience = Patience(limit_s=policy.patience.unknown_early_s)
    if patience.row == "stopped":
        limit_s = policy.detection.stopped_timeout_s
        patience = msgspec.structs.replace(patience, limit_s=limit_s)
    patience = _asleep_again(patience, observation.now, state, policy)
    hosts = tuple(sight.host for sight in observation.trees if _has_root(sight.look))
    return _found(
        result,
        patience=patience,
        since_mono=_since(patience, observation.now, state),
        limit_s=_limit_s(observation, state, policy, patience),
        roots=hosts if result.explanation is not None else (),
    )


def _has_root(look: EvidenceResult | None) -> bool:
    """Whether a process of one machine waits for no other rank: ranks may wait for it."""
    root = look.explanation.root if look is not None and look.explanation is not None else None
    return root is not None and not isinstance(root.doing, CollectiveWait | StoreWait)


def _since(patience: Patience, now: float, state: State) -> float:
    """A shorter limit counts from now; after MOST_CHANGES_S the first start counts again."""
    before = state.look
    if before is None:
        return state.silent_since
    endless = float("inf")
    shorter = (patience.limit_s or endless) < (before.patience.limit_s or endless)
    if not shorter or now - state.silent_since > MOST_CHANGES_S:
        return before.since_mono
    return now


def _asleep_again(patience: Patience, now: float, state: State, policy: Policy) -> Patience:
    """One sleep is waited out; repeated sleeps at the same line are polling."""
    before = state.look
    if patience.row != "sleep" or before is None or silent_at(patience, 0) is None:
        return patience
    if silent_at(before.patience, 0) != silent_at(patience, 0):
        return patience
    ended = before.patience.look_in_s is not None and now > before.mono + before.patience.look_in_s
    if before.patience.row != "poll" and not ended:
        return patience
    return msgspec.structs.replace(
        patience, row="poll", limit_s=policy.patience.poll_s, look_in_s=None
    )


def _limit_s(
    observation: Observation, state: State, policy: Policy, patience: Patience
) -> float | None:
    """Seconds of quiet after which it is a stall; None: never, as known now."""
    verdict = observation.verdict
    limit_s = patience.limit_s
    if limit_s is None or patience.row in ("proven", "releaser-died", "stopped"):
        return limit_s
    if patience.row in ("unknown", "at-work"):
        if verdict.device is not None:
            return None if verdict.device.lacks else verdict.device.limit_s
        limit_s = max(limit_s, _cost_s(state, policy, verdict, works=patience.row == "at-work"))
    finishing = verdict.basis == "finishing" or verdict.may_be_through
    return max(
        limit_s,
        verdict.survived_s,
        FINISHING_S if finishing else 0.0,
        _again_s(state, policy, patience, silent_at(patience, _steps(observation))),
    )


def _cost_s(state: State, policy: Policy, verdict: Verdict, *, works: bool) -> float:
    """The cost of a false alarm, if there is any reason to fear one.

    Such a wait is never more than twice the best choice in hindsight (the ski-rental bound).
    """
    if not (works or verdict.stirs) and (verdict.steady or verdict.phase not in SELDOM_STEPS):
        return 0.0
    attempt = state.attempt
    startup_s = attempt.first_step_s if attempt is not None and attempt.first_step_s else 0.0
    limits = policy.patience
    return min(limits.cost_most_s, startup_s + verdict.unsaved_s)


def _again_s(state: State, policy: Policy, patience: Patience, at: SilentAt | None) -> float:
    """A restart that falls silent at the same place may not have hung the first time."""
    times = sum(at is not None and stall.silent_at == at for stall in state.stalls)
    if not times:
        return 0.0
    limits = policy.patience
    if times == 1:
        return min(limits.again_s, limits.again_most_s)
    if patience.row not in ("network", "poll", "outsider"):
        return 0.0
    given_s = limits.again_s + (times - 2) * limits.again_later_s
    return min(limits.again_later_s, max(0.0, limits.again_most_s - given_s))


def _steps(observation: Observation) -> int:
    """As the training counts them: the first sampled step differs between attempts."""
    return job_step(observation.sample) or 0


def _declare(observation: Observation, state: State, basis: Basis, why: Why) -> Record:
    verdict = observation.verdict
    look = state.look
    declared = e.StallDeclared(
        stall_id=next_stall_id(observation, state),
        basis=basis,
        phase=verdict.phase,
        ranks=verdict.ranks,
        age_s=round(verdict.age_s, 1),
        why=why,
        at=silent_at(look.patience, _steps(observation)) if look is not None else None,
    )
    progress = progress_event(observation.sample, state, observation.now)
    return Record(events=(progress, *milestones_event(observation, state), declared))
