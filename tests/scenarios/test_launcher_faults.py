"""The same faults of one rank under every launcher: who it was is said, and all come home."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scenarios.checks import (
    assert_blames,
    assert_brought_home,
    assert_evidence_came_first,
)
from tests.support import PROGRAMS, CompletedRun, bin_path, run_wtrain, write_fast_config

pytestmark = [
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(290),
]

FAULTS = str(PROGRAMS / "rank_faults.py")
LAUNCHERS = {
    "torchrun": (str(bin_path("torchrun")), "--nproc-per-node=2", FAULTS),
    "accelerate": (
        *(str(bin_path("accelerate")), "launch", "--multi_gpu", "--num_processes=2"),
        *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", FAULTS),
    ),
    "lightning": (sys.executable, str(PROGRAMS / "lightning_faults.py")),
}
"""`python -m torch.distributed.run` and torch.multiprocessing.spawn: test_rank_faults.py; tasks of
srun: test_several_tasks.py."""
MISMATCH = ("collective-mismatch", "gloo-timeout")


def run_fault(cwd: Path, launcher: str, fault: str) -> CompletedRun:
    """One run with a fault at step 25, brought to its end after one restart from step 20."""
    own = launcher == "lightning"
    if own and find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    resume = () if own else ("--resume-arg", "--resume {checkpoint}")
    config = str(write_fast_config(cwd))
    job = (*LAUNCHERS[launcher], fault)
    run = run_wtrain("run", "--config", config, *resume, "--", *job, cwd=cwd, timeout_s=280)
    assert_brought_home(run)
    return run


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
def test_a_rank_that_sleeps(launcher: str, tmp_path: Path) -> None:
    """It is the culprit, by name."""
    run = run_fault(tmp_path, launcher, "sleep")
    assert_evidence_came_first(run)
    assert_blames(run.only("stall_explained"), 1, ("rank-left-early",))


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
def test_ranks_in_different_operations(launcher: str, tmp_path: Path) -> None:
    """One receives while the other reduces: nobody is blamed without a proof."""
    run = run_fault(tmp_path, launcher, "receive")
    assert_evidence_came_first(run)
    assert_blames(run.only("stall_explained"), 1, MISMATCH, surely=False)


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
@pytest.mark.parametrize("fault", ["fail", "die"])
def test_a_rank_that_crashes(fault: str, launcher: str, tmp_path: Path) -> None:
    """With words of its own or by a signal: a crash and no stall, and no other rank is blamed."""
    run = run_fault(tmp_path, launcher, fault)
    assert not run.of_type("stall_declared"), run.describe()
    assert run.of_type("evidence_collected")[0]["why"] == "crash"
    root = run.of_type("stall_explained")[0]["explanation"]["root"]
    assert root is None or root["who"]["rank"] in (1, None), run.describe()


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
def test_a_kill_in_the_middle_of_a_save(launcher: str, tmp_path: Path) -> None:
    """The half of a checkpoint is passed over, with the reason."""
    run = run_fault(tmp_path, launcher, "die-in-save")
    assert not run.of_type("stall_declared"), run.describe()
    assert run.of_type("checkpoint_rejected"), run.describe()
