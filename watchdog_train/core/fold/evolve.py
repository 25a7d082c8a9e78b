"""How each event changes the state of a run: total, pure, one short case per type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.fold import evolve_ending as ending
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold import evolve_stall
from watchdog_train.core.fold.state import AttemptRecord, Crew, Machine, Postponed, State, Tree
from watchdog_train.core.model import Member, ProcessId

_replace = msgspec.structs.replace


def replay(history: Iterable[e.AnyEvent]) -> State:
    """The state after a complete log."""
    state = State()
    for event in history:
        state = evolve(state, event)
    return state


def evolve(state: State, event: e.AnyEvent) -> State:
    """The state after one more event. Never fails; an event out of order changes what it can."""
    state = _replace(state, mono=event.mono, updated_at=event.t)
    for change in (_change, evolve_stall.change, ending.change, job_changed):
        state = change(state, event)
    return state


def _change(state: State, event: e.AnyEvent) -> State:  # noqa: PLR0912 - one arm per event type
    match event:
        case e.RunStarted():
            return _run_started(state, event)
        case e.AttemptLaunching():
            return _launching(state, event)
        case e.AttemptLaunched():
            if state.attempts and state.tree(event.host) is None:
                state = records.attempt(state, trees=(*state.trees, Tree(host=event.host)))
            state = records.trees(
                state,
                event.host,
                launched=True,
                root=ProcessId(event.pid, event.start, event.host),
                keeper=ProcessId(event.keeper_pid, event.keeper_start, event.host),
            )
            running = state.attempt is None or state.attempt.launched
            return _replace(state, state="running" if running else "starting", postponed=None)
        case e.LaunchPostponed():
            return _postponed(state, event)
        case e.FirstBeat():
            return records.attempt(state, first_beat_s=event.after_s)
        case e.FirstStep():
            state = records.attempt(
                state,
                first_step_s=event.after_s,
                first_step=event.step,
            )
            return _step_reached(_replace(state, resume_way=event.resume), event.step)
        case e.Progress():
            state = _replace(
                state,
                progress=event.progress,
                progress_mono=event.mono,
                ranks=event.ranks,
                members=records.members(state.members, event) if event.is_census else state.members,
            )
            state = records.paced(state, event.progress.steps_s)
            if any(group.phase in ("train", "eval", "checkpoint") for group in event.ranks):
                state = records.attempt(state, trained=True)
            return _step_reached(state, event.progress.step)
        case e.Milestones():
            options = event.resume_options or state.resume_options
            return _replace(
                state, places=event.ranks, places_mono=event.mono, resume_options=options
            )
        case e.HookNotArmed():
            return _replace(state, hooks=(*state.hooks, event))
        case e.RankEnded():
            return _replace(state, rank_ends=(*state.rank_ends, event.end))
        case e.SurvivedKill():
            return records.trees(state, event.host, survivors=event.pids)
        case e.AttemptExited():
            return _exited(state, event)
        case e.CheckpointChosen():
            return _replace(state, checkpoint_chosen=event.path)
        case e.CheckpointRejected():
            return _rejected(state, event)
        case e.CheckpointsShared():
            return _replace(state, shared=(*state.shared, event))
        case e.GivenUp():
            return _replace(state, given_up=event, guilty=event.guilty)
        case e.BackingOff():
            return _replace(state, state="backoff", backoff_until=event.until_mono)
        case e.GpuMemoryHeld():
            since = state.gpu_held_mono if state.gpu_held is not None else event.mono
            return _replace(state, state="backoff", gpu_held=event, gpu_held_mono=since)
        case e.GpuMemoryFree():
            return _replace(state, gpu_held=None)
        case e.Noticed():
            return _noticed(state, event)
        case e.RemedyTaken():
            return _remedy_taken(state, event)
        case e.ResumeVerified():
            return records.attempt(state, resume=event.verdict)
        case e.Adopted():
            return adopted(state, event)
        case e.Reopened():
            return reopened(state, event)
        case e.RunFinished():
            return _replace(
                records.trees(state, kill=None),
                state="finished",
                outcome=event.outcome,
                exit_code=event.exit_code,
                warning=event.warning,
                why=event.why,
                guilty=event.guilty,
            )
        case _:
            return state


_OF_THE_START = (
    "run_id", "name", "run_dir", "slot_dir", "cwd", "boot_id", "host", "argv", "options",
    "launcher", "limits", "report_only", "max_restarts",
)  # fmt: skip


def _run_started(state: State, event: e.RunStarted) -> State:
    return _replace(
        state,
        **{name: getattr(event, name) for name in _OF_THE_START},
        resume_way=event.resume,
        supervisor=ProcessId(event.pid, event.start),
        started_at=event.t,
    )


def _step_reached(state: State, step: int | None) -> State:
    """Note a step; one that no attempt had reached refills the restart budget."""
    if step is None:
        return state
    attempt = state.attempt
    if attempt is not None and (attempt.last_step is None or step > attempt.last_step):
        state = records.attempt(state, last_step=step)
    if state.best_step is None or step > state.best_step:
        state = _replace(state, best_step=step, restarts_since_progress=0)
    return state


def _noticed(state: State, event: e.Noticed) -> State:
    over = (event.kind, "stopped") if event.kind == "continued" else (event.kind,)
    others = tuple(each for each in state.noticed if each.kind not in over)
    if event.kind == "scan":
        state = _replace(
            state,
            scan_failures=state.scan_failures + 1,
            scan_since_mono=state.scan_since_mono if state.scan_failures else event.mono,
        )
    return _replace(state, noticed=(*others, event))


def _rejected(state: State, event: e.CheckpointRejected) -> State:
    """Passed over; if a machine does not see the plan's checkpoint, the plan is void."""
    plan, crew = state.next_plan, state.crew
    used = plan.checkpoint if plan is not None else None
    if crew is not None and used is not None and used.path == event.path:
        crew = _replace(crew, unseen=(*crew.unseen, (event.path, event.why)))
        return _replace(state, crew=crew, next_plan=None)
    return _replace(state, torn=(*state.torn, event.path)) if event.torn else state


def _exited(state: State, event: e.AttemptExited) -> State:
    state = _step_reached(state, event.step)
    if (last := state.attempt) is not None:
        state = records.attempt(
            state,
            load_begun=last.load_begun or event.load_begun,
            trainings=max(last.trainings, event.trainings),
            saves=max(last.saves, event.saves),
        )
    return _replace(
        records.trees(
            state,
            event.host,
            ended=True,
            ended_mono=event.mono,
            code=event.code,
            signal=event.signal,
            how_known=event.how_known,
            error=event.error,
        ),
        suspicion=None,
        look=None,
    )


def _remedy_taken(state: State, event: e.RemedyTaken) -> State:
    attempt = state.attempt
    if attempt is None or event.remedy in attempt.taken:
        return state
    taken = (*attempt.taken, event.remedy) if event.took else attempt.taken
    reported = tuple(dict.fromkeys((*attempt.reported, event.remedy)))
    return records.attempt(state, reported=reported, taken=taken)


_OF_A_SILENCE = ("members", "ranks", "suspicion", "look", "muted", "outlived", "noticed")
_OF_AN_ATTEMPT = (
    *_OF_A_SILENCE, "places", "hooks", "rank_ends", "progress", "straggler", "backoff_until",
    "gpu_held", "scan_failures", "torn", "can_be_asked_to_save", "next_plan",
)  # fmt: skip
_OF_AN_END = (
    "outcome", "exit_code", "warning", "why", "stop", "stop_asked", "given_up", "guilty",
    "next_plan", "crew",
)  # fmt: skip
_OF_A_CLOCK = (
    "backoff_until", "gpu_held", "scan_failures", "postponed", "kept_mono", "keep_failed",
)  # fmt: skip
"""Fields that hold, or are counted from, a monotonic moment: cleared when that clock restarts."""


def _defaults(names: tuple[str, ...]) -> dict[str, Any]:
    first = State()
    return {name: getattr(first, name) for name in names}


POSTPONED_S = 1.0
"""Seconds until a postponed launch is tried again."""


def _launching(state: State, event: e.AttemptLaunching) -> State:
    record = AttemptRecord(
        attempt=event.plan.attempt,
        plan=event.plan,
        token=event.token,
        launching_mono=event.mono,
        trees=tuple(Tree(host=host) for host in event.hosts),
    )
    again = 1 if state.attempts else 0
    return _replace(
        state,
        state="starting",
        attempts=(*state.attempts, record),
        restarts=state.restarts + again,
        restarts_since_progress=state.restarts_since_progress + again,
        warned=tuple(one for one in state.warned if one.kind in ("disk", "memory")),
        **_defaults(_OF_AN_ATTEMPT),
    )


def _postponed(state: State, event: e.LaunchPostponed) -> State:
    """As if never launched: it uses no try of its plan and no restart."""
    attempt = state.attempt
    if attempt is None or attempt.launched:
        return state
    before = state.postponed
    return _replace(
        state,
        state="backoff",
        attempts=state.attempts[:-1],
        next_plan=attempt.plan,
        restarts=max(0, state.restarts - 1),
        restarts_since_progress=max(0, state.restarts_since_progress - 1),
        postponed=Postponed(
            since=before.since if before else event.mono,
            why=event.why,
            tries=before.tries + 1 if before else 1,
        ),
        backoff_until=event.mono + POSTPONED_S,
    )


def adopted(state: State, event: e.Adopted) -> State:
    """Another supervisor continues the open work."""
    for tree in state.trees:
        if tree.kill is not None:
            # Signals that the last supervisor planned and did not send get their full time.
            kill = _replace(tree.kill, stage_mono=event.mono)
            state = records.trees(state, tree.host, kill=kill)
    rebooted = state.boot_id != event.boot_id
    me = ProcessId(event.pid, event.start)
    state = _replace(state, supervisor=me, boot_id=event.boot_id)
    if not rebooted:
        return state
    # The monotonic clock restarted: a moment of the old one may lie days ahead.
    state = records.attempt(records.trees(state, ended_mono=event.mono), launching_mono=event.mono)
    return _with_new_clock(state, event.mono)


def _with_new_clock(state: State, mono: float) -> State:
    return _replace(state, suspicion_mono=mono, progress_mono=mono, **_defaults(_OF_A_CLOCK))


def reopened(state: State, event: e.Reopened) -> State:
    """A finished run continues: none of its processes live, and its end is cleared."""
    for tree in state.trees:
        gone_at = event.t if tree.gone_at is None else tree.gone_at
        state = records.trees(
            state,
            tree.host,
            ended=True,
            ended_mono=event.mono,
            gone_at=gone_at,
            kill=None,
            survivors=(),
        )
    return _replace(
        _with_new_clock(state, event.mono),
        state="idle",
        **_defaults((*_OF_A_SILENCE, *_OF_AN_END)),
        reopened_after=len(state.attempts),
        restarts_since_progress=0 if event.fresh_budget else state.restarts_since_progress,
        supervisor=ProcessId(event.pid, event.start),
        boot_id=event.boot_id,
        slot_dir=event.slot_dir,
    )


def job_changed(state: State, event: e.AnyEvent) -> State:
    crew = state.crew
    match event:
        case e.PlanMade():
            return _replace(state, next_plan=event.plan)
        case e.TaskJoined():
            crew = Crew(task=event.task)
            return _replace(state, crew=crew, host=event.host or state.host)
        case e.MachineLost():
            return _machine_lost(state, event)
        case e.Ordered() if crew is not None:
            return _replace(state, crew=_replace(crew, epoch=event.epoch, done=event.number))
        case e.MachineHeard() if crew is not None:
            others = tuple(one for one in crew.machines if one.host != event.host)
            heard = Machine(**{name: getattr(event, name) for name in Machine.__struct_fields__})
            silent = tuple(one for one in crew.silent if one[0] != event.host)
            crew = _replace(crew, machines=(*others, heard), silent=silent)
            return _replace(state, crew=crew)
        case e.MachineSilent() if crew is not None:
            silent = (*crew.silent, (event.host, event.since))
            return _replace(state, crew=_replace(crew, silent=silent))
        case e.Progress() if crew is not None:
            return _replace(state, crew=_replace(crew, ranks=_ranks(crew, state.members)))
        case _:
            return state


def _ranks(crew: Crew, members: tuple[Member, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By machine; one without ranks now keeps those seen last."""
    found: dict[str, set[int]] = {}
    for member in members:
        if member.role == "rank" and member.rank is not None:
            found.setdefault(member.host, set()).add(member.rank)
    return tuple(({**dict(crew.ranks), **{k: tuple(sorted(v)) for k, v in found.items()}}).items())


def _machine_lost(state: State, event: e.MachineLost) -> State:
    state = records.trees(state, event.host, lost=True)
    tree = state.tree(event.host)
    if tree is not None and not tree.ended:
        ended = {"ended": True, "ended_mono": event.mono, "how_known": "gone"}
        state = records.trees(state, event.host, **ended)
    for stall in state.stalls:
        if stall.collecting and records.has_all(state, stall.id):
            state = records.stall(state, stall.id, collecting=False, collected=True)
    return state
