"""What the supervisor cannot see is said once."""

from __future__ import annotations

from tests.core import builders as b
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.notices import sight
from watchdog_train.report.why_text import why_text


def test_a_look_that_cannot_be_had_is_said_once() -> None:
    """With the reason; nothing is said as long as there is none."""
    state = b.running()
    look = b.sample(1.0)
    assert sight.news(b.observation(look), state) == []
    blind = b.observation(look, blind="Too many open files")
    (said,) = sight.news(blind, state)
    assert said.kind == "blind"
    assert "Too many open files" in why_text(said.why)
    assert sight.news(blind, evolve(state, said)) == []
