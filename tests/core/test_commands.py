"""Commands of the user's own: which names there are, and how a restart waits for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core import builders as b
from watchdog_train.config import load
from watchdog_train.core import events as e
from watchdog_train.core.actions import Launch, Observation, RunCommands, Wait
from watchdog_train.core.commands import event_names, parse, wanted
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.core.policy import Policy
from watchdog_train.core.recovery.restart import between_attempts
from watchdog_train.errors import WtrainError
from watchdog_train.evidence.redact import redact_data
from watchdog_train.report.why_text import why_text

ASKED = load(None, None, {"notify.commands": ("run_finished=a", "before_restart=b")}).policy


def waiting_for_launch() -> tuple[Observation, State]:
    """Attempt 1 has crashed and is gone, attempt 2 is planned."""
    history = (
        e.AttemptLaunching(token="t", plan=b.plan(1)),
        e.AttemptLaunched(pid=10, start=1010, keeper_pid=9, keeper_start=1009),
        b.exited(1),
        e.TreeGone(),
        e.PlanMade(plan=b.plan(2)),
    )
    state = State()
    for moment, event in enumerate(history, 1):
        state = evolve(state, replace(event, mono=float(moment), attempt=1))
    return b.observation(b.sample(20.0, keeper_alive=False)), state


@pytest.mark.parametrize(
    ("text", "event", "command"),
    [
        ("stall_declared=notify-send x", "stall_declared", "notify-send x"),
        (" before-restart = psql -c 'a=b' ", "before_restart", "psql -c 'a=b'"),
    ],
)
def test_a_name_and_the_rest_is_the_command(text: str, event: str, command: str) -> None:
    found = parse(text)
    assert (found.event, found.command) == (event, command)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stall_declared", "not EVENT=COMMAND"),
        ("stall_declared= ", "not EVENT=COMMAND"),
        ("stal_declared=x", "did you mean 'stall_declared'?"),
        ("commands_ran=x", "is no event"),
        ("notified=x", "is no event"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_guess(text: str, said: str) -> None:
    """By the settings, before anything runs; one for commands themselves would call itself."""
    with pytest.raises(WtrainError) as refused:
        load(None, None, {"notify.commands": (text,)})
    assert said in refused.value.message


def test_names_are_those_of_the_log_and_one_more() -> None:
    assert {"before_restart", "stall_declared", "run_finished"} <= set(event_names())
    assert wanted(ASKED)["before_restart"][0].number == 2


def test_a_restart_waits_for_its_commands_and_their_failure_stops_nothing() -> None:
    """Started once; then waited for; recorded; then the launch."""
    seen, state = waiting_for_launch()
    assert isinstance(between_attempts(seen, state, Policy(), {}), Launch)
    action = between_attempts(seen, state, ASKED, {})
    assert isinstance(action, RunCommands)
    assert action.commands == (2,)
    begun = evolve(
        state, e.CommandsStarting(for_event="before_restart", for_attempt=2, numbers=(2,))
    )
    running = replace(seen, running=frozenset({"commands"}))
    assert isinstance(between_attempts(running, begun, ASKED, {}), Wait)
    results = (e.CommandResult(number=2, ok=False, code=3, why=said("exit code 3"), seconds=0.1),)
    told = replace(seen, commands=results)
    record = between_attempts(told, begun, ASKED, {})
    assert record.consumes == ("commands",)
    done = evolve(begun, record.events[0])
    assert isinstance(between_attempts(seen, done, ASKED, {}), Launch)


def test_commands_of_a_dead_supervisor_are_settled_and_not_begun_again() -> None:
    """The intent is in the log, nobody runs them any more: half done twice may be worse."""
    seen, state = waiting_for_launch()
    begun = evolve(
        state, e.CommandsStarting(for_event="before_restart", for_attempt=2, numbers=(2,))
    )
    record = between_attempts(seen, begun, ASKED, {})
    (ran,) = record.events
    assert not ran.results[0].ok
    assert "supervisor ended" in why_text(ran.results[0].why)
    assert isinstance(between_attempts(seen, evolve(begun, ran), ASKED, {}), Launch)


def test_a_stop_does_not_wait_for_commands() -> None:
    seen, state = waiting_for_launch()
    stopped = evolve(state, e.StopRequested(by="me", mode="soft", exit_code=77))
    running = replace(seen, running=frozenset({"commands"}))
    record = between_attempts(running, stopped, ASKED, {})
    assert isinstance(record.events[0], e.RunFinished)


def test_what_a_command_reads_has_no_secrets() -> None:
    """By name, by flag, in a URL, in a text; what only looks a little like one stays."""
    secret = "hunter2-hunter2"
    data = {
        "argv": ["train.py", "--api-key", secret, "--max-tokens", "5"],
        "plan": {"env": {"HF_TOKEN": secret, "OMP_NUM_THREADS": "1"}},
        "why": f"https://me:{secret}@host/x?token={secret}",
        "step": 5,
    }
    clean = redact_data(data)
    assert secret not in str(clean)
    assert clean["plan"]["env"]["OMP_NUM_THREADS"] == "1"
    assert clean["step"] == 5
    assert clean["argv"][-2:] == ["--max-tokens", "5"]
