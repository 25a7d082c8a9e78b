"""What is said of a wait while it lasts and when it has ended."""

from __future__ import annotations

import msgspec
import pytest

from tests.core import builders as b
from tests.core.test_suspect import LINE, patience, silent
from watchdog_train.core import events as e
from watchdog_train.core.model import PatienceRow, SilentAt, said
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.report.document import Document, Live
from watchdog_train.report.patience_text import pause_sentence, waiting, waiting_object
from watchdog_train.report.report_text import report_page
from watchdog_train.report.status_text import runs_text

DOING: dict[PatienceRow, x.Doing] = {
    "sleep": w.SleepWait(left_s=60.0),
    "input": w.TerminalWait(),
    "stopped": w.Stopped(),
}


@pytest.mark.parametrize(
    ("row", "until"),
    [
        ("network", "A stall at 10 min."),
        ("sleep", "The sleep ends in at most 1 min. wtrain waits until it wakes."),
        ("input", "wtrain waits until a person types."),
        ("stopped", f"To continue it: kill -CONT {b.ROOT}"),
    ],
)
def test_what_is_waited_for_and_until_when(row: PatienceRow, until: str) -> None:
    state = silent(row, at=41.0, doing=DOING.get(row))
    text = waiting(state, 41.0)
    assert f"ank 0 (pid {b.ROOT})" in text
    assert text.startswith("wtrain waits until it is continued. ") is (row == "stopped")
    assert "41 s" in text
    assert text.endswith(until)
    live = Live(at=1e9 + 41, mono=41.0, supervisor_alive=True)
    document = Document(state=state, live=live)
    assert runs_text([document], width=None).splitlines()[-1] == f"  {text}"
    rows = [row for section in report_page(document).sections for row in section.rows]
    assert ("waiting", text) in rows
    assert ("a stall at" in [row[0] for row in rows]) is (row == "network")
    found = waiting_object(state, 41.0)
    assert (found["row"], found["silent_s"], found["text"]) == (row, 41.0, text)
    assert found["root"]["own"]["line"] == LINE.line


def test_a_pause_is_said_with_the_line_that_announces_it() -> None:
    """Half as long again; nothing of a sleep that is over, and nothing twice."""
    ended = e.SuspicionEnded(
        why=said("progress"),
        paused_s=130.0,
        patience=patience("sleep", w.SleepWait(left_s=54.0)),
        at=SilentAt(own=LINE, wait="SleepWait", steps=3),
    )
    text = pause_sentence(ended)
    assert text.startswith("paused for 2 min 10 s and then continued: ")
    assert text.endswith("wt.expect(200) before train.py:9")
    assert "left" not in text
    assert pause_sentence(msgspec.structs.replace(ended, said=True)) is None
    assert pause_sentence(msgspec.structs.replace(ended, paused_s=0.0)) is None
