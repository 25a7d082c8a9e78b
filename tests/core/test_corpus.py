"""The corpus of evidence: what the rules must get right, and must not be sure of when wrong."""

from __future__ import annotations

import json

import pytest

from tests.core.test_diagnose import CASES as BY_HAND
from tests.corpus.cases import PARTS, judged, read_cases, renderings
from watchdog_train.explain.families import known_families
from watchdog_train.explain.judge import judge

LEAST_RIGHT = 0.9


@pytest.mark.parametrize("part", PARTS)
def test_the_corpus_is_judged_as_it_says(part):
    """Most answers are right; none is wrong with confidence, no healthy capture is called sick."""
    wrong, dangerous, total = [], [], 0
    for case in read_cases(part):
        for how, rendered in renderings(case).items():
            found = judge(rendered.evidence)
            counts = judged(case, found)
            total += 1
            words = f"{case.name} ({how}): {found.family}"
            if "wrong" in counts:
                wrong.append(words)
            if {"sure and wrong", "false verdict"} & set(counts):
                dangerous.append(words)
    assert not dangerous
    assert len(wrong) <= (1 - LEAST_RIGHT) * total, wrong


def test_every_family_has_a_case():
    """A family without a case could break without anybody seeing it."""
    expected = {name for part in PARTS for case in read_cases(part) for name in case.expect}
    expected |= {json.loads(path.read_text())["expect"].get("family") for path in BY_HAND}
    assert {one.id for one in known_families()} - expected == set()
