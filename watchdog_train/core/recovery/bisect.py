"""What to try, one change at a time, and what the outcomes of the trials say together. Pure.

It must not name a cause: a change without which a hang is gone says where to look, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Value

Outcome = Literal["hung", "crashed", "ran", "unclear", "not-applied"]
"""`ran`: its first steps, or to its end; `not-applied`: the change did not fit this training."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Change(Value, frozen=True, kw_only=True):
    """One thing that a trial does otherwise than the command as it is."""

    id: str
    words: str
    """What it does, as a clause: `loads data in the main process`."""
    remedies: tuple[str, ...] = ()
    """Settings that make it so, of the catalogue or of the trials' own."""
    one_rank: bool = False
    for_good: str | None = None
    """The remedy by which a later run can keep it; None: only a trial can."""


AS_IT_IS = Change(id="as-it-is", words="nothing is changed")
_LOADING = (
    Change(
        id="workers-0",
        words="loads data in the main process",
        remedies=("num-workers-0",),
        for_good="num-workers-0",
    ),
    Change(id="workers-1", words="one loader worker", remedies=("trial-workers-1",)),
    Change(id="spawn", words="loader workers by spawn", remedies=("spawn",), for_good="spawn"),
    Change(
        id="num-proc-none",
        words="maps datasets in the main process",
        remedies=("num-proc-none",),
        for_good="num-proc-none",
    ),
)
_THREADS = Change(id="threads-1", words="one thread", remedies=("omp-1",), for_good="omp-1")
_SERVICES = (
    Change(id="no-logger", words="wandb and other loggers off", remedies=("trial-no-logger",)),
    Change(
        id="offline",
        words="models and data from the cache only",
        remedies=("hf-offline",),
        for_good="hf-offline",
    ),
)
_ONE_RANK = Change(id="one-rank", words="one rank", one_rank=True)
_COMPILE = Change(id="no-compile", words="torch.compile off", remedies=("trial-no-compile",))
_SIZES = tuple(
    Change(
        id=f"examples-{size}",
        words=f"the first {size} examples",
        remedies=(f"trial-examples-{size}",),
    )
    for size in (2, 100, 1000)
)
ALL_CHANGES: tuple[str, ...] = tuple(
    change.id for change in (*_LOADING, _ONE_RANK, _THREADS, _COMPILE, *_SIZES, *_SERVICES)
)
_EARLY = ("startup", "download")
"""Phases in which no data is loaded yet."""


def changes(ranks: int | None, phase: str | None, named: Sequence[str]) -> tuple[Change, ...]:
    """What to try after the command as it is, the most telling first.

    Args:
        ranks: of the launcher on this machine; None where the command does not tell.
        phase: in which the command as it is stood still.
        named: ids of remedies that its diagnosis names.
    """
    one_rank = () if ranks is None or ranks < 2 else (_ONE_RANK,)
    if phase in _EARLY:
        order = (*_SERVICES, *one_rank, _THREADS, *_LOADING, _COMPILE, *_SIZES)
    else:
        order = (*_LOADING, *one_rank, _THREADS, _COMPILE, *_SIZES, *_SERVICES)
    first = [change for change in order if set(change.remedies) & set(named)]
    return (*first, *(change for change in order if change not in first))


class Trial(Value, frozen=True, kw_only=True):
    """One supervised run of the command with one change, and what became of it."""

    change: Change
    outcome: Outcome
    why: str
    """One clause for a person: where it stood still, how it ended, how far it came."""
    seconds: float
    run_dir: str
    step: int | None = None
    phase: str | None = None
    """In which it stood still."""
    family: str | None = None
    remedies: tuple[str, ...] = ()
    """That its diagnosis names."""
    evidence: str | None = None
    """Directory of its dump."""


def has_enough(state: State, steps: int) -> bool:
    """Whether a trial has made the steps that are asked of it."""
    attempt, now = state.attempt, state.progress.step
    if attempt is None or attempt.first_step is None:
        return False
    last = max(attempt.last_step or 0, now or 0)
    return last - attempt.first_step + 1 >= steps


def judge(change: Change, state: State, *, seconds: float, run_dir: str, steps: int) -> Trial:
    """The outcome of a trial that has ended."""
    attempt = state.attempt
    ended_by = (one for one in reversed(state.stalls) if one.why != "manual" and not one.recovered)
    stall = next(ended_by, None)
    step = None if attempt is None else attempt.last_step
    outcome: Outcome = "unclear"
    why = "neither a step nor a standstill within its time"
    if attempt is None or not attempt.launched:
        why = state.why or "it was not launched"
    elif stall is not None and stall.why == "stall":
        outcome = "hung"
        why = f"stands still in phase {stall.phase}"
    elif has_enough(state, steps):
        outcome, why = "ran", f"made {steps} steps" if steps > 1 else "made a step"
    elif attempt.ended and attempt.code == 0 and state.stop is None:
        outcome, why = "ran", "ran to its end"
    elif attempt.ended and state.stop is None:
        outcome = "crashed"
        why = _end_words(attempt.code, attempt.signal)
    diagnosis = stall.diagnosis if stall is not None else None
    if diagnosis is not None and diagnosis.family is not None:
        why = f"{why} ({diagnosis.family})"
    if outcome != "unclear" and not _was_applied(change, state):
        outcome, why = "not-applied", f"the change did not fit this training; it {_past(outcome)}"
    return Trial(
        change=change,
        outcome=outcome,
        why=why,
        seconds=round(seconds, 1),
        run_dir=run_dir,
        step=step,
        phase=None if stall is None else stall.phase,
        family=None if diagnosis is None else diagnosis.family,
        remedies=() if diagnosis is None else diagnosis.remedies,
        evidence=None if stall is None else stall.dir,
    )


def _end_words(code: int | None, signal: int | None) -> str:
    return f"ended by signal {signal}" if signal is not None else f"exit code {code}"


def _past(outcome: Outcome) -> str:
    return {"hung": "hung", "crashed": "crashed", "ran": "ran"}.get(outcome, "ended")


def _was_applied(change: Change, state: State) -> bool:
    """A setting of which the training says that it did not take was no trial of it."""
    attempt = state.attempt
    if attempt is None:
        return True
    return not any(
        name in attempt.reported and name not in attempt.taken for name in change.remedies
    )


class Conclusion(Value, frozen=True, kw_only=True):
    """What the trials say together."""

    words: str
    helps: tuple[str, ...] = ()
    """Ids of changes with which the command ran where it did not as it is."""
    found: bool = False
    """Whether there is such a change."""


def conclude(trials: Sequence[Trial]) -> Conclusion:
    """One sentence, from the trial of the command as it is and the others."""
    base = next((trial for trial in trials if trial.change.id == AS_IT_IS.id), None)
    if base is None:
        return Conclusion(words="Nothing was tried.")
    if base.outcome == "ran":
        words = f"As it is, it {base.why}: there is nothing to search for here."
        return Conclusion(words=f"{words} If it hangs later, give it more --steps.")
    if base.outcome == "unclear":
        return Conclusion(words=f"As it is, it came to no end: {base.why}; give it more --minutes.")
    does = {"hung": "hangs", "crashed": "crashes"}.get(base.outcome, "fails")
    others = [trial for trial in trials if trial is not base]
    helps = [trial.change for trial in others if trial.outcome == "ran"]
    stays = [trial.change for trial in others if trial.outcome == base.outcome]
    if not helps:
        tried = f" with each of {len(stays)} changes that were tried" if stays else ""
        return Conclusion(words=f"It {does} as it is{', and' if stays else ''}{tried}.")
    words = f"It {does} as it is, and not with {_listed(helps)}"
    sizes = _from_size(others)
    if stays:
        words += f"; it still {does} with {_listed(stays)}"
    words += f".{sizes}"
    return Conclusion(words=words, helps=tuple(change.id for change in helps), found=True)


def _listed(found: Sequence[Change]) -> str:
    words = [change.id for change in found]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _from_size(others: Sequence[Trial]) -> str:
    """Between which numbers of examples it begins, where that was seen."""
    sizes = {
        int(trial.change.id.rpartition("-")[2]): trial.outcome
        for trial in others
        if trial.change.id.startswith("examples-")
    }
    good = [size for size, outcome in sizes.items() if outcome == "ran"]
    bad = [size for size, outcome in sizes.items() if outcome in ("hung", "crashed")]
    if not good or (bad and min(bad) < max(good)):
        return ""
    until = f"at {min(bad)}" if bad else "beyond"
    return f" With {max(good)} examples it runs; it begins {until}{' that' if not bad else ''}."
