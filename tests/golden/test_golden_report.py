"""Golden event logs -> status, narrative and report, byte for byte.

WTRAIN_UPDATE_GOLDEN=1 writes the expected files anew; the diff is then to be read by a person.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from watchdog_train.core.events import AnyEvent, AttemptLaunched, decode
from watchdog_train.core.fold.evolve import evolve, replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import SaveRecord
from watchdog_train.core.policy import Policy
from watchdog_train.report.document import Document, Live
from watchdog_train.report.narrative import narrate
from watchdog_train.report.report_text import report_html, report_page, report_text
from watchdog_train.report.run_json import report_object, short_object, status_object
from watchdog_train.report.status_text import runs_text, status_text
from watchdog_train.report.summary import closing_lines, opening_lines
from watchdog_train.report.why_text import with_text

HERE = Path(__file__).parent
UPDATE = os.environ.get("WTRAIN_UPDATE_GOLDEN") == "1"  # read before conftest clears WTRAIN_*
LOGS = sorted(HERE.glob("*.events.jsonl"))
NAMES = [path.name.removesuffix(".events.jsonl") for path in LOGS]
SCRIPT_LINES = {"num-workers-0": "DataLoader(..., num_workers=0)"}
STATUS_KEYS = [
    "run_id", "name", "run_dir", "state", "outcome", "warning", "exit_code",
    "attempt", "restarts", "supervisor", "command", "job", "guilty_nodes", "progress", "ranks",
    "notices", "waiting", "straggler", "left", "last_stall",
    "checkpoint", "remedies", "milestones", "hooks", "can_be_asked_to_save",
    "started_at", "updated_at",
]  # fmt: skip


def events_of(name: str):
    lines = (HERE / f"{name}.events.jsonl").read_bytes().splitlines()
    return [decode(line) for line in lines]


def looked_at(state: State, *, alive: bool | None) -> Live:
    """What a command would have measured three seconds after the newest event."""
    return Live(
        at=(state.updated_at or 0.0) + 3.0,
        mono=state.mono + 3.0,
        supervisor_alive=alive,
        states={member.pid: "S" for member in state.members},
        log_tail=("{'loss': 2.33, 'learning_rate': 1.8e-05}", " 20%|##        | 612/3000"),
    )


def measured(state: State) -> Live:
    """The same with heartbeats and a save record."""
    live = looked_at(state, alive=True)
    return Live(
        at=live.at,
        mono=live.mono,
        supervisor_alive=True,
        states=live.states,
        log_tail=live.log_tail,
        ranks=tuple(
            msgspec.structs.replace(one, beat_age_s=0.4, state="S")
            for one in Document(state=state).ranks
        ),
        progress=state.progress,
        can_save=True,
        save=SaveRecord(
            path="/home/mia/sft/out/checkpoint-600", format="hf", step=600, t=live.at - 42.0
        ),
    )


def whole(events: list[AnyEvent]) -> Document:
    return Document(state=replay(events), events=tuple(events), script_lines=SCRIPT_LINES)


def check(path: Path, text: str) -> None:
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: WTRAIN_UPDATE_GOLDEN=1 makes it"
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_status_json(name: str) -> None:
    """`status --json` says exactly this about each golden log."""
    state = replay(events_of(name))
    found = status_object(Document(state=state))
    assert list(found) == STATUS_KEYS
    check(HERE / f"{name}.status.json", json.dumps(with_text(found), indent=2) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_status_text(name: str) -> None:
    """`status` shows this at the end of each golden log."""
    state = msgspec.structs.replace(replay(events_of(name)), max_restarts=5)
    live = looked_at(state, alive=None if state.finished else False)
    check(HERE / f"{name}.status.txt", status_text(Document(state=state, live=live)) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_narrative(name: str) -> None:
    """`run` tells the story of each golden log in these lines, each with our prefix."""
    state, lines = State(), []
    for event in events_of(name):
        state = evolve(state, event)
        if isinstance(event, AttemptLaunched) and len(state.attempts) == 1:
            lines += opening_lines(
                state=state, policy=Policy(), watching_pid=event.pid, files="wtrain-runs/latest"
            )
        lines += narrate(event, state)
    lines += closing_lines(state, SCRIPT_LINES, report=f"{state.run_dir}/report.html")
    assert all(line.startswith("wtrain: ") for line in lines)
    check(HERE / f"{name}.narrative.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_report_text(name: str) -> None:
    """`report` says this about each golden log."""
    check(HERE / f"{name}.report.txt", report_text(report_page(whole(events_of(name)))) + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_renders_everywhere(name: str) -> None:
    """A log that ends after any of its events: every renderer, a status of 80 columns, 24 lines."""
    events = events_of(name)
    for length in range(len(events) + 1):
        told = whole(events[:length])
        for live in (
            looked_at(told.state, alive=False),
            looked_at(told.state, alive=True),
            measured(told.state),
            Live(at=0.0, here=False),
        ):
            document = msgspec.structs.replace(told, live=live)
            screen = status_text(document, width=80)
            assert len(screen.splitlines()) < 24, screen
            assert max(map(len, screen.splitlines())) <= 80, screen
            assert runs_text([document])
            json.dumps(with_text(short_object(document)), allow_nan=False)
        page = report_page(told)
        assert report_text(page)
        assert report_html(page).endswith("</html>\n")
        json.dumps(with_text(report_object(told)), allow_nan=False)
        closing_lines(told.state, SCRIPT_LINES)


def test_measured_progress_wins_over_the_log() -> None:
    """With heartbeats at hand, status tells beat ages and the time left, as measured."""
    events = events_of("stall_resumed")
    state = replay(events[:-3])
    document = Document(state=state, live=measured(state))
    text = status_text(document)
    assert "beat 0.4 s ago" in text
    assert "saved 42 s ago, not checked yet" in text
    assert "as recorded" not in text
    found = status_object(document)
    assert found["ranks"][0].beat_age_s == 0.4
    assert found["checkpoint"] == {
        "path": "/home/mia/sft/out/checkpoint-600", "format": "hf", "step": 600, "age_s": 42.0
    }  # fmt: skip
    assert found["can_be_asked_to_save"] is True
