"""Which remedies get their turn, beside what the diagnosis names: one case a test, all pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.core import builders as b
from tests.core.test_ladder import WANDB, explained, found, history, policy, remedies, step
from watchdog_train.core.actions import AskSave
from watchdog_train.core.fold import evolve_records as records
from watchdog_train.core.fold.state import State, Tree
from watchdog_train.core.model import RankStatus, RemedyUse, said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery import ladder
from watchdog_train.core.recovery.ladder import Restart, Stop, first_plan
from watchdog_train.core.requests import sooner
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.report.why_text import why_text

_replace = msgspec.structs.replace
CELERY = ("celery", "-A", "tasks", "worker", "-P", "prefork", "--loglevel", "info")


def with_ranks(state: State, number: int) -> State:
    ranks = tuple(
        RankStatus(
            rank=rank, local_rank=rank, pid=100 + rank, host=None, step=5, phase="startup",
            beat_age_s=1.0, state="S", workers=(),
        )
        for rank in range(number)
    )  # fmt: skip
    return _replace(state, ranks=ranks)


def with_attempt(state: State, **fields: Any) -> State:
    """The newest attempt with other fields."""
    attempt = _replace(state.attempts[-1], **fields)
    return _replace(state, attempts=(*state.attempts[:-1], attempt))


def test_wandb_goes_offline_by_itself_on_other_ranks_only() -> None:
    """One rank: offered. Several: the others at once, the whole of it once it is allowed."""
    alone = history(("hang@-", WANDB))
    answer = step(alone)
    assert "wandb-offline" not in remedies(answer)
    assert "--with wandb-offline --allow wandb-offline" in why_text(answer.why)
    several = step(with_ranks(alone, 2))
    assert isinstance(several, Restart)
    assert remedies(several) == ["wandb-offline"]
    assert several.plan.in_process == ({"id": "wandb-offline", "keep_rank_0": True},)
    assert "WANDB_MODE" not in several.plan.env
    allowed = step(with_ranks(alone, 2), allow=("wandb-offline",))
    assert isinstance(allowed, Restart)
    assert allowed.plan.in_process == ({"id": "wandb-offline"},)
    assert allowed.plan.env["WANDB_MODE"] == "offline"


def test_wandb_in_part_is_nothing_for_rank_0() -> None:
    """Where the root is rank 0, what is for the others costs no attempt."""
    named = b.explained("wandb-offline", family="logger-service-init", rank=0)
    assert "wandb-offline" not in remedies(step(with_ranks(history(("hang@-", named)), 2)))


def test_what_is_in_effect_in_part_is_completed_when_it_is_allowed() -> None:
    """The next attempt has one entry of it, the whole one."""
    before = with_ranks(history(("hang@-", WANDB), ("hang@- wandb-offline", WANDB)), 2)
    uses = tuple(_replace(use, in_part=True) for use in before.attempts[-1].plan.remedies)
    plan = _replace(before.attempts[-1].plan, remedies=uses)
    state = with_attempt(before, plan=plan)
    answer = step(state, allow=("wandb-offline",))
    assert isinstance(answer, Restart)
    assert answer.plan.in_process == ({"id": "wandb-offline"},)
    assert remedies(answer) == ["wandb-offline"]


def test_a_celery_worker_gets_another_pool() -> None:
    """Only a command of Celery's worker; the option is behind the subcommand, and there once."""
    state = State(state="idle", argv=CELERY)
    plan = first_plan(state, policy(with_remedies=("celery-solo",)), CATALOGUE)
    assert plan.argv == ("celery", "-A", "tasks", "worker", "--pool=solo", "--loglevel", "info")
    other = State(state="idle", argv=("python", "train.py", "worker"))
    plan = first_plan(other, policy(with_remedies=("celery-solo",)), CATALOGUE)
    assert plan.remedies == ()
    assert plan.argv == other.argv
    assert "not available here: celery-solo" in why_text(plan.why)


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        (("python", "-m", "celery", "worker"), ("python", "-m", "celery", "worker", "--pool=solo")),
        (("/v/celery", "worker", "--pool", "gevent"), ("/v/celery", "worker", "--pool=solo")),
        (("celery", "worker", "-Pprefork", "-c4"), ("celery", "worker", "--pool=solo", "-c4")),
        (("celery", "beat"), None),
        (("python", "celery_like.py", "worker"), None),
        (("echo", "celery", "worker"), None),
    ],
)  # fmt: skip
def test_the_argument_of_celery(argv: tuple[str, ...], changed: tuple[str, ...] | None) -> None:
    """How commands are written that it fits, and some that only look like it."""
    argument = CATALOGUE["celery-solo"].argument
    assert argument is not None
    assert argument.fits(argv) is (changed is not None)
    assert argument.apply(argv) == (changed or argv)


def test_a_stall_before_the_first_save_asks_for_saves() -> None:
    """Beside what is tried, only for a training that listens, and only where nothing was saved."""
    loader = explained("num-workers-0")
    listens = with_attempt(history(("hang@5", loader)), can_save=True)
    assert remedies(step(listens)) == ["num-workers-0", "save-sooner"]
    assert remedies(step(history(("hang@5", loader)))) == ["num-workers-0"]
    assert remedies(step(listens, found(4))) == ["num-workers-0"]
    assert remedies(step(listens, without_remedies=("save-sooner",))) == ["num-workers-0"]
    went_on = with_attempt(history(("hang@9 <4", loader)), can_save=True)
    assert remedies(step(went_on, found(4))) == ["num-workers-0", "save-sooner"]
    crashed = with_attempt(history(("exit1@5", loader)), can_save=True)
    assert remedies(step(crashed)) == ["num-workers-0"]


def sooner_at(at: float, state: State, **seen: Any) -> Any:
    """What the rule says of a poll so many seconds after the launch."""
    member = b.rank(words=7, can_save=seen.pop("can_save", True))
    return sooner.ask(b.observation(b.sample(at, member), **seen), state, Policy(), {})


def test_saves_are_asked_for_in_half_the_time_to_the_stall() -> None:
    """Once, at half of the shortest time; again as long after the save; never of a deaf one."""
    stalled = with_attempt(
        history(("hang@5", explained())), first_step_s=4.0, launching_mono=0.0, stall_id="0001"
    )
    stall = _replace(stalled.stalls[0], declared_mono=110.0, age_s=26.0)
    plan = _replace(
        stalled.attempts[0].plan,
        attempt=2,
        remedies=(RemedyUse(id="save-sooner", kind="execution", why=said("")),),
    )
    second = _replace(
        stalled.attempts[0], attempt=2, plan=plan, trees=(Tree(launched=True),), stall_id=None,
        launching_mono=200.0, first_step_s=4.0,
    )  # fmt: skip
    state = _replace(
        stalled, state="running", attempts=(*stalled.attempts, second), stalls=(stall,)
    )
    assert sooner_at(243.0, state) is None
    assert sooner_at(245.0, state, can_save=False) is None
    request = sooner_at(245.0, state)
    assert isinstance(request, AskSave)
    assert request.by == "the remedy save-sooner"
    asked = _replace(state, save_requested=1, save_wall=1e9 + 245.0)
    assert sooner_at(300.0, asked) is None
    proven = _replace(asked, save_proven=1)
    assert sooner_at(280.0, proven) is None
    assert isinstance(sooner_at(286.0, proven), AskSave)
    of_the_first = _replace(state, save_requested=1, save_wall=1e9 + 100.0)
    assert isinstance(sooner_at(245.0, of_the_first), AskSave)
    without = _replace(plan, remedies=())
    bare = _replace(state, attempts=(stalled.attempts[0], _replace(second, plan=without)))
    assert sooner_at(245.0, bare) is None


def test_what_made_steps_slow_and_brought_nothing_is_taken_back() -> None:
    """Three times slower and no further: gone. Further, or less slow: it stays."""
    rows = (("hang@5", explained("num-workers-0")), ("hang@5 num-workers-0", explained("spawn")))

    def paced(first: float, second: float, last_step: int = 5) -> State:
        state = history(*rows)
        one, two = state.attempts
        one = _replace(one, fastest_steps_s=first)
        two = _replace(two, fastest_steps_s=second, last_step=last_step)
        return _replace(state, attempts=(one, two))

    assert remedies(step(paced(10.0, 3.0))) == ["spawn"]
    assert remedies(step(paced(10.0, 4.0))) == ["num-workers-0", "spawn"]
    assert remedies(step(paced(10.0, 3.0, last_step=50))) == ["num-workers-0", "spawn"]


def test_the_best_pace_of_an_attempt_is_kept() -> None:
    """A slow stretch, and a moment without a pace, do not make it worse."""
    state = history("hang@5")
    for steps_s in (2.0, None, 5.0, 3.0):
        state = records.paced(state, steps_s)
    assert state.attempts[-1].fastest_steps_s == 5.0


def test_giving_up_names_what_might_be_allowed() -> None:
    """The offers are a part of the end, so that the line to go on with can be printed."""
    oom = explained("batch-halve-accumulate", family="cuda-oom")
    answer = step(history(("exit1@-", oom), ("exit1@-", oom)))
    assert isinstance(answer, Stop)
    assert answer.offers == ("batch-halve-accumulate",)
    assert answer.exit_code == ladder.EXIT_GAVE_UP


def test_a_remedy_of_training_is_applied_once_it_is_allowed() -> None:
    """By its id or by its kind."""
    oom = explained("batch-halve-accumulate", family="cuda-oom")
    for allow in ("batch-halve-accumulate", "training"):
        assert remedies(step(history(("exit1@5", oom)), allow=(allow,))) == [
            "batch-halve-accumulate"
        ]


def test_every_entry_of_a_plan_names_its_remedy() -> None:
    """One entry for the client per remedy, the variables of all of them, in the plan's order."""
    names = tuple(CATALOGUE)
    state = State(state="idle", argv=CELERY)
    plan = first_plan(state, policy(with_remedies=names), CATALOGUE)
    told = [entry["id"] for entry in plan.in_process]
    assert told == [name for name in names if CATALOGUE[name].in_process is not None]
    assert len(told) <= 64
    for name in names:
        assert CATALOGUE[name].env.items() <= plan.env.items() or name in ("cpu", "cpu-not-mps")
