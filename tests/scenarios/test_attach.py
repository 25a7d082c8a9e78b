"""`wtrain attach` and `run -d --until-first-step`: seeing a run from anywhere, harming nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import (
    CompletedRun,
    RunningWtrain,
    is_alive,
    of_type,
    read_log,
    run_fast,
    run_wtrain,
    script,
    start_wtrain,
    wait_until,
)
from watchdog_train.cli.attach import until_first_step
from watchdog_train.store.run_paths import RunDirectory

pytestmark = pytest.mark.timeout(120)

TRAINING = """
import os, sys, time
import watchdog_train as wt
attempt = int(os.environ["WTRAIN_ATTEMPT"])
print(f"attempt {attempt} begins", flush=True)
print("words on stderr", file=sys.stderr, flush=True)
if "early" in sys.argv:
    sys.exit(9)
for step in range(1, 100_000):
    wt.beat(step)
    print(f"attempt {attempt} step {step}", flush=True)
    if os.path.exists("crash") and attempt == 1:
        sys.exit(9)
    if os.path.exists("finish"):
        break
    time.sleep(0.05)
"""


def detached(cwd: Path, *options: str, script_args: tuple[str, ...] = ()) -> CompletedRun:
    return run_fast(cwd, (*script(cwd, TRAINING), *script_args), "-d", *options)


def attached(cwd: Path, *options: str) -> RunningWtrain:
    """An attach that has shown a line of the training."""
    attach = start_wtrain("attach", *options, cwd=cwd)
    wait_until(lambda: " step " in attach.stdout, 20, "the output is shown")
    return attach


def test_leaving_harms_nothing_and_the_end_is_seen(tmp_path: Path) -> None:
    """The first step ends the command; Ctrl-C ends a look; the last look has the run's code."""
    began = detached(tmp_path, "--until-first-step").check(0)
    assert "first step seen after" in began.stderr, began.describe()
    (launched,) = of_type(began.events, "attempt_launched")
    # A step that was made before anybody looked ends it, too.
    assert until_first_step(RunDirectory(began.run_dir)) == 0
    first = attached(tmp_path)
    first.send(signal.SIGINT)
    left = first.result(10).check(0)
    assert "detached, the training continues" in left.stderr, left.describe()
    assert is_alive(launched["pid"])

    second = attached(tmp_path, "-n", "1")
    (tmp_path / "finish").touch()
    ended = second.result(20).check(0)
    assert "wtrain: success: exit code 0" in ended.stderr, ended.describe()
    assert "attempt 1 begins" not in ended.stdout, ended.describe()
    assert not of_type(read_log(ended.run_dir), "stop_requested"), ended.describe()
    late = run_wtrain("attach", "-n", "1", cwd=tmp_path).check(0)
    assert late.stdout.startswith("attempt 1 step "), late.describe()


@pytest.mark.slow
def test_a_restart_is_followed_into_the_next_attempt(tmp_path: Path) -> None:
    """What wtrain says and what both attempts write is seen; detached, they have one stream."""
    detached(tmp_path).check(0)
    attach = attached(tmp_path)
    (tmp_path / "crash").touch()
    wait_until(lambda: "attempt 2 step 1\n" in attach.stdout, 40, "the next attempt is shown")
    (tmp_path / "finish").touch()
    done = attach.result(20).check(0)
    assert "attempt 2 begins" in done.stdout, done.describe()
    assert "words on stderr" in done.stdout.partition("attempt 2 begins")[2], done.describe()
    assert "wtrain: attempt 1 has ended" in done.stderr, done.describe()


@pytest.mark.slow
def test_a_supervisor_that_dies_is_told(tmp_path: Path) -> None:
    """The code is the one of `status`, and the words are what to do."""
    began = detached(tmp_path).check(0)
    attach = attached(tmp_path)
    os.kill(began.only("run_started")["pid"], signal.SIGKILL)
    done = attach.result(20).check(4)
    assert f"wtrain adopt {began.run_dir.name}" in done.stderr, done.describe()
    (tmp_path / "finish").touch()
    run_wtrain("adopt", began.run_dir.name, cwd=tmp_path).check(0)


@pytest.mark.slow
def test_a_run_that_ends_before_its_first_step(tmp_path: Path) -> None:
    """Whoever goes to bed by it hears the end, and gets the code of the run."""
    options = ("--until-first-step", "--on-crash", "stop")
    done = detached(tmp_path, *options, script_args=("early",)).check(9)
    assert "failed" in done.stderr, done.describe()


def test_until_first_step_needs_detach(tmp_path: Path) -> None:
    """In the foreground there is nothing to return to."""
    done = run_wtrain("run", "--until-first-step", "--", "true", cwd=tmp_path).check(78)
    assert "goes with -d" in done.stderr, done.describe()
