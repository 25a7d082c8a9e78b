"""Plain lines of progress without a terminal, and what the line of a terminal says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.actions import Observation
from watchdog_train.core.detection.detect import Verdict
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Patience, RunProgress, said
from watchdog_train.core.policy import Output
from watchdog_train.report.summary import status_line
from watchdog_train.supervisor.status_line import ProgressLine


class Pipe:
    """A display without a terminal, or with one."""

    def __init__(self, *, status_line: bool = False) -> None:
        self.has_status_line = status_line
        self.is_between_lines = True
        self.said: list[str] = []
        self.shown: list[str | None] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show_status(self, text: str | None) -> None:
        self.shown.append(text)


def seen(at: float, step: int | None, **changes: Any) -> Observation:
    """A poll with this step of a thousand, two a second."""
    member = b.rank(
        words=step or 0, step=step, total_steps=1000, phase=changes.pop("phase", "train")
    )
    return b.observation(b.sample(at, member), steps_s=2.0, **changes)


def told(display: Pipe, polls: list[tuple[float, int | None]], **policy: Any) -> list[str]:
    telling = ProgressLine(Output(**policy), display)  # type: ignore[arg-type]
    for at, step in polls:
        telling.tell(b.running(), seen(at, step))
    return display.said


def test_a_line_every_five_minutes() -> None:
    polls: list[tuple[float, int | None]] = [(float(at), at) for at in range(1, 902)]
    lines = told(Pipe(), polls)
    assert len(lines) == 3
    assert lines[0] == "wtrain: step 301 of 1,000 (30 %), 2 steps/s, about 6 min left"


Polls = list[tuple[float, int | None]]


@pytest.mark.parametrize(
    ("polls", "policy", "between_lines", "number"),
    [
        pytest.param([(0, 1), (1000, 2)], {"progress_line_s": None}, True, 0, id="not wanted"),
        pytest.param([(0, 1), (1000, 2)], {"quiet": True}, True, 0, id="quiet"),
        # The same step as five minutes before: the detector has words for that.
        pytest.param([(0, 1), (301, 7), (602, 7), (903, 7)], {}, True, 1, id="a silence"),
        pytest.param([(0, None), (301, None)], {}, True, 0, id="no step"),
        # Half a minute at most: a progress bar in a file never ends its line.
        pytest.param([(0, 1), (301, 7), (329, 8)], {}, False, 0, id="it waits for a line to end"),
        pytest.param([(0, 1), (301, 7), (331, 8)], {}, False, 1, id="but not for long"),
    ],
)
def test_how_many_lines(
    polls: Polls, policy: dict[str, Any], between_lines: bool, number: int
) -> None:
    display = Pipe()
    display.is_between_lines = between_lines
    assert len(told(display, polls, **policy)) == number


def test_a_terminal_gets_the_line_and_no_lines() -> None:
    display = Pipe(status_line=True)
    assert told(display, [(0.0, 1), (301.0, 7)]) == []
    assert display.shown[-1] == "wtrain: step 7 of 1,000 (0 %), 2 steps/s, about 8 min left"
    display = Pipe(status_line=True)
    assert told(display, [(0.0, 1), (301.0, 7)], quiet=True) == []
    assert display.shown == []
    assert told(display, [(0.0, 1), (301.0, 7)], progress_line_s=None) == []
    assert display.shown == []


def line(state: State, observation: Observation) -> str | None:
    return status_line(state, observation, RunProgress())


def test_before_the_first_step() -> None:
    assert line(b.running(), seen(12.0, None, phase="load")) == (
        "wtrain: no step yet, phase load, 12 s"
    )
    assert line(b.running(), b.observation(b.sample(12.0))) == "wtrain: no step yet, 12 s"


def test_what_is_not_progress() -> None:
    """A suspicion, a stop under way, a pause between attempts; nothing while somebody types."""
    doubt = e.Suspected(basis="quiet", phase="train", ranks=(0,), age_s=30.0, why=said("silent"))
    silent = seen(40.0, 7, verdict=Verdict(kind="suspect", age_s=31.0))
    assert line(b.running(doubt), silent) == "wtrain: no progress for 31 s, taking a stack sample"
    asked = (
        e.StopRequested(by="Ctrl-C", mode="soft", exit_code=130),
        e.StopAsked(sequence=1, can_be_asked=True, why=said("asked")),
    )
    assert line(b.running(*asked), seen(14.0, 7)) == (
        "wtrain: waiting for the training to exit, 14 s; Ctrl-C kills"
    )
    typing = e.Looked(patience=Patience(row="input"), why=said("typing"))
    assert line(b.running(doubt, typing), silent) is None
    reported = (b.stall(), e.WouldHaveKilled(stall_id="0001", why=said("quiet")))
    assert line(b.running(*reported), silent) == (
        "wtrain: stalled, reported only: no progress for 31 s"
    )
    pause = (
        b.exited(code=1),
        e.TreeGone(),
        e.BackingOff(delay_s=9.0, until_mono=20.0, why=said("early")),
    )
    assert line(b.running(*pause), seen(14.0, 7)) == "wtrain: the next attempt starts in 6 s"
    assert line(b.running(b.exited()), seen(14.0, 7)) is None
