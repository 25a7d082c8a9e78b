"""The fast tests are strong enough to see the code broken."""

from __future__ import annotations

import sys

import pytest

from tests.support import REPOSITORY, run_command

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]


@pytest.mark.timeout(2400)
def test_every_mutant_is_caught() -> None:
    """Each promise that is broken by hand fails the test that it names."""
    run_command([sys.executable, REPOSITORY / "scripts" / "mutants"], timeout_s=2390)
