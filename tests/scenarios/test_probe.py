"""A kubelet's view of a real run: alive through a whole recovery, dead when it is; its verdict."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import (
    is_alive,
    program_command,
    run_wtrain,
    script,
    start_fast,
    start_wtrain,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TRAINING = """
import time
import watchdog_train as wt
for step in range(1, 100_000):
    wt.beat(step)
    time.sleep(0.1)
"""
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "WTRAIN_TERMINATION_LOG": "termination-log"}


def test_a_recovery_is_never_called_dead(tmp_path: Path) -> None:
    """From the launch to the end, through evidence, kill and restart; then the verdict is there."""
    command = program_command("loader_fork_lock.py")
    run = start_fast(tmp_path, command, "--resume-arg", "--resume {checkpoint}", env=POD)
    run.wait_for("attempt_launched", 60)
    said = []
    while run.process.poll() is None:
        probed = run_wtrain("probe", cwd=tmp_path)
        said.append(probed.stdout)
        # The last look may come when run is over and listed no more.
        assert probed.returncode == 0, [*said, run.snapshot().describe()]
    done = run.result(10).check(0)
    assert done.of_type("signalling"), done.describe()
    assert any("attempt 2" in words for words in said), said
    assert run_wtrain("probe", cwd=tmp_path).check(0).stdout.startswith("ended: ")
    verdict = (tmp_path / "termination-log").read_text()
    assert verdict.startswith("wtrain: success: "), verdict
    assert "1 restart, 1 stall" in verdict


def test_a_blind_and_a_dead_supervisor_are_told(tmp_path: Path) -> None:
    """Stopped: its loop does not turn; killed: until somebody has adopted the run."""
    run = start_fast(tmp_path, script(tmp_path, TRAINING))
    run.wait_for("first_step", 60)
    ready = wait_until(lambda: _ready(tmp_path), 60, "it is ready")
    assert "running, attempt 1, step" in ready
    run.send(signal.SIGSTOP)
    try:
        wait_until(lambda: _says(tmp_path, "blind: "), 60, "its loop does not turn")
    finally:
        run.send(signal.SIGCONT)
    wait_until(lambda: _says(tmp_path, "alive: "), 60, "its loop turns")
    training = run.wait_for("attempt_launched", 5)["pid"]
    run.send(signal.SIGKILL)
    run.process.wait(20)
    dead = run_wtrain("probe", cwd=tmp_path)
    assert dead.returncode == 1
    assert dead.stdout.startswith(f"dead: the supervisor (pid {run.pid}) is gone; running")
    assert is_alive(training)
    other = start_wtrain("adopt", run.run_dir.name, cwd=tmp_path)
    wait_until(lambda: _says(tmp_path, "alive: "), 60, "somebody has adopted it")
    run_wtrain("stop", run.run_dir.name, cwd=tmp_path, timeout_s=90).check(0)
    other.result(60)


def _ready(cwd: Path) -> str:
    probed = run_wtrain("probe", "--readiness", cwd=cwd)
    return probed.stdout if probed.returncode == 0 else ""


def _says(cwd: Path, words: str) -> bool:
    probed = run_wtrain("probe", "--max-age", "3s", cwd=cwd)
    assert probed.returncode == (0 if words.startswith("alive") else 1) or not (
        probed.stdout.startswith(words)
    )
    return probed.stdout.startswith(words)
