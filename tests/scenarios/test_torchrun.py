"""Two ranks under torchrun: one that sleeps is caught, nothing new is started meanwhile."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_hang_was_handled,
    assert_log_is_sound,
    assert_never_killed,
    last_line,
)
from tests.support import PROGRAMS, run_wtrain, signals_of, start_wtrain, write_fast_config

pytestmark = pytest.mark.timeout(170)

LAUNCH = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PROGRAM = str(PROGRAMS / "rank_faults.py")


def test_a_rank_that_sleeps(tmp_path: Path) -> None:
    """Both ranks and the agent are dumped, the agent is held still, and the training finishes."""
    config = write_fast_config(tmp_path)
    options = ("--config", str(config), "--resume-arg", "--resume {checkpoint}")
    run = run_wtrain("run", *options, *LAUNCH, PROGRAM, "sleep", cwd=tmp_path, timeout_s=150).check(
        0
    )
    assert_hang_was_handled(run)
    roles = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert sorted(roles) == ["launcher", "rank", "rank"], run.describe()
    frozen = [one for one in signals_of(run.events) if one["role"] == "launcher"]
    assert frozen[0]["signal"] == signal.SIGSTOP, run.describe()
    assert Path(run.only("checkpoint_chosen")["path"]).name == "step-000020.pt"
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert last_line(run.stdout) == "finished step=60"
    (first,) = (line for line in run.stderr.splitlines() if "STALL 0001" in line)
    assert "STALL 0001: rank 1 (pid " in first, first
    assert "sleeping" in first, first
    shown = run_wtrain("show", cwd=tmp_path).check(0).stdout
    assert "cause unknown" not in shown


@pytest.mark.parametrize(
    ("slow", "place"),
    [("data", "batch"), pytest.param("cpu", "backward", marks=pytest.mark.slow)],
)
def test_a_rank_that_is_slow_is_named(tmp_path: Path, slow: str, place: str) -> None:
    """In status, for people and programs, and in the report; nothing is done about it."""
    config = tmp_path / "polls.yaml"
    config.write_text("detection: {poll_s: 0.1}\n", encoding="utf-8")
    program = str(PROGRAMS / "uneven_ranks.py")
    running = start_wtrain("run", "--config", str(config), *LAUNCH, program, slow, cwd=tmp_path)
    said = running.wait_for("straggling", 140)["straggler"]
    assert (said["rank"], said["place"]) == (1, place)
    assert said["lost"] > 0.4
    assert said["share"] > 0.9
    status = run_wtrain("status", cwd=tmp_path)
    assert f"Straggler: rank 1 (pid {said['pid']})" in status.stdout, status.describe()
    shown = json.loads(run_wtrain("status", "--json", cwd=tmp_path).stdout)
    assert shown["straggler"]["lost"] == said["lost"]
    run_wtrain("stop", cwd=tmp_path)
    run = running.result(60)
    assert_log_is_sound(run)
    assert run.of_type("stall_declared") == []
    assert "straggler: rank 1 " in run_wtrain("report", cwd=tmp_path).stdout


@pytest.mark.slow
def test_healthy_ranks(tmp_path: Path) -> None:
    """Two ranks that work are left in peace with the default settings."""
    run = run_wtrain("run", *LAUNCH, PROGRAM, "none", cwd=tmp_path, timeout_s=90).check(0)
    assert_never_killed(run)
