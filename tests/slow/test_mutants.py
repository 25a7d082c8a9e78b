"""The fast tests are strong enough to see the code broken."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]


@pytest.mark.timeout(2400)
def test_every_mutant_is_caught() -> None:
    """Each promise that is broken by hand fails the test that it names."""
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "mutants"],
        capture_output=True,
        text=True,
        timeout=2390,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
