"""History and diagnosis -> the next attempt's plan, or the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from watchdog_train.core.events import CheckpointRejected
from watchdog_train.core.fold.state import AttemptRecord, State
from watchdog_train.core.model import (
    CheckpointFinding,
    Outcome,
    Plan,
    RemedyUse,
    Survey,
    Value,
    Why,
    WhyCode,
)
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import crashes, history, outcome, plans
from watchdog_train.core.recovery.choice import (
    BY_A_CHECKPOINT,
    choose_checkpoint,
    failed_last,
    name_of,
)
from watchdog_train.core.recovery.history import Case
from watchdog_train.core.recovery.remedies import RemedySpec, parted

__all__ = ["FALLBACK", "RemedySpec", "Restart", "Stop", "first_plan", "next_step"]

FALLBACK = ("num-workers-0", "omp-1")
"""Settings for a hang of unknown cause that came back after a plain restart."""
_USAGE_ERROR = 2
"""Exit code of argparse."""
_NATIVE_CRASHES = (4, 6, 7, 8, 11)
"""ILL, ABRT, BUS, FPE, SEGV: from below the script, where its own errors end with a code."""


class Restart(Value):
    """One more attempt."""

    plan: Plan
    rejected: tuple[CheckpointRejected, ...]
    """Newer checkpoints that were passed over."""
    chosen: CheckpointFinding | None
    delay_s: float
    why: Why


class Stop(Value):
    """No further attempt."""

    why: Why
    exit_code: int
    outcome: Outcome = "gave_up"
    offers: tuple[str, ...] = ()
    """Remedies that the user may allow for one more attempt."""


def first_plan(state: State, policy: Policy, catalogue: Mapping[str, RemedySpec]) -> Plan:
    """The first attempt: the command as it is, with the remedies the user asked for."""
    uses = history.asked_for(policy, catalogue)
    known = {use.id for use in uses} | set(policy.recovery.without_remedies)
    lacking = [word for word in policy.recovery.with_remedies if parted(word)[0] not in known]
    why = Why("first-attempt")
    if uses:
        why = why.plus(Why("with-remedies", names=tuple(use.word for use in uses)))
    if lacking:
        why = why.plus(Why("not-available", names=tuple(lacking)))
    return plans.build(state, 1, why, uses, catalogue, argv=state.argv)


def next_step(
    state: State, survey: Survey | None, policy: Policy, catalogue: Mapping[str, RemedySpec]
) -> Restart | Stop:
    """What follows an attempt that has ended with nothing of it alive."""
    attempt = state.attempt
    if attempt is None:
        plan = first_plan(state, policy, catalogue)
        return Restart(plan=plan, rejected=(), chosen=None, delay_s=0.0, why=plan.why)
    case = history.gather(state, attempt, survey, policy, catalogue)
    end = _not_due(case)
    if end is not None and not state.just_reopened:
        return end
    offers: list[str] = []
    added = _named(case, catalogue, offers)
    instead = _with_older(case, survey) if added is None else None
    if added is None and not (instead is not None and _crashed_by_itself(case)):
        added = _unnamed(case, catalogue)
    if added is None and instead is not None:
        case, added = instead, ()
    elif added is None or (not added and history.same_again(case)):
        added = _permitted(case, catalogue) or added
    if added is None and state.just_reopened:
        added = ()  # asked for by a person, who knows what has changed since
    if added is None:
        return _give_up(case, offers)
    return _restart(case, added, catalogue, survey, offers)


def _not_due(case: Case) -> Stop | None:
    attempt, recovery = case.attempt, case.policy.recovery
    what = _what_happened(case)
    if not case.stalled and attempt.code == 0:
        return Stop(why=what, exit_code=0, outcome="succeeded")
    if case.stalled and case.stall is not None and case.stall.basis == "finishing":
        why = what.plus(Why("training-finished"))
        return Stop(why=why, exit_code=0, outcome="succeeded")
    if case.stalled and recovery.on_stall != "restart":
        why = what.plus(Why("on-stall", option=recovery.on_stall))
        return Stop(why=why, exit_code=outcome.EXIT_RETRY_ELSEWHERE)
    stays = case.crash is not None and case.crash.fact.stays
    if (stays or not case.stalled) and recovery.on_crash == "stop":
        return _failed(what.plus(Why("on-crash")), attempt)
    if case.family == "waiting-for-input":
        return Stop(why=what.plus(Why("would-ask-again")), exit_code=outcome.EXIT_GAVE_UP)
    row = crashes.row_of(case.crash) if case.crash is not None else None
    if row is not None and row.reaction == "stop":
        return _failed(what.plus(Why(row.why_stop)), attempt)
    if recovery.max_restarts == 0:
        why = what.plus(Why("no-restart"))
        stop = Stop(why=why, exit_code=outcome.EXIT_RETRY_ELSEWHERE)
        return stop if case.stalled else _failed(why, attempt)
    used = case.state.restarts_since_progress
    if used >= recovery.max_restarts:
        why = what.plus(Why("restarts-used", count=used, of=recovery.max_restarts))
        if case.crash is not None and case.crash.repeated:
            return _failed(why, attempt)
        return Stop(why=why, exit_code=outcome.EXIT_GAVE_UP)
    return None


def _failed(why: Why, attempt: AttemptRecord, offers: Sequence[str] = ()) -> Stop:
    stays = attempt.crash is not None and attempt.crash.stays  # its code is that of our signal
    code = outcome.EXIT_GAVE_UP if stays else outcome.child_code(attempt)
    return Stop(why=why, exit_code=code, outcome="failed", offers=tuple(offers))


def _named(
    case: Case, catalogue: Mapping[str, RemedySpec], offers: list[str]
) -> tuple[RemedyUse, ...] | None:
    if case.explanation is None:
        return None
    for remedy in case.explanation.remedies:
        name = remedy.name
        why = Why("diagnosis-names", family="" if remedy.by == "fact" else case.family or "")
        spec = catalogue.get(name)
        if spec is None or not _may_try(case, spec):
            continue
        if spec.changes_nothing:  # a plain retry is the same plan, and that has limits
            if _may_repeat(case) and not history.same_again(case):
                return ()
            continue
        if not _allowed(case, spec, named=True):
            offers.append(name)
            if not _may_try_in_part(case, spec):
                continue
            part = why.plus(Why("not-rank-0"))
            return (RemedyUse(id=name, kind=spec.kind, why=part, in_part=True),)
        return (RemedyUse(id=name, kind=spec.kind, why=why),)
    return None


def _may_try(case: Case, spec: RemedySpec) -> bool:
    if spec.id in case.policy.recovery.without_remedies or spec.id in case.spoiled:
        return False
    if spec.evidence_only and any(spec.id in history.ids(one.plan) for one in case.state.attempts):
        return False
    if case.explanation is not None and spec.id in case.explanation.pointless:
        return False
    # What is in effect in part may be tried as a whole once it is allowed.
    return all(use.id != spec.id or use.in_part for use in case.effect)


def _may_try_in_part(case: Case, spec: RemedySpec) -> bool:
    """Whether the part that needs no permission may help: it is for the ranks other than 0."""
    if spec.in_part is None or any(use.id == spec.id for use in case.effect):
        return False
    root = case.explanation.root if case.explanation is not None else None
    several = any(rank for group in case.state.ranks for rank, _ in group.each())
    return several and (root is None or root.who.rank != 0)


def _allowed(case: Case, spec: RemedySpec, *, named: bool) -> bool:
    allow = case.policy.recovery.allow
    if spec.id in allow or spec.kind in allow:
        return True
    if spec.needs_allow or spec.kind == "training":
        return False
    return spec.kind == "execution" or named


def _unnamed(case: Case, catalogue: Mapping[str, RemedySpec]) -> tuple[RemedyUse, ...] | None:
    """Without a named remedy: the same plan again, then fallback settings; None at the end."""
    again = () if _may_repeat(case) else None
    if case.failed:
        return again
    fallback = _fallback(case, catalogue)
    tried = len(case.state.attempts) - case.state.reopened_after
    if history.same_again(case) or (case.family is None and case.idle and tried > 1):
        return fallback or again
    return fallback if again is None else again


def _may_repeat(case: Case) -> bool:
    if case.crash is None:
        return history.within_limits(case)
    at_once = crashes.row_of(case.crash).reaction == "at-once"
    return history.within_limits(case) if at_once else crashes.may_restart(case.crash)


def _with_older(case: Case, survey: Survey | None) -> Case | None:
    """The same with the next older valid checkpoint, where the newest had its turns."""
    failed = failed_last(case.idle)
    if failed is None or case.family not in BY_A_CHECKPOINT:
        return None
    choice = choose_checkpoint(case.state, survey, instead_of=failed)
    resume = plans.resume(case.state, choice, _resume_arg(case), survey)
    if choice.chosen is None or resume.via == "script":  # which decides itself what it loads
        return None
    return msgspec.structs.replace(case, choice=choice)


def _crashed_by_itself(case: Case) -> bool:
    """An error of its own, again with one checkpoint, points at that; hangs and kills seldom do."""
    end = case.rank_end
    signal = end.signal if end is not None else case.attempt.signal
    return case.failed and signal in (None, *_NATIVE_CRASHES)


def _fallback(case: Case, catalogue: Mapping[str, RemedySpec]) -> tuple[RemedyUse, ...] | None:
    specs = [catalogue[name] for name in FALLBACK if name in catalogue]
    uses = tuple(
        RemedyUse(id=spec.id, kind=spec.kind, why=Why("fallback"), experiment=True)
        for spec in specs
        if _may_try(case, spec) and _allowed(case, spec, named=False)
    )
    return uses or None


def _permitted(case: Case, catalogue: Mapping[str, RemedySpec]) -> tuple[RemedyUse, ...] | None:
    """The next of those that change the training, or its device, and that the user has allowed."""
    allow = case.policy.recovery.allow
    for spec in catalogue.values():
        allowed = spec.id in allow or (spec.kind in allow and not spec.for_trials)
        if spec.kind != "execution" and allowed and _may_try(case, spec):
            use = RemedyUse(id=spec.id, kind=spec.kind, why=Why("fallback"), experiment=True)
            return (use,)
    return None


def _restart(
    case: Case,
    added: tuple[RemedyUse, ...],
    catalogue: Mapping[str, RemedySpec],
    survey: Survey | None,
    offers: Sequence[str],
) -> Restart:
    recovery = case.policy.recovery
    resume = plans.resume(case.state, case.choice, _resume_arg(case), survey)
    replaced = {use.id for use in added}
    uses = (*(use for use in case.effect if use.id not in replaced), *added)
    why = _what_happened(case).plus(
        *_what_next(case, added, catalogue), *_offered(offers), resume.why
    )
    plan = plans.build(
        case.state,
        case.state.next_attempt,
        why,
        uses,
        catalogue,
        argv=resume.argv,
        via=resume.via,
        checkpoint=case.choice.chosen,
        resume_arg=resume.template,
    )
    delay_s = 0.0
    if history.ids(plan) == history.ids(case.attempt.plan) and not _is_first(case):
        doublings = min(max(len(history.tries(case)) - 1, 0), 30)
        delay_s = min(case.policy.timing.backoff_first_s * 2.0**doublings, recovery.backoff_cap_s)
    return Restart(
        plan=plan,
        rejected=case.choice.rejected,
        chosen=case.choice.chosen,
        delay_s=delay_s,
        why=why,
    )


def _is_first(case: Case) -> bool:
    """Whether this is the first restart since the last gain: it waits for nothing."""
    return not case.idle or len(case.state.attempts) - case.state.reopened_after == 1


def _resume_arg(case: Case) -> str | None:
    """As the user said; None after an attempt that ended by it before its first step.

    That is one in which the script refused what auto had found, or was to find a checkpoint of its
    own where we know none.
    """
    given, last = case.policy.recovery.resume_arg, case.attempt
    failed = last.plan.resume_arg is not None and not last.began
    refused = given == plans.AUTO_RESUME and last.code == _USAGE_ERROR
    # Of a program without heartbeats no first step is ever seen.
    found_none = last.plan.checkpoint is None and last.first_beat_s is not None
    return None if failed and (refused or found_none) else given


def _what_happened(case: Case) -> Why:
    attempt = case.attempt
    code: WhyCode = "attempt-ended"
    cause = case.explanation.because if case.explanation is not None else None
    crash = attempt.crash if case.crash is not None else None
    if crash is not None:
        code = "attempt-failed"
    elif case.stalled:
        code = "attempt-stood-still" if case.rank_end is not None else "attempt-hung"
    stall = case.stall if case.stalled else None
    in_training = stall is not None and stall.phase == "train"
    trained = attempt.last_step is None and (in_training or attempt.began)
    return Why(
        code,
        attempts=(attempt.attempt,),
        step=attempt.last_step,
        phase="train" if trained else "unknown",  # its steps are counted by nobody
        exit=None if case.stalled else attempt.code,
        signal=None if case.stalled else attempt.signal,
        end=case.rank_end,
        crash=crash,
        family=cause.family if cause is not None else "",
        certainty=cause.certainty if cause is not None else "",
    )


def _what_next(
    case: Case, added: Sequence[RemedyUse], catalogue: Mapping[str, RemedySpec]
) -> tuple[Why, ...]:
    found = []
    dropped = tuple(sorted(case.spoiled & history.ids(case.attempt.plan)))
    if dropped:
        found.append(Why("taking-back", names=dropped))
    if case.choice.spent:
        found.append(Why("passing-over", names=case.choice.spent))
    if added:
        tried = tuple(f"{use.id} ({catalogue[use.id].summary})" for use in added)
        code: WhyCode = "experiment" if all(use.experiment for use in added) else "trying"
        return (*found, Why(code, names=tried))
    kept = tuple(use.id for use in case.effect)
    return (*found, Why("again-with", names=kept) if kept else Why("again"))


def _give_up(case: Case, offers: Sequence[str]) -> Stop:
    spent, what = history.tries(case), _what_happened(case)
    why = what.plus(
        Why("plan-failed", count=len(spent)) if len(spent) > 1 else Why("no-remedy-left")
    )
    used = dict.fromkeys(one.plan.checkpoint.path for one in spent if one.plan.checkpoint)
    if len(used) > 1:
        why = why.plus(Why("resumed-from", names=tuple(map(name_of, used))))
    if case.crash is not None and case.crash.repeated:
        same = what.plus(Why("same-again", count=case.crash.repeated + 1))
        return _failed(same.plus(*_offered(offers)), case.attempt, offers)
    why = why.plus(Why("nothing-left-to-try"), *_offered(offers))
    return Stop(why=why, exit_code=outcome.EXIT_GAVE_UP, offers=tuple(offers))


def _offered(offers: Sequence[str]) -> tuple[Why, ...]:
    return (Why("not-allowed", names=tuple(offers)),) if offers else ()
