"""The demo shows what the README promises, in that order, in less than two minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_wtrain

pytestmark = pytest.mark.slow


@pytest.mark.timeout(175)
def test_demo_tells_the_whole_story(tmp_path: Path) -> None:
    """Every part of the story is on the screen in words, and the run succeeds."""
    told = run_wtrain("demo", cwd=tmp_path, timeout_s=160).check(0)
    assert told.seconds < 120
    story = (
        "first step seen after",
        "STALL",
        "waiting for a",
        "killing",
        "checkpoint chosen",
        "setting changed: num-workers-0",
        "resume verified",
        "success",
        "dumps:",
        "put into your script",
        "num_workers=0",
    )
    places = [told.stderr.find(words) for words in story]
    assert -1 not in places, told.describe()
    assert places == sorted(places), told.describe()
    assert "training finished at step 160" in told.stdout
