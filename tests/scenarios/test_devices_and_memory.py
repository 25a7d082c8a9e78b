"""Settings of device and memory: cpu, mps-fallback and memory-relief on real trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.support import CompletedRun, bin_path, program_command, run_wtrain, sentence
from watchdog_train.remedies.catalogue import CATALOGUE

pytestmark = [pytest.mark.timeout(320), pytest.mark.slow]


def run_case(path: Path, *case: str, remedy: str) -> CompletedRun:
    """A training of wanted_device.py, once, with the remedy if one is named."""
    path.mkdir(exist_ok=True)
    options = ("--max-restarts", "0", *(("--with", remedy) if remedy else ()))
    command = program_command("wanted_device.py", *case)
    if case[0] == "ranks":
        command = [str(bin_path("torchrun")), "--nproc-per-node", "2", *command[1:]]
    return run_wtrain("run", *options, "--", *command, cwd=path, timeout_s=150)


@pytest.mark.parametrize("case", ["plain", "ranks", "trainer", "accelerate", "lightning"])
def test_a_training_that_asks_for_a_gpu_runs_on_the_cpu(case: str, tmp_path: Path) -> None:
    """Without the remedy it ends with an error, because this machine has no GPU."""
    alone = run_case(tmp_path / "alone", case, remedy="")
    assert "finished" not in alone.stdout, alone.describe()
    run = run_case(tmp_path / "with", case, remedy="cpu").check(0)
    assert "finished" in run.stdout
    told = run.only("remedy_taken")
    assert told["took"], told
    assert sentence(told["why"]).startswith("parameters are on cpu"), told


@pytest.mark.parametrize("case", ["hoards", "hoards trainer"])
def test_memory_that_nobody_collects_is_freed(case: str, tmp_path: Path) -> None:
    """Cycles grow until the memory limit ends the training; with the remedy it finishes."""
    alone = run_case(tmp_path / "alone", *case.split(), remedy="")
    assert alone.returncode != 0, alone.describe()
    assert "MemoryError" in alone.stderr, alone.describe()
    run = run_case(tmp_path / "with", *case.split(), remedy="memory-relief=3").check(0)
    assert "finished" in run.stdout
    told = run.only("remedy_taken")
    assert told["took"], told
    assert sentence(told["why"]).startswith("step 3: "), told


@pytest.mark.parametrize("remedy", ["cpu", "memory-relief", "skip-bad-batches"])
def test_no_effect_is_said_of_a_loop_without_optimizer_and_loader(
    remedy: str, tmp_path: Path
) -> None:
    """At its end the training says of each that it found nothing to change."""
    run = run_case(tmp_path, "by-hand", remedy=remedy).check(0)
    told = run.only("remedy_taken")
    assert not told["took"], told
    assert "nothing that it changes" in sentence(told["why"])


def test_mps_fallback_reaches_the_training(tmp_path: Path) -> None:
    """Simulated: no Mac is here. The variable is set before torch; a script that takes it back."""
    spec = CATALOGUE["mps-fallback"]
    for taken_back in (False, True):
        path = tmp_path / str(taken_back)
        path.mkdir()
        training = Training(path, settings=[spec.in_process or {}])
        script = "import os\n" + taken_back * f"os.environ.pop({next(iter(spec.env))!r})\n"
        done = training.run(script + "import torch\ntorch.ones(1)\n", env=spec.env)
        assert done.returncode == 0, done.stderr
        assert training.note()["settings"]["mps-fallback"]["took"] is not taken_back
