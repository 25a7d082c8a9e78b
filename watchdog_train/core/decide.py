"""decide(observation, state, policy, remedies) -> Action: what to do now. Pure and total.

The rules are asked in order; the first that has an answer wins. Each is short on purpose: the
order of the list is the priority of the promises (a request and a record come before a kill,
evidence before the first signal, a dead tree before a launch).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from watchdog_train.core import events as e
from watchdog_train.core.actions import (
    Action,
    CleanUp,
    Observation,
    Record,
    Wait,
    on_each,
)
from watchdog_train.core.answers import (
    bring_home,
    collect,
    drop_stale,
    present_stall,
    start_evidence,
)
from watchdog_train.core.fold.state import AttemptRecord, State, Tree
from watchdog_train.core.job import machines
from watchdog_train.core.model import ExitStatus, Why, said, written
from watchdog_train.core.notices.milestones import milestones_event
from watchdog_train.core.notices.poll_events import lost_tasks, news, progress_event
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import daemons, keeping, kill
from watchdog_train.core.recovery.outcome import stop_what_began_anew
from watchdog_train.core.recovery.remedies import Remedies
from watchdog_train.core.recovery.restart import between_attempts, scan_early
from watchdog_train.core.requests import asking
from watchdog_train.core.suspect import next_stall_id, watch

Rule = Callable[[Observation, State, Policy], Action | None]

EMPTY_AGAIN_S = 0.01
"""Seconds between the two samples that must both find no process of an ended attempt."""
LAUNCH_DEADLINE_S = 30.0
"""A keeper that has not reported the start of training after this long has failed."""
MOST_LOST = 5
"""Keepers in a row that may exit before they start anything."""


def decide(observation: Observation, state: State, policy: Policy, remedies: Remedies) -> Action:
    if not state.finished:
        plan: Rule = partial(between_attempts, remedies=remedies)
        for rule in (*RULES, plan, *IN_AN_ATTEMPT):
            action = rule(observation, state, policy)
            if action is not None:
                return action
    return Wait(until=observation.now + policy.detection.poll_s, idle=True)


def _answer_request(observation: Observation, state: State, _policy: Policy) -> Action | None:
    request = observation.request
    if request is None:
        return None
    match request.kind:
        case "stop" | "stop_now" | "interrupt":
            # A second request of any kind, and `stop --now`, do not wait for a save.
            # The job's starter signals every task: the tasks together pass on one request.
            stop = state.stop
            again = stop is not None and not (request.relayed or stop.relayed)
            mode: Literal["soft", "now"] = "now" if request.kind == "stop_now" or again else "soft"
            if stop is not None and request.relayed and mode == "soft":
                return Record(events=())
            code = 130 if request.kind == "interrupt" else 77
            event = e.StopRequested(
                by=request.by, mode=mode, exit_code=code, relayed=request.relayed
            )
            return Record(events=(event,))
        case "save":
            return asking.ask_save(observation, request.by)
        case "dump":
            if state.is_collecting or not kill.live(observation.sample):
                # The bundle under way answers it; without processes there is nothing to dump.
                return Record(events=())
            if observation.is_collecting or "joint" in observation.running:
                return Record(events=())
            return collect(observation, next_stall_id(observation, state), "manual")


def _follow_launch(observation: Observation, state: State, _policy: Policy) -> Action | None:
    attempt = state.attempt
    if attempt is None:
        return None
    starting = (tree for tree in attempt.trees if not (tree.launched or tree.ended))
    return on_each(_follow_one_launch(observation, state, attempt, tree) for tree in starting)


def _follow_one_launch(
    observation: Observation, state: State, attempt: AttemptRecord, tree: Tree
) -> Action:
    report, where = observation.of(tree.host).launch, written(tree.host)
    if report is not None and report.root is not None:
        launched = machines.launched(report.root, report.keeper, tree.host)
        return Record(events=(launched,))
    early = observation.now - attempt.launching_mono < LAUNCH_DEADLINE_S
    if report is None and (early or not observation.of(tree.host).is_heard):
        return Wait(until=observation.now + 0.02)
    error = said(report.error) if report is not None else Why("keeper-silent")
    if report is not None and report.lost:
        error = Why("keeper-ended-early", pid=report.keeper.pid)
        lost = state.postponed.tries if state.postponed is not None else 0
        if lost + 1 < MOST_LOST and len(attempt.trees) == 1:
            return Record(events=(e.LaunchPostponed(why=error),))
    # A missing report does not disprove the start; a training that did start is found and killed.
    how_known = "not-started" if report is not None else "gone"
    exited = e.AttemptExited(
        where=where, code=None, signal=None, how_known=how_known, step=None, error=error
    )
    return Record(events=(exited,))


def _record_news(observation: Observation, state: State, policy: Policy) -> Action | None:
    found = news(observation, state, policy)
    return Record(events=found) if found else None


def _last_progress(observation: Observation, state: State) -> e.Progress:
    """Progress from the last values of processes that may be gone, over the present census."""
    sample = observation.sample
    said = [sight.last_words or sight.sample.members for sight in observation.trees]
    heard = msgspec.structs.replace(sample, members=tuple(itertools.chain.from_iterable(said)))
    return progress_event(sample, state, observation.steps_s, heard=heard)


def _record_exit(observation: Observation, state: State, policy: Policy) -> Action | None:
    found: dict[str, ExitStatus] = {}
    for tree in state.trees:
        if tree.launched and not tree.ended:
            status = daemons.exit_of(observation, state, policy, tree)
            if isinstance(status, Record | Wait):
                return status
            if status is not None:
                found[tree.host] = status
    return _exited(observation, state, found) if found else None


def _exited(observation: Observation, state: State, ended: Mapping[str, ExitStatus]) -> Record:
    last = _last_progress(observation, state)
    before = state.attempt.last_step if state.attempt is not None else None
    step = last.progress.step if last.progress.step is not None else before
    events: list[e.AnyEvent] = []
    further = last.progress.step is not None and last.progress.step > (before or 0)
    first = not any(tree.ended for tree in state.trees)
    if last.progress.step is not None and (first or further):
        # The slots may be gone already; then the progress recorded before is the newest. It lists
        # all ranks: record it once even if a thousand machines end one after another.
        events.append(last)
    stall = present_stall(state)
    if (
        stall is not None
        and state.kill is None
        and (stall.basis == "finishing" or any(each.code == 0 for each in ended.values()))
    ):
        # Its own exit counts, also a failure: only what wtrain killed may count as finished.
        why = Why("ended-by-itself")
        events.append(e.StallRecovered(stall_id=stall.id, why=why))
    if any(each.code != 0 for each in ended.values()):
        events += lost_tasks(observation)
    said = [one for sight in observation.trees for one in sight.last_words or sight.sample.members]
    heard = [one.slot for one in said if one.slot is not None]
    exits = (
        e.AttemptExited(
            where=written(host),
            code=status.code,
            signal=status.signal,
            how_known=status.how_known,
            step=step,
            error=Why("behind-exit-0", end=status.behind) if status.behind is not None else None,
            load_begun=any(slot.load_begun for slot in heard),
            saves=sum(slot.saves_ended for slot in heard),
            trainings=max((slot.train_ordinal for slot in heard), default=0),
        )
        for host, status in ended.items()
    )
    return Record(events=(*events, *milestones_event(observation, state), *exits))


def _pursue_kill(observation: Observation, state: State, policy: Policy) -> Action | None:
    ask_until = asking.ask_until(observation, state, policy)
    return kill.pursue_all(observation, state, policy.stopping, ask_until=ask_until)


def _wind_up(observation: Observation, state: State, policy: Policy) -> Action | None:
    """After the root's exit: take crash evidence, end what is left, and see the tree gone."""
    attempt = state.attempt
    if attempt is None or not attempt.has_to_end or attempt.settled:
        return None
    failed = attempt.code != 0
    known = attempt.crash_id is not None or attempt.stall_id is not None
    ours = state.stop is not None or state.given_up is not None
    if failed and attempt.root is not None and not known and not ours:
        return start_evidence(observation, state, next_stall_id(observation, state), "crash")
    stall = present_stall(state)
    if stall is not None and not stall.collected and not _hurried(state):
        return start_evidence(observation, state, stall.id, "stall")
    if state.is_collecting and not _hurried(state):
        return Wait(until=observation.now + 0.1)
    return on_each(
        _wind_up_one(observation, state, policy, tree) for tree in attempt.trees if not tree.settled
    )


def _wind_up_one(
    observation: Observation, state: State, policy: Policy, tree: Tree
) -> Action | None:
    sight = observation.of(tree.host)
    sample, failed = sight.sample, tree.code != 0
    if not sight.is_heard:
        return Wait(until=observation.now + 0.1)
    left = kill.live(sample)
    if left and policy.recovery.observe and state.stop is None:
        return None
    if left and not tree.ended:
        return kill.begin("hang", state, sample, Why("machine-failed"))
    if not tree.ended:
        return Wait(until=observation.now + 0.1)
    if left and not failed and state.stop is None:
        since = sight.exited_at or tree.ended_mono
        waits = daemons.wait_for(observation, state, policy.timing, since)
        if waits is not None:
            return waits
    if left:
        names = tuple(f"{m.member.name} ({m.member.pid})" for m in left[:8])
        why = Why("outlived", names=names, outliving=sample.outliving)
        return kill.begin("sweep", state, sample, why)
    if tree.how_known == "not-started":
        return CleanUp(host=tree.host)  # a tree that never started is not polled
    if sample.empty_looks < 2:
        return Wait(until=observation.now + EMPTY_AGAIN_S)
    waited_s = observation.now - tree.ended_mono
    stays = any(daemon.is_left for daemon in sample.daemons)
    if sample.keeper_alive and waited_s < kill.KEEPER_S and not stays:
        return Wait(until=observation.now + 0.02)
    if sample.keeper_alive:
        why = Why("keeper-stays")
        return kill.begin("sweep", state, sample, why)
    return CleanUp(host=tree.host)


def _hurried(state: State) -> bool:
    return state.stop is not None and state.stop.mode == "now"


def _pursue_stall(observation: Observation, state: State, policy: Policy) -> Action | None:
    attempt = state.attempt
    stall = present_stall(state)
    if attempt is None or stall is None or attempt.ended:
        return None
    if observation.verdict.progress_at > stall.declared_mono:
        recovered = e.StallRecovered(stall_id=stall.id, why=Why("progress-before-kill"))
        return Record(events=(recovered,))
    if not stall.collected:
        return start_evidence(observation, state, stall.id, "stall")
    if policy.recovery.observe or policy.recovery.on_stall == "report":
        return Record(events=(e.WouldHaveKilled(stall_id=stall.id, why=stall.verdict),))
    if state.kill is not None:
        return Wait(until=observation.now + 0.1)  # for a machine whose end is not reported yet
    return kill.begin_first("hang", observation, state, stall.verdict)


def _of_the_crew(rule: Rule) -> Rule:
    def ask(observation: Observation, state: State, policy: Policy) -> Action | None:
        return None if state.crew is None else rule(observation, state, policy)

    return ask


def _with_scan(rule: Rule) -> Rule:
    """A rule about the end of an attempt: while it waits, checkpoints are scanned."""

    def ask(observation: Observation, state: State, policy: Policy) -> Action | None:
        action = rule(observation, state, policy)
        early = scan_early(observation, state, policy) if isinstance(action, Wait) else None
        return early or action

    return ask


RULES: tuple[Rule, ...] = (
    _answer_request,
    _follow_launch,
    _record_news,
    _record_exit,
    _of_the_crew(machines.hear),
    bring_home,
    _of_the_crew(machines.explain_together),
    keeping.keep,
    asking.prove,
    drop_stale,
    _of_the_crew(machines.lose),
    stop_what_began_anew,
    _with_scan(_pursue_kill),
    asking.stop,
    _with_scan(_wind_up),
    _of_the_crew(machines.claim),
    _of_the_crew(machines.gather),
)
IN_AN_ATTEMPT: tuple[Rule, ...] = (_pursue_stall, watch)
"""After `between_attempts`, which has no action while an attempt is under way."""


def attend(observation: Observation, state: State, policy: Policy) -> Action | None:
    """What an agent records of its own machine whatever its leader wants; it decides nothing."""
    rules = (_follow_launch, _record_news, _record_exit)
    found = (rule(observation, state, policy) for rule in rules)
    return next((action for action in found if action is not None), None)
