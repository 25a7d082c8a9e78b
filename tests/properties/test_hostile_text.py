"""Nothing that a training writes can move a terminal, break a page or grow without bound."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_report_page import Page
from watchdog_train.core.events import decode
from watchdog_train.core.fold.evolve import evolve, replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import Role
from watchdog_train.report import words
from watchdog_train.report.document import Document, Live
from watchdog_train.report.narrative import narrate
from watchdog_train.report.report_text import report_html, report_page, report_text
from watchdog_train.report.run_json import status_object
from watchdog_train.report.status_text import runs_text, status_text
from watchdog_train.report.summary import closing_lines
from watchdog_train.report.why_text import with_text

GOLDEN = Path(__file__).parents[1] / "golden"
KEPT = {
    "type", "how_known", "outcome", "basis", "phase", "previous", "role", "state", "mode", "kind",
    "stage", "sequence", "result", "patience", "resume_via", "why_kind", "code", "wait",
    "certainty", "sender", "by", "what", "call", "row",
}  # fmt: skip
HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
    "line one\r\nwtrain: success\n\tx",
    "\u202eevil\u2066\u200b",
    "<script>alert(1)</script>\"'&amp;",
    "\x9b31m\x9d0;t\x9c\x85",
    "{0} %s %d",
    "",
    " ",
    "漢字" * 400,
    "a" * 100_000,
    "no_break" * 2_000,
    "e\u0301" * 50,
]


def spoil(value, text):
    """Every free string of an event replaced, the vocabulary left alone."""
    if isinstance(value, dict):
        return {
            key: each if key in KEPT and key != "why" else spoil(each, text)
            for key, each in value.items()
        }
    if isinstance(value, list) and value[2:3] and value[2] in get_args(Role):
        return [*spoil(value[:2], text), value[2], *spoil(value[3:], text)]  # a member
    if isinstance(value, list):
        return [spoil(each, text) for each in value]
    return text if isinstance(value, str) else value


def spoilt_log(name: str, text: str):
    found = []
    for line in (GOLDEN / f"{name}.events.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        bundle_why = event.get("why") if event["type"].startswith("evidence") else None
        spoilt = spoil(event, text)
        if bundle_why is not None:
            spoilt["why"] = bundle_why
        for plan in [spoilt.get("plan")]:
            for use in (plan or {}).get("remedies", []):
                use["kind"] = "execution"
        found.append(decode(msgspec.json.encode(spoilt)))
    return found


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", ["stall_resumed", "crash_then_success", "observed", "gave_up"])
def test_hostile_strings_reach_nobody(name: str, text: str) -> None:
    """Names, frames, reasons, paths and log lines of any content stay harmless text."""
    events = spoilt_log(name, text)
    state = State()
    told = []
    for event in events:
        state = evolve(state, event)
        told += narrate(event, state)
    told += closing_lines(state, {text: text})
    live = Live(at=0.0, supervisor_alive=False, log_tail=(text, text), problems=(text,))
    document = Document(state=state, live=live, events=tuple(events), script_lines={text: text})
    begun = Document(state=replay(events[:9]), live=live)
    screens = [status_text(each, width=80) for each in (document, begun)]
    table = runs_text([document], width=80)
    whole = report_page(document)
    for line in [*told, *screens[0].split("\n"), *screens[1].split("\n"), *table.split("\n")]:
        assert line.isprintable(), ascii(line[:200])
        assert len(line) < 6000
    for screen in (*screens, table):
        assert max(words.display_width(line) for line in screen.split("\n")) <= 80
    assert all(line.isprintable() for line in report_text(whole).split("\n"))
    page = report_html(whole)
    assert "script" not in Page(page).tags
    assert len(page) < 400_000
    json.dumps(with_text(status_object(document)))


@given(st.text(max_size=300), st.integers(min_value=2, max_value=80))
def test_clean_text_is_one_bounded_printable_line(text: str, cap: int) -> None:
    """Whatever comes in, what goes out is one printable line within the bound."""
    found = words.clean(text, cap)
    assert found.isprintable()
    assert len(found) <= cap
    assert words.clean(found, cap) == found


@given(st.text(max_size=200).map(words.clean), st.integers(min_value=4, max_value=60))
def test_cut_text_fits(text: str, width: int) -> None:
    """A cut line never needs more columns than there are, and a short one is left alone."""
    found = words.cut(text, width)
    assert words.display_width(found) <= max(width, 1)
    if words.display_width(text) <= width:
        assert found == text


@given(st.text(alphabet="ab c", max_size=120), st.integers(min_value=1, max_value=30))
def test_wrapped_text_loses_no_word(text: str, width: int) -> None:
    """Wrapping changes where lines end and nothing else."""
    assert " ".join(words.wrap(text, width)).split() == text.split()


@given(st.floats(min_value=0, max_value=1e9))
def test_durations_are_short(seconds: float) -> None:
    """Every duration is a number or two with units."""
    assert re.fullmatch(r"[\d.,]+ (s|min|h|d)( \d+ (s|min|h))?", words.duration(seconds))


@given(st.binary(max_size=400))
def test_terminal_output_keeps_only_harmless_controls(data: bytes) -> None:
    """`wtrain logs` on a terminal passes on colours, tabs and line ends, and no other control."""
    found = words.SafeOutput()(data)
    in_pieces = words.SafeOutput()
    pieces = [in_pieces(data[at : at + 1]) for at in range(len(data))]
    assert b"".join(pieces) == found
    without_colours = re.sub(rb"\x1b\[[0-9;:]{0,32}m", b"", found)
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]", without_colours)
    assert not re.search(rb"\x1b[\]PX^_c]", without_colours)
    assert b"\x1b[2J" not in found


def test_colours_and_progress_bars_of_a_training_are_kept() -> None:
    """Ordinary coloured output and the \\r of a progress bar reach the terminal as they were."""
    data = b"\x1b[32mok\x1b[0m\r 50%|##  |\ttab\n\xc3\xa4\xe2\x96\x88"
    assert words.SafeOutput()(data) == data


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_sequence_in_two_pieces_is_still_one(size: int) -> None:
    """A title, a bidirectional override, a zero-width space and a C1 control, cut anywhere."""
    data = "a\x1b]0;title\x1b\\b\x1b[31mc\x1b[2Jd\u202e\u200be\x9b1mf\x08".encode() + b"\x9b\xff."
    safe = words.SafeOutput()
    found = b"".join(safe(data[at : at + size]) for at in range(0, len(data), size))
    assert found.decode() == "ab\x1b[31mcde1mf\ufffd\ufffd."
