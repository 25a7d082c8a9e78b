"""scripts/bench/node_repeats plays a case of each kind, and all of them come home."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.scenario,
    pytest.mark.torch,
    pytest.mark.timeout(1500),
]
CANNOT = 2


def test_one_of_each_comes_home(tmp_path: Path) -> None:
    """The script ends with 0 when nothing was wrong with any of them, and tells what it took."""
    answer = tmp_path / "repeats.json"
    script = REPOSITORY / "scripts" / "bench" / "node_repeats"
    options = ("--repeats", "1", "--jobs", "2", "--seed", "7", "--json", str(answer))
    done = subprocess.run(
        [sys.executable, str(script), *options, "--folder", str(tmp_path / "work")],
        capture_output=True,
        text=True,
        check=False,
        timeout=1400,
    )
    if done.returncode == CANNOT:
        pytest.skip(f"NOT RUN: {done.stdout}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = json.loads(answer.read_text())
    assert {one["kind"] for one in told["repeats"]} == {"kill", "hang", "cut", "healthy"}
    assert not [one for one in told["repeats"] if one["problems"]]
    hang = next(one for one in told["repeats"] if one["kind"] == "hang")
    assert 0 < hang["seconds"]["seen"] < hang["seconds"]["launched again"]
