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
from watchdog_train.report.report_text import report_page
from watchdog_train.report.sections import report_html
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
    """Only our own elements, and no script."""
    page = Page(text)
    assert {"h1", "section", "details", "pre", "table"} <= set(page.tags)
    foreign = {"script", "img", "iframe", "object", "base", "form", "link", "a"}
    assert not foreign & set(page.tags)
    assert not {name for name in page.attributes if name.startswith(("on", "href", "src"))}
    assert page.tags.count("h1") == 1


def test_the_page_holds_every_stall(text: str) -> None:
    """All stalls with stacks and milestones, the newest open."""
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


def test_steps_done_twice_are_not_productive() -> None:
    """100 steps, of which the last 40 are done again, a stall, a restart, then 100 more."""
    stall = e.StallDeclared(
        t=150.0, stall_id="0001", basis="quiet", phase="train", ranks=(0,), age_s=40.0, why=said("")
    )
    line = time_line(
        [*_attempt(1, 0.0, 1, 101), stall, _exit(155.0, 101), *_attempt(2, 160.0, 62, 101)]
    )
    assert line.spent_s["kept"] == pytest.approx(60 + 100)
    assert line.spent_s["redone"] == pytest.approx(40)
    assert line.spent_s["silence"] == pytest.approx(40)
    assert line.spent_s["startup"] == pytest.approx(20)
    assert line.steps_redone == 40
    assert line.goodput == pytest.approx(160 / 270)
    assert sum(line.spent_s.values()) == pytest.approx(line.wall_s)


def test_silence_that_was_only_reported_is_no_productive_time() -> None:
    """Observing kills nothing: the silence lasts until the next step, or to the end."""
    stall = e.StallDeclared(
        t=60.0, stall_id="0001", basis="quiet", phase="train", ranks=(0,), age_s=40.0, why=said("")
    )
    reported = e.WouldHaveKilled(t=61.0, stall_id="0001", why=said(""))
    begun = [*_attempt(1, 0.0, 1, 11), stall, reported]
    line = time_line([*begun, _exit(100.0, 11)])
    assert line.spent_s["silence"] == pytest.approx(80)
    assert line.spent_s["kept"] == pytest.approx(10)
    later = e.Progress(t=70.0, ranks=(), members=(), progress=RunProgress(step=12))
    line = time_line([*begun, later, _exit(100.0, 40)])
    assert line.spent_s["silence"] == pytest.approx(50)
    assert line.spent_s["kept"] == pytest.approx(40)


def test_an_exact_resume_does_nothing_again() -> None:
    """Saved at step 27 on request: the first step that is sampled later is not where it began."""
    resumed = e.ResumeVerified(t=126.0, expected_step=27, first_step=35, ok=True, why=said(""))
    line = time_line(
        [*_attempt(1, 0.0, 1, 21), _exit(50.0, 27), *_attempt(2, 110.0, 35, 20), resumed]
    )
    assert (line.steps_redone, line.spent_s["redone"]) == (0, 0.0)


def test_a_start_from_the_beginning_does_every_step_again() -> None:
    """Even though the first step that was sampled is the 14th."""
    launching, *rest = _attempt(2, 130.0, 14, 101)
    assert isinstance(launching, e.AttemptLaunching)
    plan = msgspec.structs.replace(launching.plan, checkpoint=None, resume_via="argv")
    again = msgspec.structs.replace(launching, plan=plan)
    line = time_line([*_attempt(1, 0.0, 1, 101), _exit(120.0, 101), again, *rest])
    assert line.steps_redone == 101


def test_an_attempt_that_began_anew_loses_all_before_it() -> None:
    """What began again at step 1 keeps nothing of what was before."""
    line = time_line([*_attempt(1, 0.0, 1, 51), _exit(60.0, 51), *_attempt(2, 60.0, 1, 21)])
    assert line.spent_s["kept"] == pytest.approx(20)
    assert line.steps_redone == 51


def test_goodput_without_steps_is_not_known() -> None:
    """A program that tells no step has no goodput, and is not called unproductive."""
    launching = e.AttemptLaunching(t=0.0, token="t", plan=a_plan(1))
    assert time_line([launching, _exit(100.0, 0)]).goodput is not None
    gone = e.AttemptExited(t=100.0, code=0, signal=None, how_known="keeper", step=None)
    assert time_line([launching, gone]).goodput is None
    assert time_line([]).goodput is None


def test_spans_never_overlap_where_the_clock_is_set_back() -> None:
    """Wall times that run backwards cost accuracy, and make no negative times."""
    line = time_line([*_attempt(1, 100.0, 1, 31), _exit(50.0, 31), *_attempt(2, 20.0, 20, 31)])
    assert all(seconds >= 0 for seconds in line.spent_s.values())
    assert sum(line.spent_s.values()) == pytest.approx(line.wall_s)
