"""A bug of ours in the supervisor: exit 70, training lives on, and a fixed wtrain adopts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, last_line
from tests.support import is_alive, of_type, program_command, run_wtrain, start_fast

WITH_A_BUG = """
import runpy
from watchdog_train.supervisor.observe import Observer

look = Observer.observe

def observe(self, state):
    if state.attempt is not None and state.attempt.first_step_s is not None:
        raise AttributeError("planted: 'NoneType' object has no attribute 'step'")
    return look(self, state)

Observer.observe = observe
runpy.run_path(".limits/wtrain")
"""


@pytest.mark.timeout(170)
def test_training_outlives_a_bug_in_the_loop(tmp_path: Path) -> None:
    """The loop raises after the first step: 70, one line, a crash file; the run is adopted."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "150")
    running = start_fast(tmp_path, command, wtrain=[sys.executable, "-c", WITH_A_BUG])
    broken = running.result(90).check(70)
    assert "Traceback" not in broken.stderr, broken.describe()
    assert "wtrain adopt" in broken.stderr, broken.describe()
    crashes = list((tmp_path / ".home/state").rglob("crash-*.txt"))
    assert len(crashes) == 1, broken.describe()
    assert "planted: 'NoneType' object" in crashes[0].read_text("utf-8")
    assert of_type(running.events, "supervisor_left"), broken.describe()
    assert not of_type(running.events, "run_finished"), broken.describe()
    assert is_alive(of_type(running.events, "attempt_launched")[0]["pid"])

    run_dir = running.run_dir
    run = run_wtrain("adopt", run_dir.name, cwd=tmp_path, timeout_s=90).check(0)
    assert_ended_in_order(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    log = "".join(
        path.read_text("utf-8", "replace") for path in (run_dir / "attempts/0001").glob("*.log*")
    )
    assert last_line(log).startswith("finished step=150 ")
