"""A service between two trainings is left alone; the task that hangs in it is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound
from tests.support import PROGRAMS, program_command, run_fast, sentence, start_fast, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

IDLE_S = 18.0
"""Longer than any limit of the fast budgets and the patience after it."""


def test_idle_is_no_stall_and_a_hung_task_is(tmp_path: Path) -> None:
    """One stall, in the second task, after the quiet between the two."""
    command = program_command("service.py", "--idle-s", str(IDLE_S))
    run = run_fast(tmp_path, command, "--on-stall", "stop")
    assert_log_is_sound(run)
    assert run.returncode == 75, run.describe()
    assert "the second task begins" in run.stdout, run.describe()
    (stall,) = run.of_type("stall_declared")
    assert stall["phase"] == "train", run.describe()
    first_step = run.of_type("first_step")[0]
    suspected = run.of_type("suspected")
    assert all(event["mono"] > first_step["mono"] + IDLE_S for event in suspected), run.describe()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_celery_worker_idles_and_a_hung_task_is_a_stall(pool: str, tmp_path: Path) -> None:
    """Unmodified: quiet before its first task, after it, and in one that is no training, for longer
    than any limit; then a task hangs in the worker, or in a process of its pool."""
    pytest.importorskip("celery")
    worker = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", pool, "-c", "2"]
    path = {"PYTHONPATH": str(PROGRAMS)}
    run = start_fast(tmp_path, (*worker, "--loglevel", "info"), "--on-stall", "stop", env=path)

    def send(task: str) -> None:
        subprocess.run(
            [sys.executable, str(PROGRAMS / "celery_tasks.py"), task],
            cwd=tmp_path, env=run.env, check=True, timeout=60,
        )  # fmt: skip

    def idles(where: str) -> None:
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > IDLE_S, IDLE_S + 5, where)
        assert run.process.poll() is None, run.result().describe()

    wait_until(lambda: " ready." in run.stderr, 60, "the worker is ready")
    idles("before its first task")
    send("train")
    wait_until(lambda: "succeeded in" in run.stderr, 60, "the first task is done")
    idles("after its first task")
    send("wait")
    wait_until(lambda: run.stderr.count("succeeded in") == 2, 60, "the second task is done")
    assert "suspected" not in run.stderr
    send("hang")
    done = run.result(90).check(75)
    assert_log_is_sound(done)
    (stall,) = done.of_type("stall_declared")
    assert stall["phase"] == "train", done.describe()
    lost = [sentence(one["why"]) for one in done.of_type("noticed") if one["kind"] == "task"]
    assert len(lost) == 1, done.describe()
    assert "celery_tasks.train (lost:" in lost[0], lost
