"""The page of a run in a real browser, without a network: nothing runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hostile_run import STALLS, make_hostile_run
from watchdog_train.reporting import write_whole

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
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
def test_a_hostile_run_in_a_browser(tmp_path: Path, width: int) -> None:
    """The title is ours, and no text became an element."""
    page = write_whole(make_hostile_run(tmp_path / "sft-20261121-231005-beef"))
    found = document_of(page, tmp_path / "profile", width)
    assert "<title>sft-20261121-231005-beef - wtrain report</title>" in found
    assert not re.search(r"<img|<iframe|<script|<h1>broken", found)
    assert found.count('<details class="section">') == STALLS - 3
