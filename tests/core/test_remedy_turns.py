"""Which remedies get their turn, beside what the diagnosis names: one case a test, all pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.core import builders as b
from tests.core.test_ladder import (
    WANDB,
    changed,
    explained,
    history,
    policy,
    remedies,
    step,
    why_of,
)
from watchdog_train.core.events import GivenUp
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import PhaseRanks
from watchdog_train.core.recovery.ladder import first_plan
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.report.why_text import why_text

_replace = msgspec.structs.replace


def with_ranks(state: State, number: int) -> State:
    ranks = PhaseRanks(phase="startup", ranks=((0, number - 1),), step=5)
    return _replace(state, ranks=(ranks,))


def test_wandb_goes_offline_by_itself_on_other_ranks_only() -> None:
    """One rank: offered. Several: the others at once, the whole of it once it is allowed."""
    alone = history(("hang@-", WANDB))
    answer = step(alone)
    assert "wandb-offline" not in remedies(answer)
    assert "--with wandb-offline --allow wandb-offline" in why_text(why_of(answer))
    several = step(with_ranks(alone, 2))
    assert remedies(several) == ["wandb-offline"]
    assert several.plan.in_process == ({"id": "wandb-offline", "keep_rank_0": True},)
    assert "WANDB_MODE" not in several.plan.env
    allowed = step(with_ranks(alone, 2), allow=("wandb-offline",))
    assert allowed.plan.in_process == ({"id": "wandb-offline"},)
    assert allowed.plan.env["WANDB_MODE"] == "offline"


def test_wandb_in_part_is_nothing_for_rank_0() -> None:
    named = b.explained("wandb-offline", family="logger-service-init", rank=0)
    assert "wandb-offline" not in remedies(step(with_ranks(history(("hang@-", named)), 2)))


def test_what_is_in_effect_in_part_is_completed_when_it_is_allowed() -> None:
    before = with_ranks(history(("hang@-", WANDB), ("hang@- wandb-offline", WANDB)), 2)
    uses = tuple(_replace(use, in_part=True) for use in before.attempts[-1].plan.remedies)
    answer = step(changed(before, 1, plan={"remedies": uses}), allow=("wandb-offline",))
    assert answer.plan.in_process == ({"id": "wandb-offline"},)
    assert remedies(answer) == ["wandb-offline"]


def test_what_made_steps_slow_and_brought_nothing_is_taken_back() -> None:
    """Three times slower and no further: gone. Further, or less slow: it stays."""
    rows = (("hang@5", explained("num-workers-0")), ("hang@5 num-workers-0", explained("spawn")))

    def paced(first: float, second: float, last_step: int = 5) -> State:
        state = changed(history(*rows), 0, fastest_steps_s=first)
        return changed(state, 1, fastest_steps_s=second, last_step=last_step)

    assert remedies(step(paced(10.0, 3.0))) == ["spawn"]
    assert remedies(step(paced(10.0, 4.0))) == ["num-workers-0", "spawn"]
    assert remedies(step(paced(10.0, 3.0, last_step=50))) == ["num-workers-0", "spawn"]


def test_the_best_pace_of_an_attempt_is_kept() -> None:
    state = history("hang@5")
    for steps_s in (2.0, None, 5.0, 3.0):
        state = records.paced(state, steps_s)
    assert state.attempts[-1].fastest_steps_s == 5.0


def test_every_entry_of_a_plan_names_its_remedy() -> None:
    names = tuple(CATALOGUE)
    state = State(state="idle", argv=("python", "train.py"))
    plan = first_plan(state, policy(with_remedies=names), CATALOGUE)
    told = [entry["id"] for entry in plan.in_process]
    assert told == [name for name in names if CATALOGUE[name].in_process is not None]
    assert len(told) <= 64
    for name in names:
        assert CATALOGUE[name].env.items() <= plan.env.items() or name == "cpu-not-mps"


def test_what_is_allowed_comes_after_what_has_grounds_one_at_a_time() -> None:
    """By its kind or its id; what is for trials by its id only; without leave nothing changes."""
    unknown = explained(family=None)
    spent = ("num-workers-0", "omp-1")
    rows: list[Any] = [("hang/a@5", unknown), ("hang/a@5", unknown)]
    rows += [(f"hang/a@5 {' '.join(spent)}", unknown)] * 3
    limits = {"max_restarts": 30}
    assert isinstance(step(history(*rows), **limits), GivenUp)
    assert isinstance(step(history(*rows), allow=("execution",), **limits), GivenUp)
    training = [one.id for one in CATALOGUE.values() if one.kind == "training"]
    training.remove("subset")
    for number, name in enumerate(training):
        answer = step(history(*rows), allow=("training",), **limits)
        assert remedies(answer) == [*spent, *training[: number + 1]]
        assert answer.plan.remedies[-1].experiment
        rows.append((f"hang/a@5 {' '.join((*spent, *training[:number], name))}", unknown))
    assert remedies(step(history(*rows), allow=("training",), **limits))[2:] == training  # again
    assert remedies(step(history(*rows), allow=("subset",), **limits))[-1] == "subset"
