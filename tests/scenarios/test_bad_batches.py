"""skip-bad-batches: what is left out, what is raised all the same, and what the training makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import PROGRAMS, CompletedRun, bin_path, program_command, run_wtrain, sentence

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow]


def skipping(path: Path, *case: str, remedy: str = "skip-bad-batches") -> CompletedRun:
    command = program_command("bad_batches.py", *case)
    if case[0] == "ranks":
        torchrun = [str(bin_path("torchrun")), "--nproc-per-node", "2"]
        command = [*torchrun, str(PROGRAMS / "bad_batches.py"), *case]
    options = ("--max-restarts", "0", *(("--with", remedy) if remedy else ()))
    return run_wtrain("run", *options, "--", *command, cwd=path, timeout_s=120)


@pytest.mark.parametrize(
    ("case", "steps", "skipped"),
    [
        ("plain READ", 916, 5),  # 8 batches of 10 in two epochs, 9 of the evaluation
        ("plain READ 2", 916, 5),
        ("plain HEALTHY", 1020, 0),
        ("trainer READ", 216, 6),  # two evaluations
        ("trainer MOVE", 216, 8),
        ("accelerate READ 1", 916, 5),
        ("accelerate MOVE", 16, 4),
        ("lightning READ", 1820, 6),  # which gets as many batches as it was told
        ("lightning MOVE", 2020, 8),
        ("ranks READ", 1010, 6),  # all of them bad on rank 0, which rank 1 does not wait for
    ],
)
def test_bad_batches_are_skipped(case: str, steps: int, skipped: int, tmp_path: Path) -> None:
    """Every good batch is trained, and each bad one is told with its index and the count."""
    run = skipping(tmp_path, *case.split()).check(0)
    assert f"steps {steps}" in run.stdout, run.describe()
    told = [line for line in run.stderr.splitlines() if " is skipped (" in line]
    assert len(told) == skipped, run.describe()
    assert run.of_type("remedy_taken")[0]["took"], run.describe()
    if case == "plain READ 2":
        assert told[1] == (
            "wtrain: batch 6 of examples [12, 13] cannot be read and is skipped (2 of at most "
            "100): ValueError: broken example 12"
        )


@pytest.mark.parametrize(
    ("case", "remedy", "error"),
    [
        ("plain READ", "", "ValueError: broken example 6"),
        ("trainer READ", "", "ValueError: broken example 6"),
        ("plain READ 1", "skip-bad-batches=2", "ValueError: broken example 6"),
        ("plain GONE 1", "skip-bad-batches", "Error: "),
        ("plain STREAM", "skip-bad-batches", "ValueError: broken example 6"),
        ("plain ALL", "skip-bad-batches", "ValueError: broken example 18"),
    ],
)
def test_what_is_no_bad_batch_is_raised(case: str, remedy: str, error: str, tmp_path: Path) -> None:
    """Without the remedy; beyond its number; a dead worker; a dead stream; nothing but bad ones."""
    run = skipping(tmp_path, *case.split(), remedy=remedy).check(1)
    assert error in run.stderr, run.describe()
    assert run.stderr.count(" is skipped (") == {"plain READ 1": 2, "plain ALL": 10}.get(case, 0)


def test_an_iterable_dataset_with_workers_is_left_alone(tmp_path: Path) -> None:
    """A worker whose iterator has raised gives no more: its examples would be lost unseen."""
    run = skipping(tmp_path, "plain", "STREAM", "1").check(1)
    told = run.only("remedy_taken")
    assert not told["took"], told
    assert "ends with its first error" in sentence(told["why"])
