"""Twelve faults nobody has tuned on: the screen says what, who, where and on which object."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.held_out.runner import cases, compare, place_of, run_case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="FIFOs, flock, and /proc")


class WrongScreenError(AssertionError):
    """The fault was there, and the screen did not tell it."""


def test_each_case_is_complete() -> None:
    """Twelve of different kinds; every marker exists once in the programs."""
    found = cases()
    assert len(found) == len({case["id"] for case in found}) == 12
    assert sum(bool(case["victims"]) for case in found) >= 4
    assert all(place_of(marker) for case in found for marker in case["where"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xfail(
    strict=False, raises=WrongScreenError, reason="the explanation does not name all of this yet"
)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_screen_tells_the_truth(case, tmp_path: Path) -> None:
    """Each fact is on the screen of `wtrain show`; no victim first, no setting without grounds."""
    screens = run_case(case, tmp_path / "run")
    result = compare(case, screens)
    if not result.is_good:
        raise WrongScreenError(f"{result}\n{screens.show}\n{screens.live}")
