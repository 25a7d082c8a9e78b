"""The page of a run: where the time went, what is in it, and that nothing in it gets out."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.hostile_run import STALLS, a_plan, make_hostile_run
from watchdog_train.core import events as e
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import RunProgress, said
from watchdog_train.report.document import Document, TimeSpent
from watchdog_train.report.report_text import report_html, report_page
from watchdog_train.reporting import gather
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import RunDirectory


class Page(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs).keys()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Document:
    run = make_hostile_run(tmp_path_factory.mktemp("runs") / "sft-20261121-231005-beef")
    return gather(RunDirectory(run), read_events(run / "events.jsonl").events)


@pytest.fixture(scope="module")
def text(report: Document) -> str:
    return report_html(report_page(report))


def test_nothing_that_training_wrote_becomes_markup(text: str) -> None:
    page = Page(text)
    assert {"h1", "section", "details", "pre", "table"} <= set(page.tags)
    foreign = {"script", "img", "iframe", "object", "base", "form", "link", "a"}
    assert not foreign & set(page.tags)
    assert not {name for name in page.attributes if name.startswith(("on", "href", "src"))}
    assert page.tags.count("h1") == 1


def test_the_page_holds_every_stall(text: str) -> None:
    assert text.count('<details class="section">') == STALLS - 3
    for number in range(1, STALLS + 1):
        assert f"Stall {number:04d}" in text
    assert text.count("Stacks, grouped") == 2
    assert text.count("Milestones of each rank") == STALLS
    assert len(text) < 3_000_000


def test_the_summary_of_a_bundle_keeps_hostile_text_as_text(report: Document) -> None:
    """No HTML of others, in fences neither: some renderers know none inside of <details>."""
    run = Path(report.state.run_dir)
    text = (run / f"stalls/{STALLS:04d}/SUMMARY.md").read_text("utf-8")
    assert "script&gt;" in text or "script>" in text, "it tells what the training wrote"
    tags = set(re.findall(r"<(/?\w+)", text))
    assert tags <= {f"{x}{tag}" for x in ("", "/") for tag in ("details", "summary", "pre")}


def _attempt(number: int, t: float, first: int, steps: int) -> list[e.AnyEvent]:
    """10 s of start, then a step a second."""
    return [
        e.AttemptLaunching(t=t, attempt=number, token="t", plan=a_plan(number)),
        e.FirstStep(t=t + 10, attempt=number, rank=0, pid=1, step=first, after_s=10),
        *[
            e.Progress(t=t + 10 + i, ranks=(), members=(), progress=RunProgress(step=first + i))
            for i in range(0, steps, 10)
        ],
    ]


def time_line(events: list[e.AnyEvent]) -> TimeSpent:
    return Document(state=State(), events=tuple(events)).time


def _exit(t: float, step: int) -> e.AttemptExited:
    return e.AttemptExited(t=t, code=None, signal=9, how_known="keeper", step=step)


def _stalled(t: float) -> e.StallDeclared:
    """After 40 s without progress."""
    return e.StallDeclared(
        t=t, stall_id="0001", basis="quiet", phase="train", ranks=(0,), age_s=40.0, why=said("")
    )


def _from_the_beginning(launching: e.AnyEvent, *rest: e.AnyEvent) -> list[e.AnyEvent]:
    assert isinstance(launching, e.AttemptLaunching)
    plan = msgspec.structs.replace(launching.plan, checkpoint=None, resume_via="argv")
    return [msgspec.structs.replace(launching, plan=plan), *rest]


def _progress(t: float, step: int) -> e.Progress:
    return e.Progress(t=t, ranks=(), members=(), progress=RunProgress(step=step))


FIRST = _attempt(1, 0.0, 1, 101)
"""100 steps."""
REPORTED = [
    *_attempt(1, 0.0, 1, 11),
    _stalled(60.0),
    e.WouldHaveKilled(t=61.0, stall_id="0001", why=said("")),
]
RESUMED = e.ResumeVerified(t=126.0, expected_step=27, first_step=35, ok=True, why=said(""))


@pytest.mark.parametrize(
    ("events", "redone", "spent"),
    [
        pytest.param(
            [*FIRST, _stalled(150.0), _exit(155.0, 101), *_attempt(2, 160.0, 62, 101)],
            40,
            {"kept": 160, "redone": 40, "silence": 40, "startup": 20},
            id="steps done twice are not productive",
        ),
        pytest.param(
            [*REPORTED, _exit(100.0, 11)],
            0,
            {"silence": 80, "kept": 10},
            id="a stall that was only reported lasts to the end",
        ),
        pytest.param(
            [*REPORTED, _progress(70.0, 12), _exit(100.0, 40)],
            0,
            {"silence": 50, "kept": 40},
            id="or to the next step",
        ),
        pytest.param(
            [*_attempt(1, 0.0, 1, 21), _exit(50.0, 27), *_attempt(2, 110.0, 35, 20), RESUMED],
            0,
            {"redone": 0},
            id="the first step that is sampled after a save on request is a later one",
        ),
        pytest.param(
            [*FIRST, _exit(120.0, 101), *_from_the_beginning(*_attempt(2, 130.0, 14, 101))],
            101,
            {},
            id="from the beginning, though the first step that is sampled is the 14th",
        ),
        pytest.param(
            [*_attempt(1, 0.0, 1, 51), _exit(60.0, 51), *_attempt(2, 60.0, 1, 21)],
            51,
            {"kept": 20},
            id="an attempt that began again loses all before it",
        ),
        pytest.param(
            [*_attempt(1, 100.0, 1, 31), _exit(50.0, 31), *_attempt(2, 20.0, 20, 31)],
            12,
            {},
            id="the clock was set back",
        ),
    ],
)
def test_where_the_time_went(
    events: list[e.AnyEvent], redone: int, spent: dict[str, float]
) -> None:
    time = time_line(events)
    assert {kind: time.spent_s[kind] for kind in spent} == pytest.approx(spent)
    assert time.steps_redone == redone
    assert all(seconds >= 0 for seconds in time.spent_s.values())
    assert sum(time.spent_s.values()) == pytest.approx(time.wall_s)
    assert time.goodput == pytest.approx(time.spent_s["kept"] / time.wall_s)


def test_goodput_without_steps_is_not_known() -> None:
    """A program that tells no step has no goodput, and is not called unproductive."""
    launching = e.AttemptLaunching(t=0.0, token="t", plan=a_plan(1))
    assert time_line([launching, _exit(100.0, 0)]).goodput is not None
    gone = e.AttemptExited(t=100.0, code=0, signal=None, how_known="keeper", step=None)
    assert time_line([launching, gone]).goodput is None
    assert time_line([]).goodput is None
