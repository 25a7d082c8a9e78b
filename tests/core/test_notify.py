"""The words of notifications, and which URLs are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import builders
from watchdog_train.core import events as e
from watchdog_train.core.events import decode
from watchdog_train.core.fold.evolve import evolve
from watchdog_train.core.fold.state import State
from watchdog_train.errors import WtrainError
from watchdog_train.notify import names, refuse_unusable, scheme_of
from watchdog_train.report.messages import LINE_CAP, News, news, title
from watchdog_train.supervisor import outbox

GOLDEN = Path(__file__).parents[1] / "golden"


def told(name: str) -> list[News]:
    state, found = State(), []
    for line in (GOLDEN / f"{name}.events.jsonl").read_bytes().splitlines():
        event = decode(line)
        state = evolve(state, event)
        one = news(event, state)
        found += [one] if one is not None else []
    return found


def test_a_night_with_a_stall_in_five_lines() -> None:
    """What stalled and why, from where it was restarted with what, that it runs, how it ended."""
    found = told("stall_resumed")
    assert [each.topic for each in found] == [*["stalled"] * 2, *["restarted"] * 2, "finished"]
    stalled, stuck, restarted, running, finished = (each.line for each in found)
    assert "stalled at step" in stalled
    assert "rank 0's worker 0 (pid 4250) is waiting for a Python lock" in stuck
    assert "restarted to resume from step 500 (checkpoint-500) as attempt 2" in restarted
    assert "with num-workers-0" in restarted
    assert "running again at step" in running
    assert "success: exit code 0; step 3,000 of 3,000, 1 restart, 1 stall, " in finished
    assert "report.html" in finished
    assert [each.last for each in found] == [False] * 4 + [True]


def test_a_cause_without_a_culprit_is_the_message() -> None:
    """Of ranks in different collectives no rank is more guilty than another; the branch is."""
    declared, collecting = builders.stall(), builders.collecting(why="stall")
    state = builders.running(declared, collecting)
    found = builders.explained(family="collective-mismatch")
    said = news(e.StallExplained(stall_id="0001", explanation=found), state)
    assert "collective-mismatch (likely)." in said.line


def test_a_crash_says_what_it_was() -> None:
    found = told("crash_then_success")
    assert [each.topic for each in found][:2] == ["crashed", "restarted"]
    assert "crashed at step" in found[0].line
    assert len(found[0].line) <= LINE_CAP


def test_giving_up_says_how_to_go_on() -> None:
    last = told("gave_up")[-1]
    assert last.topic == "gave-up"
    assert "to continue: wtrain restart" in last.line
    assert title("sft", ("stalled", "gave-up")) == "wtrain sft: gave up or failed"


@pytest.mark.parametrize("name", ["healthy", "crash_then_success", "observed", "stopped"])
def test_lines_are_bounded_and_few(name: str) -> None:
    found = told(name)
    assert found[-1].last
    assert len(found) <= 6
    assert all(len(each.line) <= 3 * LINE_CAP + 2000 for each in found)
    assert all(line.isprintable() for each in found for line in each.line.split("\n"))


def test_a_name_of_a_channel_holds_no_part_of_its_url() -> None:
    """Scheme and number only: even the host of a URL can be a token."""
    assert names(("slack://TOKEN/a/b", "HTTPS://host/x")) == ("slack #1", "https #2")
    assert scheme_of("not a url") is None


@pytest.mark.parametrize("url", ["", "http://", "http:///x", "just-words", "://x", "http://a b"])
def test_what_is_no_url_is_refused_without_showing_it(url: str) -> None:
    """With its number, because it may be a secret."""
    with pytest.raises(WtrainError) as refused:
        refuse_unusable(["https://ok", url])
    assert "number 2" in refused.value.message


def line(number: int) -> News:
    return News(topic="stalled", line=str(number))


def test_a_message_that_failed_comes_again_with_what_came_meanwhile() -> None:
    """In the order in which things happened, and not before its time."""
    channel = outbox.Queue[News](every_s=10.0)
    channel.keep(line(1))
    assert channel.is_due(0.0)
    channel.take(0.0)
    channel.keep(line(2))
    assert not channel.is_due(100.0), "one at a time"
    channel.failed(5.0)
    assert not channel.is_due(5.0 + outbox.RETRY_FIRST_S - 1)
    assert channel.is_due(5.0 + outbox.RETRY_FIRST_S)
    channel.take(65.0)
    assert outbox.text_of(channel) == "1\n2"
    channel.arrived()
    assert not channel.is_due(1e9)


def test_a_service_that_is_away_is_asked_more_and_more_rarely() -> None:
    """A night of 8 hours without a network is at most some forty tries."""
    channel, now, tries = outbox.Queue[News](every_s=10.0), 0.0, 0
    channel.keep(line(1))
    while now < 8 * 3600:
        if channel.is_due(now):
            channel.take(now)
            channel.failed(now)
            tries += 1
        now += 10.0
    assert 8 * 3600 / outbox.RETRY_MOST_S <= tries <= 40


def test_the_last_line_does_not_wait_for_a_retry() -> None:
    """Nor does it when it came while a message was on its way that then failed."""
    waiting = outbox.Queue[News](every_s=10.0)
    waiting.keep(line(1))
    waiting.take(0.0)
    waiting.failed(0.0)
    waiting.keep(line(2), hurries=True)
    assert waiting.is_due(0.0)
    meanwhile = outbox.Queue[News](every_s=10.0)
    meanwhile.keep(line(1))
    meanwhile.take(0.0)
    meanwhile.keep(line(2), hurries=True)
    meanwhile.failed(0.0)
    assert meanwhile.is_due(0.0)
    meanwhile.take(0.0)
    meanwhile.failed(0.0)
    assert not meanwhile.is_due(0.0), "the end of a run is not held up by trying without a pause"


@given(st.lists(st.sampled_from(["keep", "take", "failed", "arrived"]), max_size=120))
def test_every_line_is_told_or_counted(happenings: list[str]) -> None:
    channel, kept, arrived, lost, now = outbox.Queue[News](every_s=1.0), 0, 0, 0, 0.0
    for happening in happenings:
        now += 1000.0
        if happening == "keep":
            channel.keep(line(kept))
            kept += 1
        elif happening == "take" and channel.is_due(now):
            channel.take(now)
        elif happening == "failed" and channel.on_the_way:
            channel.failed(now)
        elif happening == "arrived" and channel.on_the_way:
            arrived += len(channel.on_the_way)
            lost += channel.left_out_told
            assert outbox.text_of(channel).startswith("(") == (channel.left_out_told > 0)
            channel.arrived()
        assert len(channel.waiting) <= outbox.MOST_WAITING
        told = [int(one.line) for one in (*channel.on_the_way, *channel.waiting)]
        assert told == sorted(told)
        assert arrived + lost + channel.left_out + len(told) == kept
