"""What a channel has not been told: nothing is lost, nothing hammers a service that is away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchdog_train.report.notify_words import News
from watchdog_train.supervisor.notifier import (
    MOST_LINES,
    RETRY_FIRST_S,
    RETRY_MOST_S,
    Undelivered,
)


def line(number: int, *, last: bool = False) -> News:
    return News(topic="stalled", line=str(number), last=last)


def test_a_message_that_failed_comes_again_with_what_came_meanwhile() -> None:
    """In the order in which things happened, and not before its time."""
    channel = Undelivered(every_s=10.0)
    channel.keep(line(1))
    assert channel.is_due(0.0)
    channel.take(0.0)
    channel.keep(line(2))
    assert not channel.is_due(100.0), "one at a time"
    channel.failed(5.0)
    assert not channel.is_due(5.0 + RETRY_FIRST_S - 1)
    assert channel.is_due(5.0 + RETRY_FIRST_S)
    channel.take(65.0)
    assert channel.text() == "1\n2"
    channel.arrived()
    assert not channel.is_due(1e9)


def test_a_service_that_is_away_is_asked_more_and_more_rarely() -> None:
    """A night of 8 hours without a network is at most some forty tries."""
    channel, now, tries = Undelivered(every_s=10.0), 0.0, 0
    channel.keep(line(1))
    while now < 8 * 3600:
        if channel.is_due(now):
            channel.take(now)
            channel.failed(now)
            tries += 1
        now += 10.0
    assert 8 * 3600 / RETRY_MOST_S <= tries <= 40


def test_the_last_line_does_not_wait_for_a_retry() -> None:
    """Nor does it when it came while a message was on its way that then failed."""
    waiting = Undelivered(every_s=10.0)
    waiting.keep(line(1))
    waiting.take(0.0)
    waiting.failed(0.0)
    waiting.keep(line(2, last=True))
    assert waiting.is_due(0.0)
    meanwhile = Undelivered(every_s=10.0)
    meanwhile.keep(line(1))
    meanwhile.take(0.0)
    meanwhile.keep(line(2, last=True))
    meanwhile.failed(0.0)
    assert meanwhile.is_due(0.0)
    meanwhile.take(0.0)
    meanwhile.failed(0.0)
    assert not meanwhile.is_due(0.0), "the end of a run is not held up by trying without a pause"


@given(st.lists(st.sampled_from(["keep", "take", "failed", "arrived"]), max_size=120))
def test_every_line_is_told_or_counted(happenings: list[str]) -> None:
    """Whatever fails: each line arrives, waits, or is counted among those left out."""
    channel, kept, arrived, lost, now = Undelivered(every_s=1.0), 0, 0, 0, 0.0
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
            assert channel.text().startswith("(") == (channel.left_out_told > 0)
            channel.arrived()
        assert len(channel.lines) <= MOST_LINES
        told = [int(one.line) for one in (*channel.on_the_way, *channel.lines)]
        assert told == sorted(told)
        assert arrived + lost + channel.left_out + len(told) == kept
