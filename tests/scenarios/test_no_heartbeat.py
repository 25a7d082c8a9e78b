"""Programs that we cannot look into: watched by output and activity, and called what they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_hang_was_handled, assert_never_killed, last_line
from tests.support import PROGRAMS, run_fast, sentence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

PROGRAM = str(PROGRAMS / "no_torch.py")
SHELL_LOOP = """
i=0
while [ $i -lt "$1" ]; do
    echo "step $i"; i=$((i+1))
    if [ $i -eq "$2" ] && [ ! -e hung-once ]; then : >hung-once; sleep 1000000; fi
    sleep 0.25
done
echo "finished step=$1"
"""
WAYS = {
    "isolated": [sys.executable, "-I", PROGRAM],
    "cleared": ["env", "-i", sys.executable, PROGRAM],
    "no site": [sys.executable, "-S", PROGRAM],
    "shell": ["sh", "-c", SHELL_LOOP, "sh"],
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_hang_is_caught_by_weaker_signs(way: str, tmp_path: Path) -> None:
    """No output and a quiet tree: called a stall on that basis, restarted, brought to its end."""
    run = run_fast(tmp_path, [*WAYS[way], "40", "12"]).check(0)
    assert_hang_was_handled(run)
    stall = run.only("stall_declared")
    assert "no output and no heartbeat" in sentence(stall["why"]), run.describe()
    assert not run.of_type("first_beat"), run.describe()
    assert last_line(run.stdout) == "finished step=40"


def test_a_healthy_one_is_left_alone_and_said_to_be_watched_by_less(tmp_path: Path) -> None:
    """More than a minute of printing without a heartbeat: no kill, one notice."""
    run = run_fast(tmp_path, [sys.executable, "-I", PROGRAM, "280", "-1"]).check(0)
    assert_never_killed(run)
    notices = [event for event in run.of_type("noticed") if event["kind"] == "no-heartbeat"]
    assert len(notices) == 1, run.describe()
    assert "no heartbeat from inside" in run.stderr
