"""Facts worth an event, derived from one poll: firsts, phases, progress, settings taken. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.events.stall import NoticeKind
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import (
    RunProgress,
    Sample,
    Why,
    WhyCode,
    by_phase,
    said,
)
from watchdog_train.core.notices.milestones import hook_events, milestones_event
from watchdog_train.core.notices.notes import TaskNote
from watchdog_train.core.notices.warnings import warnings
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import plans
from watchdog_train.core.recovery.kill import live
from watchdog_train.core.requests.asking import answers

CENSUS_EVERY_S = 10.0
"""A changed tree is recorded at most this often, so that short-lived helpers stay cheap."""
PHASE_EVERY_S = 5.0
SELDOM_SHARE, SELDOM_S = 0.01, 240.0
"""Progress is recorded every hundredth of the attempt's time so far, and at least this often: the
log of a week stays short, and its newest pace is recent."""
SAID_SLEEP_S = 30.0
"""A shorter delay of a poll is not reported; a sleep of the machine always is."""
NO_HEARTBEAT_S = 60.0
"""A cold import of torch from a slow disk takes half of that; then a person should know."""

Notice = tuple[Why, tuple[int, ...]]


def news(observation: Observation, state: State, policy: Policy) -> tuple[e.AnyEvent, ...]:
    attempt = state.attempt
    if attempt is None or not attempt.launched or attempt.tree_gone:
        return ()
    found: list[e.AnyEvent] = []
    sample, now = observation.sample, observation.now
    after_s = max(0.0, now - attempt.launching_mono)
    ranks = sample.judged
    if attempt.first_beat_s is None and ranks:
        member, _ = ranks[0]
        found.append(
            e.FirstBeat(rank=member.member.rank or 0, pid=member.member.pid, after_s=after_s)
        )
    step = job_step(sample)
    if attempt.first_step_s is None and step is not None:
        member = next(m for m, slot in ranks if slot.step is not None)
        found.append(
            e.FirstStep(
                rank=member.member.rank or 0,
                pid=member.member.pid,
                step=step,
                after_s=after_s,
                resume=plans.way(
                    state,
                    policy.recovery.resume_arg,
                    observation.resume_options or state.resume_options,
                    max(slot.train_ordinal for _, slot in ranks),
                    asks=any(slot.asks_for_path for _, slot in ranks),
                ),
                can_save=any(slot.can_save for _, slot in ranks),
            )
        )
        found += milestones_event(observation, state)
    found += hook_events(observation, state)
    changed = tuple(one for one in sample.daemons if one not in state.daemons)
    found += [e.DaemonsJudged(daemons=changed)] if changed else []
    found += _rank_ends(sample, state)
    reports = {report.remedy: report for report in reversed(observation.settings)}
    reports |= {report.remedy: report for report in observation.settings if report.took}
    found += [
        e.RemedyTaken(remedy=report.remedy, pid=report.pid, took=report.took, why=said(report.why))
        for report in reports.values()
        if report.remedy not in (attempt.taken if report.took else attempt.reported)
    ]
    found += _resume(observation, state, step)
    for kind, again, what in NOTICES:
        notice = what(observation, state) if again or kind not in state.notices else None
        found += [e.Noticed(kind=kind, why=notice[0], pids=notice[1])] if notice else []
    if observation.straggler != state.straggler:
        found.append(e.Straggling(straggler=observation.straggler))
    found += warnings(observation.ahead, state.warned)
    found += answers(observation, state)
    if found or _progress_due(observation, state, policy):
        found.append(progress_event(sample, state, observation.steps_s))
    return tuple(found)


def job_step(sample: Sample) -> int | None:
    steps = [slot.step for _, slot in sample.judged if slot.step is not None]
    return max(steps, default=None)


def run_progress(sample: Sample, state: State, steps_s: float | None) -> RunProgress:
    """Progress as a person reads it.

    Args:
        sample: the slots of one moment.
        state: during a suspicion no time left is known.
        steps_s: the recent pace, None if it is not known.
    """
    ranks = sample.judged
    step = job_step(sample)
    total = max([slot.total_steps for _, slot in ranks if slot.total_steps], default=None)
    if total is not None and step is not None and step > total:
        total = None  # a wrong number of steps
    if state.suspicion is not None or state.state != "running":
        steps_s = None
    percent = eta_s = None
    if step is not None and total:
        percent = round(100.0 * step / total, 1)
        eta_s = round((total - step) / steps_s, 1) if steps_s else None
    return RunProgress(
        step=step,
        total_steps=total,
        percent=percent,
        eta_s=eta_s,
        steps_s=round(steps_s, 6) if steps_s is not None else None,
        samples_s=next((s.samples_s for _, s in ranks if s.samples_s is not None), None),
        loss=next((s.loss for _, s in ranks if s.loss is not None), None),
    )


def progress_event(
    sample: Sample, state: State, steps_s: float | None, *, heard: Sample | None = None
) -> e.Progress:
    """Progress, and what has changed in the tree.

    Args:
        sample: of this moment.
        state: what is recorded.
        heard: last values of processes that may be gone from the sample.
        steps_s: the recent pace, None if it is not known.
    """
    heard = heard or sample
    known = {(one.host, one.pid): one for one in state.members}
    census = {(one.member.host, one.member.pid): one.member for one in sample.members}
    new = tuple(one for key, one in census.items() if known.get(key) != one)
    gone: dict[str, list[int]] = {}
    for host, pid in known:
        if (host, pid) not in census:
            gone.setdefault(host, []).append(pid)
    return e.Progress(
        progress=run_progress(heard, state, steps_s),
        ranks=by_phase((m.member.rank or 0, slot.phase, slot.step) for m, slot in heard.judged),
        members=new or msgspec.UNSET,
        gone={host: tuple(pids) for host, pids in gone.items()} or msgspec.UNSET,
    )


def _rank_ends(sample: Sample, state: State) -> list[e.AnyEvent]:
    """Ranks that ended while others of their job live; at the end of a job all of them end."""
    known = {end.identity for end in state.rank_ends}
    living = any(member.member.role == "rank" for member, _ in sample.judged)
    if state.kill is not None or not living:
        return []
    return [
        e.RankEnded(end=end, where=end.where) for end in sample.ended if end.identity not in known
    ]


def _resume(observation: Observation, state: State, step: int | None) -> list[e.AnyEvent]:
    """Compare the first step after a restart with the checkpoint it should resume from."""
    attempt = state.attempt
    if attempt is None or attempt.plan.checkpoint is None or attempt.resume == "contradicted":
        return []
    expected = attempt.plan.checkpoint.step
    anew = _all_began_anew(observation.sample, expected)
    if anew is not None:
        loaded = any(slot.load_begun for _, slot in observation.sample.judged)
        why = Why("own-count", step=anew).plus(_not_loaded(observation))
        why = Why("loaded-but-anew", step=anew) if loaded else why
        return [
            e.ResumeVerified(
                expected_step=expected, first_step=anew, ok=False, contradicted=True, why=why
            )
        ]
    if attempt.resume == "verified":
        return []
    told = [slot for _, slot in observation.sample.judged]
    loaded = observation.resumed_step is not None
    to_come = _is_to_come(observation.sample, attempt.plan.checkpoint.ordinal)
    if step is None or (to_come and not loaded):
        return []
    # Not the first polled step: a training that began at 0 may have passed the checkpoint by then.
    first = min((slot.own_began for slot in told if slot.own_began is not None), default=None)
    seen = step if first is None else first
    anew = _began_anew(observation.sample, expected)
    goes_on = first is not None and first > (expected or 1)
    if anew is not None and loaded:
        ok, why = False, Why("rank-not-loaded", rank=anew).plus(said(observation.not_resumed))
    elif goes_on or any(slot.continued for slot in told):
        ok, why = True, Why("loaded" if loaded else "first-step-behind")
    elif loaded and first is None and not any(slot.saves_ended for slot in told):
        return []  # its first save may show it
    elif loaded:
        ok, why = False, Why("loaded-but-at", step=seen) if first else Why("loaded-only")
    else:
        ok, why = False, Why("valid-existed").plus(_not_loaded(observation))
    if attempt.resume is not None and not ok:
        return []
    return [e.ResumeVerified(expected_step=expected, first_step=seen, ok=ok, why=why)]


def _not_loaded(observation: Observation) -> Why:
    words = observation.not_resumed
    return Why("no-load-seen") if words is None else said(words)


def _all_began_anew(sample: Sample, expected: int | None) -> int | None:
    """The lowest step by which a rank shows that it did not resume; None if any rank resumed."""
    told = [slot for _, slot in sample.judged]
    looked = any(slot.began_anew is not None and slot.load_begun for slot in told)
    resumed = any(
        (slot.first_step is not None and expected is not None and slot.first_step >= expected)
        or (slot.resumed_step is not None and not slot.train_ordinal and not looked)
        for slot in told
    )
    steps = [slot.began_anew for slot in told if slot.began_anew is not None]
    return None if resumed else min(steps, default=None)


def _began_anew(sample: Sample, expected: int | None) -> int | None:
    """A rank that began before the checkpoint, beside others that began after it."""
    told = [
        (member.member.rank or 0, slot.first_step)
        for member, slot in sample.judged
        if slot.first_step is not None
    ]
    if expected is None or all(first <= expected for _, first in told):
        return None
    return next((rank for rank, first in told if first < expected), None)


def _is_to_come(sample: Sample, ordinal: int | None) -> bool:
    """Whether the training that the checkpoint is for has not begun: fold 2 comes after fold 1."""
    begun = max((slot.train_ordinal for _, slot in sample.judged), default=0)
    return ordinal is not None and begun < ordinal


def _keeper(observation: Observation, state: State) -> Notice | None:
    """Training outlives its keeper; report what is lost with it."""
    if state.kill is not None:
        return None
    for tree in state.trees:
        sample, keeper = observation.of(tree.host).sample, tree.keeper
        if keeper is not None and not tree.ended and sample.keeper_alive is False:
            root = next((m.member for m in live(sample) if m.member.identity == tree.root), None)
            if root is not None:
                ours = state.supervisor is not None and root.ppid == state.supervisor.pid
                its_end = Why("end-by-parent" if ours else "end-by-kernel")
                why = Why("keeper-gone", pid=keeper.pid).plus(its_end, Why("output-lost"))
                return why, (keeper.pid,)
    return None


def _without_heartbeat(observation: Observation, state: State) -> Notice | None:
    """A program without hooks is watched by weaker signs."""
    attempt = state.attempt
    if attempt is None or attempt.first_beat_s is not None or attempt.ended:
        return None
    if observation.sample.judged or state.kill is not None:
        return None
    if observation.now - attempt.launching_mono < NO_HEARTBEAT_S:
        return None
    pids = (attempt.root.pid,) if attempt.root is not None else ()
    return Why("no-heartbeat", limit_s=NO_HEARTBEAT_S), pids


def _sleep(observation: Observation, state: State) -> Notice | None:
    """Explains why nothing was reported for a time, such as a night."""
    slept = observation.slept
    if slept is None or (not slept.machine and slept.seconds < SAID_SLEEP_S):
        return None
    if any(one.kind == "suspended" and one.mono >= slept.at for one in state.noticed):
        return None
    return Why("machine-slept" if slept.machine else "supervisor-slept", seconds=slept.seconds), ()


def _trouble(code: WhyCode, problem: str | None) -> Notice | None:
    """What the supervisor cannot see: an old sample decides nothing, so a hang may be seen late."""
    return (Why(code, problem=problem), ()) if problem is not None else None


NOTICES: tuple[tuple[NoticeKind, bool, Callable[[Observation, State], Notice | None]], ...] = (
    ("keeper", False, _keeper),
    # The training waits for a reader of its output.
    (
        "reader",
        False,
        lambda seen, _: (Why("reader-behind"), ()) if seen.sample.held_back else None,
    ),
    ("no-heartbeat", False, _without_heartbeat),
    ("gpu", False, lambda seen, _: _trouble("gpus-unseen", seen.gpu_trouble)),
    ("blind", False, lambda seen, _: _trouble("blind", seen.blind)),
    ("suspended", True, _sleep),
)
"""For a person: kind, whether it repeats within one attempt, when, and what."""


def _progress_due(observation: Observation, state: State, policy: Policy) -> bool:
    sample = observation.sample
    since_s = observation.now - state.progress_mono
    launched = state.attempt.launching_mono if state.attempt is not None else observation.now
    seldom_s = min(SELDOM_S, SELDOM_SHARE * (observation.now - launched))
    if since_s >= max(policy.timing.progress_s, seldom_s):
        return True
    if since_s < PHASE_EVERY_S:
        return False
    said = {(rank, group.phase) for group in state.ranks for rank, _ in group.each()}
    ranks = {rank for rank, _ in said}
    phases = ((member.member.rank or 0, slot.phase) for member, slot in sample.judged)
    if any(one[0] in ranks and one not in said for one in phases):
        return True
    if since_s < CENSUS_EVERY_S:
        return False
    # Record the first pace soon: status has no other source of it.
    if observation.steps_s is not None and state.progress.steps_s is None:
        return True
    census = tuple(member.member for member in sample.members)
    return census != state.members and frozenset(census) != frozenset(state.members)


def lost_tasks(observation: Observation) -> list[e.AnyEvent]:
    """Tasks of a queue in which the attempt ended: a restart starts only their worker."""
    said = [member for sight in observation.trees for member in sight.last_words]
    slots = [member.slot for member in said if member.slot is not None]
    # An idle worker had finished the task that it reported last.
    busy = {slot.pid for slot in slots if slot.phase != "idle"}
    lost = [(pid, task) for pid, task in observation.tasks if pid in busy]
    if not lost:
        return []
    why = Why("task-lost").plus(*(Why(_fate(task), who=task.name) for _, task in lost))
    return [e.Noticed(kind="task", pids=tuple(pid for pid, _ in lost), why=why)]


def _fate(task: TaskNote) -> WhyCode:
    if not task.late:
        return "task-acknowledged"
    return "task-delivered-again" if task.rejects else "task-maybe-lost"
