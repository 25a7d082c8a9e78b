"""Two ranks under torchrun: one that sleeps is caught, nothing new is started meanwhile."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_asked_before_killed,
    assert_evidence_came_first,
    assert_log_is_sound,
    assert_never_killed,
    assert_tree_is_gone,
    last_line,
)
from tests.support import PROGRAMS, run_wtrain, write_fast_config

pytestmark = [pytest.mark.processes, pytest.mark.scenario, pytest.mark.torch]

LAUNCH = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PROGRAM = str(PROGRAMS / "rank_sleeps.py")


@pytest.mark.timeout(170)
def test_a_rank_that_sleeps(tmp_path: Path) -> None:
    """Both ranks and the agent are dumped, the agent is held still, and the training finishes."""
    config = write_fast_config(tmp_path)
    options = ("--config", str(config), "--resume-arg", "--resume {checkpoint}")
    run = run_wtrain("run", *options, *LAUNCH, PROGRAM, cwd=tmp_path, timeout_s=150)
    assert run.returncode == 0, run.describe()
    assert_log_is_sound(run)
    assert_evidence_came_first(run)
    assert_asked_before_killed(run)
    assert_tree_is_gone(run)
    roles = [process["role"] for process in run.only("evidence_collected")["processes"]]
    assert sorted(roles) == ["launcher", "rank", "rank"], run.describe()
    frozen = [event for event in run.of_type("signalled") if event["role"] == "launcher"]
    assert frozen[0]["signal"] == signal.SIGSTOP, run.describe()
    assert Path(run.only("checkpoint_chosen")["path"]).name == "step-000020.pt"
    assert run.of_type("resume_verified")[-1]["ok"], run.describe()
    assert last_line(run.stdout) == "finished step=60"


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_healthy_ranks(tmp_path: Path) -> None:
    """Two ranks that work are left in peace with the default settings."""
    run = run_wtrain("run", *LAUNCH, PROGRAM, "--hang-at=-1", cwd=tmp_path, timeout_s=90)
    assert run.returncode == 0, run.describe()
    assert_never_killed(run)
