"""A tree without heartbeats that is as quiet at work as in a hang, and one that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core import builders as b
from watchdog_train.core.detection.detect import verdict
from watchdog_train.core.detection.track import advance, new_track
from watchdog_train.core.model import Sample
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.policy import Detection, Policy
from watchdog_train.core.replay import Replay

WORKED_S = 1200
HOST_SLEEPS = 0.01
"""Of a core: beside a GPU that works."""


def training(
    share: float, *, every_s: int = 5, start_s: int = 60, gpu: GpuUse | None = None
) -> Callable[[float], Sample]:
    """A busy start, then output and so much CPU time until WORKED_S, then neither."""

    def poll(at: float) -> Sample:
        worked = min(at, WORKED_S)
        cpu_s = min(worked, start_s) + share * max(0.0, worked - start_s)
        lines = int(worked) // every_s
        return b.sample(at, b.member(), cpu_s=cpu_s, log_bytes=80 * lines, gpu=gpu)

    return poll


def called(poll: Callable[[float], Sample], until_s: int) -> list[str]:
    """What signals alone call it."""
    judged = Replay(Policy(), b.unknown_look)
    for at in range(until_s):
        judged.judge(poll(float(at)))
    return [each.kind for each in judged.findings]


def at_the_end(poll: Callable[[float], Sample], seconds: int) -> tuple[str, bool, str]:
    track, detection = new_track(0.0), Detection()
    for at in range(seconds):
        sample = poll(float(at))
        track = advance(track, sample, detection)
    found = verdict(track, sample, detection)
    return found.kind, found.quiet_at_work, found.basis


@pytest.mark.parametrize("every_s", [5, 30, 120])
def test_quiet_says_nothing_of_a_host_that_sleeps_at_work(every_s: int) -> None:
    """An evaluation of two hours without a line is suspected, looked at, and left alone."""
    poll = training(HOST_SLEEPS, every_s=every_s)
    assert called(poll, WORKED_S + 7200).count("stall") == 0
    assert at_the_end(poll, WORKED_S + 360) == ("suspect", True, "quiet")
    assert at_the_end(poll, WORKED_S + 4 * 3600) == ("suspect", True, "hard-budget")


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_quiet_is_news_of_a_tree_that_works_visibly(share: float) -> None:
    assert "stall" in called(training(share), WORKED_S + 3600)
    assert at_the_end(training(share), WORKED_S + 300) == ("suspect", False, "quiet")


def test_a_gpu_that_is_seen_tells_work_from_a_hang() -> None:
    """Where it can be looked at, its silence is news, too."""
    sleeping = training(HOST_SLEEPS)

    def poll(at: float) -> Sample:
        use = GpuUse(util=60.0 if at < WORKED_S else 0.0, power=0.5 if at < WORKED_S else 0.1)
        return b.sample(
            at, b.member(), cpu_s=sleeping(at).cpu_s, log_bytes=sleeping(at).log_bytes, gpu=use
        )

    assert "stall" in called(poll, WORKED_S + 3600)


def test_the_newest_counts() -> None:
    """A quarter of an hour of work that shows outweighs the sleepy beginning."""
    until = 400

    def poll(at: float) -> Sample:
        worked = min(at, WORKED_S)
        cpu_s = HOST_SLEEPS * min(worked, until) + max(0.0, worked - until)
        return b.sample(at, b.member(), cpu_s=cpu_s, log_bytes=int(worked))

    assert at_the_end(poll, WORKED_S + 300) == ("suspect", False, "quiet")
