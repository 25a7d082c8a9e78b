"""The supervisor dies at any moment: training lives on under its keeper, and is adopted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_ended_in_order, assert_evidence_came_first, last_line
from tests.support import (
    TESTS,
    Event,
    RunningWtrain,
    is_alive,
    of_type,
    program_command,
    run_wtrain,
    start_fast,
    wait_until,
)
from watchdog_train.errors import WtrainError
from watchdog_train.store.run_paths import RunDirectory
from watchdog_train.supervisor.adopt import adopt_run
from watchdog_train.supervisor.setup import take_lock
from watchdog_train.system import current

GOLDEN = TESTS / "golden"

RESUME = ("--resume-arg", "--resume {checkpoint}")


def _has_begun(event: Event, running: RunningWtrain) -> bool:
    first = of_type(running.events, "first_step")
    return bool(first) and event["seq"] >= first[0]["seq"]


def start_and_kill_supervisor(cwd: Path, after: str, *args: str) -> RunningWtrain:
    """A run whose supervisor was killed with -9 after an event."""
    running = start_fast(cwd, program_command("loader_fork_lock.py", *args), *RESUME)
    # Not the plan and the launch of the first attempt: those are made before there is a hang.
    running.wait_for(after, 90, lambda event: _has_begun(event, running))
    os.kill(running.pid, signal.SIGKILL)
    running.result(10)
    return running


@pytest.mark.timeout(170)
def test_healthy_training_is_adopted(tmp_path: Path) -> None:
    """Training goes on without its supervisor; `wtrain adopt` brings it home with 0."""
    running = start_and_kill_supervisor(tmp_path, "first_step", "--hang-at", "-1", "--steps", "200")
    root = of_type(running.events, "attempt_launched")[0]["pid"]
    assert is_alive(root)
    checkpoints = tmp_path / "checkpoints"
    before = len(list(checkpoints.glob("*.pt")))
    wait_until(lambda: len(list(checkpoints.glob("*.pt"))) > before, 20, "training still saves")
    run = run_wtrain("adopt", running.run_dir.name, cwd=tmp_path).check(0)
    assert_ended_in_order(run)
    assert len(run.of_type("attempt_launched")) == 1, run.describe()
    run.only("adopted")
    log = (run.run_dir / "attempts/0001").glob("*.log*")
    text = "".join(path.read_text("utf-8", "replace") for path in log)
    assert last_line(text).startswith("finished step=200 ")


def test_training_that_ended_meanwhile(tmp_path: Path) -> None:
    """The keeper has kept the exit code of a training that ended while nobody watched."""
    running = start_and_kill_supervisor(tmp_path, "first_step", "--hang-at", "-1", "--steps", "80")
    run_dir = running.run_dir
    wait_until((run_dir / "attempts/0001/exit.json").exists, 60, "the keeper writes exit.json")
    run = run_wtrain("adopt", run_dir.name, cwd=tmp_path).check(0)
    assert run.only("attempt_exited")["code"] == 0
    assert run.only("run_finished")["outcome"] == "succeeded"


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "moment",
    ["first_step", "stall_declared", "signalling", "tree_gone", "plan_made", "attempt_launching"],
)
def test_hang_is_cured_by_the_adopter(moment: str, tmp_path: Path) -> None:
    """Killed before or in the middle of a hang's handling: the adopter finishes what was open."""
    running = start_and_kill_supervisor(tmp_path, moment)
    run = run_wtrain("adopt", running.run_dir.name, cwd=tmp_path, timeout_s=110).check(0)
    assert_ended_in_order(run)
    if moment == "first_step":
        assert_evidence_came_first(run)
    newest = max((run.run_dir / "attempts").iterdir())
    text = "".join(path.read_text("utf-8", "replace") for path in newest.glob("*.log*"))
    assert last_line(text).startswith("finished step=40 ")


@pytest.mark.slow
def test_a_live_supervisor_is_not_replaced(tmp_path: Path) -> None:
    """Adopting a run that is watched is refused with 78, and the run goes on."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "200")
    running = start_fast(tmp_path, command)
    running.wait_for("first_step", 60)
    refused = run_wtrain("adopt", running.run_dir.name, cwd=tmp_path).check(78)
    assert str(running.pid) in refused.stderr
    running.result(60).check(0)


class EndsMeanwhile(RunDirectory):
    """Its supervisor ends the run at the moment in which somebody else goes for the lock."""

    @property
    def lock(self) -> Path:
        *_, last = (GOLDEN / "healthy.events.jsonl").read_bytes().splitlines(keepends=True)
        with self.events.open("ab") as log:
            log.write(last)
        return self.path / "lock"


def test_a_run_that_ends_while_its_lock_is_waited_for_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written behind its last event, and the lock is free again."""
    directory = EndsMeanwhile(tmp_path / "sft-20261121-231005-a3f9")
    directory.path.mkdir()
    *lines, last = (GOLDEN / "healthy.events.jsonl").read_bytes().splitlines(keepends=True)
    directory.events.write_bytes(b"".join(lines))
    with pytest.raises(WtrainError, match="finished already") as refused:
        adopt_run(directory)
    assert refused.value.reference == "run-finished"
    assert directory.events.read_bytes() == b"".join((*lines, last))
    take_lock(RunDirectory(directory.path), current()).release()
