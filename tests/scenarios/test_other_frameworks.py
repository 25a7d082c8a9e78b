"""Trainings without torch: their limits are learnt, a hang is found, and nothing else is one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound, last_line
from tests.support import program_command, run_fast, write_fast_config

pytestmark = pytest.mark.slow

CASES = {
    # what is trained: (program, backend of Keras, what has to be installed, phase)
    "keras-on-tensorflow": ("fit", "tensorflow", ("keras", "tensorflow"), "train"),
    "keras-on-jax": ("fit", "jax", ("keras", "jax"), "train"),
    "tensorflow": ("tape", "tensorflow", ("tensorflow",), "startup"),
    "jax": ("jax", "", ("jax",), "unknown"),
    "scikit-learn": ("partial_fit", "", ("sklearn",), "unknown"),
}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("case", CASES)
def test_a_hang_is_called_by_learnt_limits_and_nothing_before_it(case: str, tmp_path: Path) -> None:
    """Imports, tracing, an evaluation and a save are no stall; a lock taken twice is one."""
    program, backend, needed, phase = CASES[case]
    for name in needed:
        if find_spec(name) is None:
            pytest.skip(f"without {name}")
    config = write_fast_config(tmp_path)
    # As by default: two lines within a poll are one.
    config.write_text(config.read_text().replace("poll_s: 0.25", "poll_s: 1"))
    command = program_command("other_frameworks.py", program)
    environment = {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    run = run_fast(tmp_path, command, env=environment, timeout_s=400).check(0)
    assert_log_is_sound(run)
    stall = run.only("stall_declared")
    assert stall["phase"] == phase, run.describe()
    assert next(one["code"] for one in stall["why"]["because"]) == "learnt-limit", run.describe()
    assert last_line(run.stdout) == f"finished {program}"
    (tmp_path / "hung").unlink()  # made right before the hang, and nothing had been called then
