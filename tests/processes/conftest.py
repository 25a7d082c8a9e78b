"""Fixtures of the tests with processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client_runs import Training


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """A directory in which scripts run as an attempt would run them."""
    return Training(tmp_path)
