"""What the attempts so far mean for the next: lasting settings, spoiled ones, used limits."""

from __future__ import annotations

import itertools

from watchdog_train.core.detection.rank_gone import has_failed
from watchdog_train.core.fold.state import AttemptRecord, StallRecord, State
from watchdog_train.core.model import (
    CheckpointFinding,
    CheckpointRef,
    CrashFact,
    Explanation,
    RankEnd,
    RemedyUse,
    Survey,
    Value,
    Why,
)
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.choice import Choice, choose_checkpoint
from watchdog_train.core.recovery.crashes import Crash
from watchdog_train.core.recovery.remedies import Remedies, parted

EARLY_LIMIT = 2
"""Attempts of one plan that end before their first step."""
STUCK_LIMIT = 3
"""Attempts of one plan without a newer step or checkpoint."""
SLOWER_FACTOR = 3.0
"""Slower than this is not the pace of before."""


class Case(Value):
    state: State
    attempt: AttemptRecord
    stall: StallRecord | None
    """None for a crash without a bundle."""
    stalled: bool
    policy: Policy
    choice: Choice
    survey: Survey
    catalogue: Remedies
    effect: tuple[RemedyUse, ...]
    """Remedies that stay."""
    spoiled: frozenset[str]
    idle: tuple[AttemptRecord, ...]
    """Attempts since the last one that brought a newer step or checkpoint."""

    @property
    def explanation(self) -> Explanation | None:
        return self.stall.explanation if self.stall is not None else None

    @property
    def family(self) -> str | None:
        return self.stall.family if self.stall is not None else None

    @property
    def rank_end(self) -> RankEnd | None:
        """The ended rank that the others waited for."""
        if not self.stalled or self.stall is None or self.stall.basis != "rank-gone":
            return None
        ends = [end for end in self.state.rank_ends if end.rank in self.stall.ranks]
        return ends[-1] if ends else None

    @property
    def failed(self) -> bool:
        """Whether the attempt crashed, or a rank failed for which the others waited."""
        end = self.rank_end
        crash = self.attempt.crash
        return (
            not self.stalled
            or (end is not None and bool(has_failed(end)))
            or (crash is not None and crash.stays)
        )

    @property
    def crash(self) -> Crash | None:
        """What has failed, for the table; None if nothing failed, or that is unknown."""
        fact = self.attempt.crash
        if fact is None or not self.failed:
            return None
        return Crash(
            fact=fact,
            began=self.attempt.began or fact.step is not None,
            repeated=self._repeated(fact),
            resume_added=self.attempt.plan.resume_arg is not None,
        )

    @property
    def same_again(self) -> bool:
        """The attempt before this one hung in the same stacks, and nothing was gained since."""
        if not self.idle or len(self.state.attempts) < 2 or self.stall is None:
            return False
        earlier = self.state.stall(self.state.attempts[-2].stall_id)
        here = self.stall.fingerprint
        return earlier is not None and here is not None and here == earlier.fingerprint

    def _repeated(self, fact: CrashFact) -> int:
        """How many attempts directly before this one failed the same way, without a gain since."""
        attempts = self.state.attempts[self.state.reopened_after :]
        after: CheckpointRef | None = self.choice.chosen
        count = 0
        for before, attempt in zip(reversed(attempts[:-1]), reversed(attempts), strict=False):
            further = (attempt.last_step or 0) > (before.last_step or 0)
            used = attempt.plan.checkpoint
            gained = further if after is None else _is_newer(after, used, self.survey)
            if gained or before.crash is None or before.crash.key != fact.key:
                break
            count += 1
            after = attempt.plan.checkpoint
        return count


def _is_newer(one: CheckpointRef, other: CheckpointRef | None, survey: Survey) -> bool:
    """By the count in the files if that continues over epochs, else in the order of the scan."""
    if other is None:
        return True
    this, that = ((each.path, each.saved_at) for each in (one, other))
    if this == that:
        return False
    own, before = (
        sorted(each.counters.items(), key=lambda item: "epoch" not in item[0])
        for each in (one, other)
    )
    names = [name for name, _ in own]
    goes_on = one.path == other.path or any("epoch" in name for name in names)
    if names and goes_on and names == [name for name, _ in before]:
        return own > before
    order = [(each.path, each.saved_at) for each in survey.findings]
    if this in order and that in order:
        return order.index(this) < order.index(that)
    if one.step is not None and other.step is not None:
        return one.step > other.step
    return one.saved_at is None or other.saved_at is None or one.saved_at > other.saved_at


def asked_for(policy: Policy, catalogue: Remedies) -> tuple[RemedyUse, ...]:
    """Remedies of --with that exist here and are not forbidden; of two numbers the last counts."""
    return tuple(
        RemedyUse(id=name, kind=catalogue[name].kind, why=Why("asked-by-with"), n=number)
        for name, number in dict(map(parted, policy.recovery.with_remedies)).items()
        if name in catalogue and name not in policy.recovery.without_remedies
    )


def gather(state: State, survey: Survey, policy: Policy, catalogue: Remedies) -> Case:
    attempt = state.attempts[-1]
    choice = choose_checkpoint(state, survey)
    spoiled = _spoiled(state.attempts)
    effect = {use.id: use for use in asked_for(policy, catalogue)}
    for use in attempt.plan.remedies:
        spec = catalogue.get(use.id)
        if spec is not None and not spec.evidence_only and use.id not in spoiled:
            effect.setdefault(use.id, use)
    return Case(
        state=state,
        attempt=attempt,
        stall=state.stall(attempt.stall_id or attempt.crash_id),
        stalled=attempt.stall_id is not None,
        policy=policy,
        choice=choice,
        survey=survey,
        catalogue=catalogue,
        effect=tuple(effect.values()),
        spoiled=spoiled,
        idle=_idle_attempts(state.attempts[state.reopened_after :], choice.chosen, survey),
    )


def _spoiled(attempts: tuple[AttemptRecord, ...]) -> frozenset[str]:
    """Remedies with which training crashed before its first step, while it got further without.

    A hang counts as further than a crash: offline mode with an incomplete cache turns one into
    the other. Also one with which steps were much slower and training came no further.
    """
    spoiled: set[str] = set()
    began = False
    for before, after in itertools.pairwise(attempts):
        began = began or before.began or before.stall_id is not None
        crashed = not after.began and after.stall_id is None and after.ended
        no_further = (after.last_step or 0) <= (before.last_step or 0)
        if (began and crashed) or (_slowed(before, after) and no_further):
            spoiled |= after.plan.settings - before.plan.settings
    return frozenset(spoiled)


def _idle_attempts(
    attempts: tuple[AttemptRecord, ...], chosen: CheckpointFinding | None, survey: Survey
) -> tuple[AttemptRecord, ...]:
    best_step, newest = 0, -1
    best = attempts[0].plan.checkpoint if attempts else None
    for index, attempt in enumerate(attempts):
        after = attempts[index + 1].plan.checkpoint if index + 1 < len(attempts) else chosen
        reached = attempt.last_step or 0
        saved = after is not None and _is_newer(after, best, survey)
        if reached > best_step or saved:
            newest = index
        best_step, best = max(best_step, reached), after if saved else best
    return attempts[newest + 1 :]


def tries(case: Case) -> tuple[AttemptRecord, ...]:
    """Attempts without progress under the plan as it would be tried again."""
    wanted = frozenset(use.id for use in case.effect)
    return tuple(attempt for attempt in case.idle if attempt.plan.settings == wanted)


def within_limits(case: Case) -> bool:
    spent = tries(case)
    early = sum(not attempt.began for attempt in spent)
    return early < EARLY_LIMIT and len(spent) < STUCK_LIMIT


def _slowed(before: AttemptRecord, after: AttemptRecord) -> bool:
    old, new = before.fastest_steps_s, after.fastest_steps_s
    return old is not None and new is not None and old >= SLOWER_FACTOR * new
