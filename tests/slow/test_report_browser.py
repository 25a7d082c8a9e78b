"""The page of a run in a real browser, without a network: charts are drawn, nothing else runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hostile_run import STALLS, make_hostile_run
from watchdog_train.reporting.gather import gather
from watchdog_train.reporting.write import page_text, plotly_script, write_whole
from watchdog_train.store.log_reading import read_events
from watchdog_train.store.run_paths import RunDirectory

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
    pytest.mark.skipif(plotly_script() is None, reason="plotly is not installed"),
]


def document_of(page: Path, profile: Path, width: int) -> str:
    """The page's elements after its scripts have run, as the browser has them."""
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", f"--window-size={width},2000",
        "--virtual-time-budget=8000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    found = subprocess.run(command, capture_output=True, check=True, timeout=120, text=True)
    return found.stdout


@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("in_one_file", [False, True])
def test_a_hostile_run_in_a_browser(tmp_path: Path, width: int, in_one_file: bool) -> None:
    """Five charts in each form of the page; the title is ours, and no text became an element."""
    run = make_hostile_run(tmp_path / "sft-20261121-231005-beef")
    page = write_whole(run)
    if in_one_file:
        script = plotly_script()
        assert script is not None
        report = gather(RunDirectory(run), read_events(run / "events.jsonl").events)
        page = tmp_path / "alone" / "report.html"
        page.parent.mkdir()
        page.write_text(page_text(report, script=script.read_text("utf-8")), "utf-8")
    found = document_of(page, tmp_path / "profile", width)
    assert "<title>sft-20261121-231005-beef - wtrain report</title>" in found
    assert found.count('class="main-svg"') >= 5
    assert ">The chart needs" not in found
    assert not re.search(r"<img|<iframe|<h1>broken", found)
    assert found.count('<details class="section">') == STALLS - 3
