"""History and diagnosis -> the next attempt's plan, or the end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from watchdog_train.core.events import GivenUp
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Outcome, Plan, RemedyUse, Survey, Value, Why, WhyCode
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import crashes, history, outcome, plans
from watchdog_train.core.recovery.choice import (
    BY_A_CHECKPOINT,
    Choice,
    choose_checkpoint,
    failed_last,
    name_of,
)
from watchdog_train.core.recovery.history import Case
from watchdog_train.core.recovery.remedies import Remedies, RemedySpec, parted
from watchdog_train.errors import EXIT_GAVE_UP, EXIT_RETRY_ELSEWHERE

FALLBACK = ("num-workers-0", "omp-1")
"""Settings for a hang of unknown cause that returned after a plain restart."""
_NATIVE_CRASHES = (4, 6, 7, 8, 11)
"""ILL, ABRT, BUS, FPE, SEGV: from below the script, whose own errors exit with a code."""


class Restart(Value):
    plan: Plan
    choice: Choice
    """The chosen checkpoint, and newer ones that were passed over."""
    delay_s: float = 0.0


def first_plan(state: State, policy: Policy, catalogue: Remedies) -> Plan:
    """The first attempt: the command as it is, with the remedies the user asked for."""
    uses = history.asked_for(policy, catalogue)
    known = {use.id for use in uses} | set(policy.recovery.without_remedies)
    lacking = [word for word in policy.recovery.with_remedies if parted(word)[0] not in known]
    why = Why("first-attempt")
    if uses:
        why = why.plus(Why("with-remedies", names=tuple(use.word for use in uses)))
    if lacking:
        why = why.plus(Why("not-available", names=tuple(lacking)))
    return plans.build(state, 1, why, uses, catalogue)


def next_step(
    state: State, survey: Survey, policy: Policy, catalogue: Remedies
) -> Restart | GivenUp:
    """What follows the last attempt, which has ended without live processes."""
    case = history.gather(state, survey, policy, catalogue)
    end = _not_due(case)
    if end is not None and not state.just_reopened:
        return end
    offers: list[str] = []
    """Remedies that the user may allow for one more attempt."""
    added = _named(case, offers)
    instead = _with_older(case) if added is None else None
    if added is None and not (instead is not None and _crashed_by_itself(case)):
        added = _unnamed(case)
    if added is None and instead is not None:
        case, added = instead, ()
    elif added is None or (not added and case.same_again):
        added = _permitted(case) or added
    if added is None and state.just_reopened:
        added = ()  # a person asked for it, and knows what has changed since
    if added is None:
        return _give_up(case, offers)
    return _restart(case, added, offers)


def _end(
    why: Why, code: int = EXIT_GAVE_UP, how: Outcome = "gave_up", offers: Sequence[str] = ()
) -> GivenUp:
    return GivenUp(why=why, exit_code=code, outcome=how, offers=tuple(offers))


def _failed(case: Case, why: Why, offers: Sequence[str] = ()) -> GivenUp:
    crash = case.attempt.crash
    stays = crash is not None and crash.stays  # its code comes from wtrain's signal
    return _end(why, EXIT_GAVE_UP if stays else outcome.child_code(case.attempt), "failed", offers)


def _not_due(case: Case) -> GivenUp | None:
    recovery, what = case.policy.recovery, _what_happened(case)
    if not case.stalled and case.attempt.code == 0:
        return _end(what, 0, "succeeded")
    if case.stalled and case.stall is not None and case.stall.basis == "finishing":
        return _end(what.plus(Why("training-finished")), 0, "succeeded")
    if case.stalled and recovery.on_stall != "restart":
        return _end(what.plus(Why("on-stall", option=recovery.on_stall)), EXIT_RETRY_ELSEWHERE)
    crash = case.crash
    stays = crash is not None and crash.fact.stays
    if (stays or not case.stalled) and recovery.on_crash == "stop":
        return _failed(case, what.plus(Why("on-crash")))
    if case.family == "waiting-for-input":
        return _end(what.plus(Why("would-ask-again")))
    row = crashes.row_of(crash) if crash is not None else None
    if row is not None and row.reaction == "stop":
        return _failed(case, what.plus(Why(row.why_stop)))
    if recovery.max_restarts == 0:
        why = what.plus(Why("no-restart"))
        return _end(why, EXIT_RETRY_ELSEWHERE) if case.stalled else _failed(case, why)
    used = case.state.restarts_since_progress
    if used >= recovery.max_restarts:
        why = what.plus(Why("restarts-used", count=used, of=recovery.max_restarts))
        return _failed(case, why) if crash is not None and crash.repeated else _end(why)
    return None


def _named(case: Case, offers: list[str]) -> tuple[RemedyUse, ...] | None:
    for remedy in case.explanation.remedies if case.explanation is not None else ():
        spec = case.catalogue.get(remedy.name)
        if spec is None or not _may_try(case, spec):
            continue
        if spec.changes_nothing:  # a plain retry is the same plan, and that has limits
            if _may_repeat(case) and not case.same_again:
                return ()
            continue
        why = Why("diagnosis-names", family="" if remedy.by == "fact" else case.family or "")
        if _allowed(case, spec, named=True):
            return (RemedyUse(id=spec.id, kind=spec.kind, why=why),)
        offers.append(spec.id)
        if _may_try_in_part(case, spec):
            why = why.plus(Why("not-rank-0"))
            return (RemedyUse(id=spec.id, kind=spec.kind, why=why, in_part=True),)
    return None


def _may_try(case: Case, spec: RemedySpec) -> bool:
    if spec.id in case.policy.recovery.without_remedies or spec.id in case.spoiled:
        return False
    if spec.evidence_only and any(spec.id in one.plan.settings for one in case.state.attempts):
        return False
    if case.explanation is not None and spec.id in case.explanation.pointless:
        return False
    # A setting of which only a part is in effect may be tried as a whole once it is allowed.
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


def _unnamed(case: Case) -> tuple[RemedyUse, ...] | None:
    """Without a named remedy: the same plan again, then fallback settings; None at the end."""
    again = () if _may_repeat(case) else None
    if case.failed:
        return again
    fallback = _fallback(case)
    tried = len(case.state.attempts) - case.state.reopened_after
    if case.same_again or (case.family is None and case.idle and tried > 1):
        return fallback or again
    return fallback if again is None else again


def _may_repeat(case: Case) -> bool:
    most = crashes.most_repeats(case.crash) if case.crash is not None else None
    if case.crash is None or most is None:
        return history.within_limits(case)
    return case.crash.repeated <= most


def _with_older(case: Case) -> Case | None:
    """The same with the next older valid checkpoint, if the newest had its turns."""
    failed = failed_last(case.idle)
    if failed is None or case.family not in BY_A_CHECKPOINT:
        return None
    choice = choose_checkpoint(case.state, case.survey, instead_of=failed)
    resume = plans.resume(case.state, choice, _resume_arg(case), case.survey)
    if choice.chosen is None or resume.via == "script":  # which decides itself what it loads
        return None
    return replace(case, choice=choice)


def _crashed_by_itself(case: Case) -> bool:
    """Whether an error or native crash ended it.

    Repeated with one checkpoint, such an end points at the checkpoint; hangs and kills seldom do.
    """
    end = case.rank_end
    signal = end.signal if end is not None else case.attempt.signal
    return case.failed and signal in (None, *_NATIVE_CRASHES)


def _experiment(spec: RemedySpec) -> RemedyUse:
    return RemedyUse(id=spec.id, kind=spec.kind, why=Why("fallback"), experiment=True)


def _fallback(case: Case) -> tuple[RemedyUse, ...] | None:
    specs = [case.catalogue[name] for name in FALLBACK if name in case.catalogue]
    fit = (one for one in specs if _may_try(case, one) and _allowed(case, one, named=False))
    return tuple(map(_experiment, fit)) or None


def _permitted(case: Case) -> tuple[RemedyUse, ...] | None:
    """The next remedy that changes the training, or its device, and is allowed by the user."""
    allow = case.policy.recovery.allow
    for spec in case.catalogue.values():
        allowed = spec.id in allow or (spec.kind in allow and not spec.for_trials)
        if spec.kind != "execution" and allowed and _may_try(case, spec):
            return (_experiment(spec),)
    return None


def _restart(case: Case, added: tuple[RemedyUse, ...], offers: Sequence[str]) -> Restart:
    resume = plans.resume(case.state, case.choice, _resume_arg(case), case.survey)
    replaced = {use.id for use in added}
    uses = (*(use for use in case.effect if use.id not in replaced), *added)
    why = _what_happened(case).plus(*_what_next(case, added), *_offered(offers), resume.why)
    number, chosen = case.state.next_attempt, case.choice.chosen
    plan = plans.build(case.state, number, why, uses, case.catalogue, how=resume, checkpoint=chosen)
    delay_s = 0.0
    # The first restart since the last gain waits for nothing.
    is_first = not case.idle or len(case.state.attempts) - case.state.reopened_after == 1
    if plan.settings == case.attempt.plan.settings and not is_first:
        doublings = min(max(len(history.tries(case)) - 1, 0), 30)
        delay_s = case.policy.timing.backoff_first_s * 2.0**doublings
    delay_s = min(delay_s, case.policy.recovery.backoff_cap_s)
    return Restart(plan=plan, choice=case.choice, delay_s=delay_s)


def _resume_arg(case: Case) -> str | None:
    """By the user's setting; None after an attempt that ended by it before its first step.

    In such an attempt the script refused the option found by auto, or had to find a checkpoint
    of its own although the scan knows none.
    """
    given, last = case.policy.recovery.resume_arg, case.attempt
    failed = last.plan.resume_arg is not None and not last.began
    refused = given == plans.AUTO_RESUME and last.code == crashes.USAGE_ERROR
    # A program without heartbeats never shows a first step.
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
        phase="train" if trained else "unknown",  # its steps are not counted
        exit=None if case.stalled else attempt.code,
        signal=None if case.stalled else attempt.signal,
        end=case.rank_end,
        crash=crash,
        family=cause.family if cause is not None else "",
        certainty=cause.certainty if cause is not None else "",
    )


def _what_next(case: Case, added: Sequence[RemedyUse]) -> tuple[Why, ...]:
    found = []
    dropped = tuple(sorted(case.spoiled & case.attempt.plan.settings))
    if dropped:
        found.append(Why("taking-back", names=dropped))
    if case.choice.spent:
        found.append(Why("passing-over", names=case.choice.spent))
    if added:
        tried = tuple(f"{use.id} ({case.catalogue[use.id].summary})" for use in added)
        code: WhyCode = "experiment" if all(use.experiment for use in added) else "trying"
        return (*found, Why(code, names=tried))
    kept = tuple(use.id for use in case.effect)
    return (*found, Why("again-with", names=kept) if kept else Why("again"))


def _give_up(case: Case, offers: Sequence[str]) -> GivenUp:
    what = _what_happened(case)
    if case.crash is not None and case.crash.repeated:
        same = what.plus(Why("same-again", count=case.crash.repeated + 1))
        return _failed(case, same.plus(*_offered(offers)), offers)
    spent = history.tries(case)
    several = len(spent) > 1
    why = what.plus(Why("plan-failed", count=len(spent)) if several else Why("no-remedy-left"))
    used = dict.fromkeys(one.plan.checkpoint.path for one in spent if one.plan.checkpoint)
    if len(used) > 1:
        why = why.plus(Why("resumed-from", names=tuple(map(name_of, used))))
    return _end(why.plus(Why("nothing-left-to-try"), *_offered(offers)), offers=offers)


def _offered(offers: Sequence[str]) -> tuple[Why, ...]:
    return (Why("not-allowed", names=tuple(offers)),) if offers else ()
