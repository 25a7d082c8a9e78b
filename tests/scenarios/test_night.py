"""The short form of scripts/night: three hangs, a crash, a dead supervisor and a full disk."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]
LIMIT_S = 900.0


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_short_night_comes_to_its_end(tmp_path: Path) -> None:
    """The script checks the training, the messages, the report and what is left; all must hold."""
    kept = tmp_path / "kept"
    done = run_command(
        [sys.executable, str(REPOSITORY / "scripts" / "night"), "--fast", "--keep", str(kept)],
        timeout_s=LIMIT_S,
    )
    assert "FAILED" not in done.stdout
    assert (kept / "report.html").stat().st_size > 10_000
