"""`--heartbeat-every N`: a line every N steps, on the screen and in the logs, only on request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import PROGRAMS, bin_path, program_command, run_wtrain

pytestmark = pytest.mark.timeout(200)

LINE = re.compile(
    r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\+(\d+\.\d{3})s\]\[R(\d)/(\d)\]\[LR\2\]\[PID:\d+\] step (\d+)"
)


def heartbeats(text: str) -> list[tuple[int, int, int]]:
    """Rank, ranks and step of each line; times grow on each rank."""
    found = [match.groups() for match in map(LINE.fullmatch, text.splitlines()) if match]
    for rank in {one[1] for one in found}:
        times = [float(one[0]) for one in found if one[1] == rank]
        assert times == sorted(times)
    return sorted((int(rank), int(ranks), int(step)) for _, rank, ranks, step in found)


def test_a_line_every_few_steps_of_a_plain_loop_and_none_unasked(tmp_path: Path) -> None:
    """On stderr, and kept with the rest of the output."""
    command = program_command("framework_facts.py", "plain")
    asked = run_wtrain("run", "--heartbeat-every", "5", "--", *command, cwd=tmp_path).check(0)
    assert heartbeats(asked.stderr) == [(0, 1, 5), (0, 1, 10)], asked.describe()
    assert heartbeats(run_wtrain("logs", cwd=tmp_path).stderr) == [(0, 1, 5), (0, 1, 10)]
    unasked = run_wtrain("run", "--", *command, cwd=tmp_path / "unasked").check(0)
    assert heartbeats(unasked.stdout + unasked.stderr) == []


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["trainer", "lightning", "accelerate"])
def test_every_rank_of_a_framework_writes_its_own(framework: str, tmp_path: Path) -> None:
    """By the framework's count of steps."""
    torchrun = [str(bin_path("torchrun")), "--nproc-per-node", "2"]
    command = [*torchrun, str(PROGRAMS / "framework_facts.py"), framework]
    run = run_wtrain(
        "run", "--heartbeat-every", "2", "--", *command, cwd=tmp_path, timeout_s=180
    ).check(0)
    found = heartbeats(run.stderr + run.stdout)
    for rank in (0, 1):
        steps = [step for one, ranks, step in found if one == rank and ranks == 2]
        assert steps == list(range(2, 2 * len(steps) + 1, 2)), run.describe()
        assert len(steps) >= 2, run.describe()
