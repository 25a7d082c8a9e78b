"""Waits under the default settings: healthy pauses are spared, hangs are found in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_wtrain, start_wtrain, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.torch]

BENCH = REPOSITORY / "scripts" / "bench" / "pauses"


def measured(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)
def test_pauses_longer_than_any_unknown_wait_are_spared() -> None:
    """A sleep, a judge, a pool and a queue that a thread feeds: no kill, each said once."""
    kinds = ("sleep", "judge", "pool", "queue_of_a_thread")
    told = measured("--seconds", "90", "--jobs", "2", *kinds)
    assert told.count("went on by itself") == len(kinds)


@pytest.mark.timeout(900)
def test_a_deadlock_is_a_stall_within_20_s() -> None:
    """In the training and in a worker of its DataLoader."""
    measured("--hung", "--jobs", "1", "locked_twice", "worker_on_a_lock")


TWO_STAGES = """
import os, sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def stage(number):
    open(f"asked-{number}", "w").close()
    open("gate").read()

for step in range(40):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
    if step in (20, 30)[: int(sys.argv[1])]:
        stage(step)
"""


def answered(cwd: Path, *pauses_s: float) -> None:
    """A run whose FIFO nobody opens for so long, once or twice; it ends at its first attempt."""
    run = start_wtrain("run", "--", sys.executable, "train.py", str(len(pauses_s)), cwd=cwd)
    for step, pause_s in zip((20, 30), pauses_s, strict=False):
        asked = cwd / f"asked-{step}"
        wait_until(asked.exists, 60, "it asks")
        until = time.monotonic() + pause_s
        wait_until(lambda until=until: time.monotonic() >= until, pause_s + 5, "the pause")
        with open(cwd / "gate", "w"):
            asked.unlink()
    done = run.result(60).check(0)
    assert len(done.of_type("attempt_launched")) == 1, done.describe()


@pytest.mark.timeout(300)
def test_a_pause_that_came_twice_gets_longer_in_the_next_run(tmp_path: Path) -> None:
    """Two pauses below the 45 s of a FIFO, then one above them; `clean` forgets."""
    (tmp_path / "train.py").write_text(TWO_STAGES)
    os.mkfifo(tmp_path / "gate")
    answered(tmp_path, 37.0, 37.0)
    learnt = run_wtrain("config", "show", "--learnt", cwd=tmp_path).check(0).stdout
    assert "train.py" in learnt
    answered(tmp_path, 49.0)
    run_wtrain("clean", "--yes", cwd=tmp_path).check(0)
    assert "train.py" not in run_wtrain("config", "show", "--learnt", cwd=tmp_path).check(0).stdout
