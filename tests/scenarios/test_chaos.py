"""Random faults at random moments: two minutes of cheap trainings here, a long campaign at night.

The fast tier has twelve minutes on two cores, so its campaign strikes the trainings without torch,
one at a time; the long one has all of them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import plan
from tests.chaos.campaign import Campaign, Options
from tests.chaos.faults import FAULTS
from tests.chaos.moments import Moment
from tests.chaos.trainings import SHAPES
from tests.support import REPOSITORY, run_command

SEED = 20261122
LIGHT = [name for name, shape in SHAPES.items() if shape.light]


def campaign(folder: Path, *args: str, timeout_s: float) -> list[dict[str, object]]:
    """The cases of a campaign, all of which must have been survived."""
    answer = folder / "campaign.json"
    words = ("--seed", str(SEED), "--json", str(answer), "--folder", str(folder), *args)
    run_command(
        [sys.executable, str(REPOSITORY / "scripts" / "chaos"), *words], timeout_s=timeout_s
    )
    cases = json.loads(answer.read_text("utf-8"))["cases"]
    assert isinstance(cases, list)
    return cases


@pytest.mark.takes_minutes
@pytest.mark.timeout(430)
def test_a_campaign_of_two_minutes(tmp_path: Path) -> None:
    """Faults on trainings without torch."""
    words = [word for name in LIGHT for word in ("--training", name)]
    cases = campaign(tmp_path, "--minutes", "2", "--jobs", "1", "--fresh", *words, timeout_s=420)
    assert [case for case in cases if case["outcome"] == "survived"], cases


@pytest.mark.slow
@pytest.mark.timeout(2300)
def test_a_long_campaign(tmp_path: Path) -> None:
    """Ten minutes of all faults on all trainings."""
    cases = campaign(tmp_path, "--minutes", "10", "--jobs", "3", timeout_s=2200)
    assert len({case["fault"] for case in cases}) > len(FAULTS) // 2, cases


def test_a_case_follows_from_its_seed_and_number() -> None:
    """So that a failing one can be run again by itself; every fault comes once in a round."""
    every = {"shapes": set(SHAPES), "faults": set(FAULTS), "isolated": True}
    first = [plan.case(5, number, **every) for number in range(1, len(FAULTS) + 1)]
    assert first == [plan.case(5, number, **every) for number in range(1, len(FAULTS) + 1)]
    assert sorted(case.fault for case in first if isinstance(case, plan.CaseSpec)) == sorted(FAULTS)
    spec = first[0]
    assert isinstance(spec, plan.CaseSpec)
    assert plan.CaseSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_case_that_failed_is_kept_once_and_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole case, not its seed: with one fault more a seed gives other cases."""
    assert {case.fault for case in plan.kept()} <= set(FAULTS)
    assert {case.shape for case in plan.kept()} <= set(SHAPES)
    monkeypatch.setattr(plan, "KEPT", tmp_path / "kept.jsonl")
    plan.KEPT.touch()
    spec = plan.CaseSpec(3, 4, "a stop", "beats", "none", Moment("train", "first_step", 1, 0.5))
    for checksum in ("of this machine", "of another"):
        plan.keep(replace(spec, checksum=checksum))
    choice = {"shapes": SHAPES, "faults": FAULTS, "folder": tmp_path, "jobs": 1, "seed": 1}
    options = Options(minutes=None, most=1, only=None, kept=True, **choice)  # type: ignore[arg-type]
    assert list(Campaign(options, print).cases()) == [spec]


def test_a_fault_that_cannot_be_tried_is_counted_with_its_reason() -> None:
    """Never left out in silence."""
    found = {
        plan.case(5, number, {"beats"}, set(FAULTS), isolated=False)
        for number in range(1, len(FAULTS) + 1)
    }
    reasons = {one for one in found if isinstance(one, str)}
    assert reasons == {
        "needs namespaces and mounts of its own",
        "none of the chosen trainings has what it strikes",
    }
