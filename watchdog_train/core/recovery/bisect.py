"""Which trial `wtrain bisect` makes next, its limits, and what became of it. Pure.

Assumes that less is safer: a command that hangs without loader workers is not tried with one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal

from watchdog_train.core.fold.state import State
from watchdog_train.core.model import CrashFact, Explanation, Value
from watchdog_train.core.model import explanation as x
from watchdog_train.core.starting.command_line import find, with_options, without_option
from watchdog_train.core.starting.launchers import UNKNOWN_RANKS, describe

What = Literal["workers", "evaluation", "ranks", "examples"]
"""What a trial can reduce; the first changes a training least."""
Outcome = Literal["ran", "hung", "failed", "unclear"]
"""unclear: it neither ended nor hung within its time, or a person stopped it."""
Levels = Mapping[What, tuple[int, ...]]
"""The amounts to try, lowest first."""
MOST_TRIALS = 15
SILENCE_LEAST_S = 30.0
FACTOR = 3.0
"""More examples, ranks and evaluations take longer than the first trial; fewer workers, too."""
_LEVELS: Levels = {"workers": (0, 1), "evaluation": (0,), "ranks": (1, 2), "examples": (2, 100)}
_REMEDIES: Mapping[What, str] = {
    "workers": "num-workers-{}", "evaluation": "no-eval", "ranks": "", "examples": "subset={}",
}  # fmt: skip


class Change(Value):
    what: What
    amount: int

    @property
    def remedy(self) -> str:
        """The setting that does it; "" if a number of processes in the command does it."""
        return _REMEDIES[self.what].format(self.amount)


Setting = tuple[Change, ...]
AS_GIVEN: Setting = ()


class Trial(Value):
    setting: Setting
    outcome: Outcome
    seconds: float
    run_dir: str
    step: int | None = None
    effective: Setting = ()
    """Without changes that the training refused or could not apply."""
    place: x.Place | None = None
    explanation: Explanation | None = None
    crash: CrashFact | None = None
    evidence: str | None = None

    @property
    def avoids(self) -> bool:
        """It ran, and with less than as given."""
        return self.outcome == "ran" and bool(self.effective)


def levels_of(command: Sequence[str], variables: Mapping[str, str]) -> Levels:
    """What can be tried; fewer ranks only if a launcher in the command starts them."""
    found, ranks = find(command), 1
    if found is not None and with_options(command, ()) is not None:
        ranks = describe(found, variables, {}).processes or UNKNOWN_RANKS
    fewer = tuple(one for one in _LEVELS["ranks"] if one < ranks)
    levels = {**_LEVELS, "ranks": fewer}
    return {what: levels[what] for what in _LEVELS if levels[what]}


def command_of(command: tuple[str, ...], setting: Setting) -> tuple[str, ...]:
    ranks = next((change.amount for change in setting if change.what == "ranks"), None)
    found = find(command)
    if ranks is None or found is None:
        return command
    name = "nproc-per-node" if found.family == "torchrun" else "num-processes"
    return with_options(without_option(command, name), (f"--{name}={ranks}",)) or command


def next_setting(trials: Sequence[Trial], levels: Levels) -> Setting | None:
    """The next trial; None: no other would help."""
    known = {trial.setting: trial for trial in trials}
    search = _search(levels)
    try:
        wanted = next(search)
        while wanted in known:
            wanted = search.send(known[wanted])
    except StopIteration:
        return None
    return wanted if len(trials) < MOST_TRIALS else None


def _search(levels: Levels) -> Generator[Setting, Trial, None]:
    """The smallest, all as given, one change at a time, then the fewest changes that suffice."""
    smallest = yield tuple(Change(what=what, amount=least[0]) for what, least in levels.items())
    if (yield AS_GIVEN).outcome != "hung":
        return
    for change in smallest.effective:
        if (yield (change,)).avoids:
            for amount in reversed(levels[change.what][1:]):
                if (yield (Change(what=change.what, amount=amount),)).avoids:
                    return
            return
    needed = smallest.effective if smallest.avoids else ()
    for change in reversed(needed):  # what changes the training most is given back first
        fewer = tuple(one for one in needed if one != change)
        if len(fewer) > 1 and (yield fewer).avoids:
            needed = fewer


def limits_s(trials: Sequence[Trial], longest_s: float) -> tuple[float, float | None]:
    """Seconds for the next trial, and for its silence; None: the run's own, until a trial ran."""
    healthy = next((one.seconds for one in trials if one.outcome == "ran"), None)
    given = next((one.seconds for one in trials if one.setting == AS_GIVEN), longest_s)
    silence_s = None
    if healthy is not None:
        silence_s = min(max(SILENCE_LEAST_S, FACTOR * healthy), longest_s / 2)
    return min(FACTOR * given + (silence_s or 0.0), longest_s), silence_s


def judge(
    state: State, before: Sequence[Trial], setting: Setting, *, seconds: float, late: bool
) -> Trial:
    """The result of a trial, from the end of its run; `late`: stopped at its time limit."""
    attempt, caught = state.attempt, state.last_stall
    outcome: Outcome = "unclear"
    if attempt is None:
        return Trial(setting=setting, outcome=outcome, seconds=seconds, run_dir=state.run_dir)
    found = caught.explanation if caught is not None else None
    crash = attempt.crash or (caught.crash if caught is not None else None)
    if late:
        hung_at = next((one.step for one in before if one.setting == AS_GIVEN), None)
        outcome = "ran" if (attempt.last_step or 0) > (hung_at or 0) else "unclear"
    elif state.stop is None and (attempt.stall_id is None or crash is not None):
        outcome = "ran" if attempt.code == 0 else "failed"
    elif state.stop is None and (found is None or not _works(found)):
        outcome = "hung"

    def took(remedy: str) -> bool:
        # A training that stopped early may not have reached what the setting changes.
        told = outcome == "ran" or remedy in attempt.reported
        return not remedy or remedy in attempt.taken or not told

    return Trial(
        setting=setting,
        outcome=outcome,
        seconds=seconds,
        run_dir=state.run_dir,
        step=attempt.last_step,
        effective=tuple(one for one in setting if took(one.remedy.partition("=")[0])),
        place=_place(found) if found is not None and outcome == "hung" else None,
        explanation=found,
        crash=crash if outcome == "failed" else None,
        evidence=caught.dir if caught is not None else None,
    )


def _works(found: Explanation) -> bool:
    """It was silent for longer than its limit, and computed or exchanged data."""
    doing = found.root.doing if found.root is not None else None
    return found.kind == "healthy" or (isinstance(doing, x.Computing) and doing.changed is True)


def _place(found: Explanation) -> x.Place | None:
    standing = (found.root, found.through, *found.knot, *found.also, *found.victims)
    own = (one.own for one in standing if one is not None and one.own is not None)
    return next(own, found.root.at if found.root is not None else None)


def best(trials: Sequence[Trial]) -> Trial | None:
    """If the command hangs as given: the last trial that ran; the search ends at the best."""
    hangs = any(one.setting == AS_GIVEN and one.outcome == "hung" for one in trials)
    return next((one for one in reversed(trials) if hangs and one.avoids), None)
