"""The corpus of evidence: what the rules must get right, and must not be sure of when wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.corpus.cases import FOLDER, UNKNOWN, judged, read_cases, renderings
from watchdog_train.evidence.text.gather import gather
from watchdog_train.explain.because import judge
from watchdog_train.rules import load_rules

RULES = load_rules()
PARTS = [part for part in ("tuning", "held_out", "captured") if (FOLDER / part).is_dir()]
THREADS = read_cases("threads") + read_cases("threads_held_out")
LEAST_RIGHT = 0.9
FAILURES = ("wrong", "sure and wrong", "misleading", "false verdict", "culprit wrong")


@pytest.mark.parametrize("part", PARTS)
def test_the_corpus_is_judged_as_it_says(part):
    """Most answers are right; none is wrong with confidence, no healthy capture is called sick."""
    wrong, dangerous, total = [], [], 0
    for case in read_cases(part):
        for how, rendered in renderings(case).items():
            found = judge(gather(rendered.sources), RULES)
            counts = judged(case, found)
            total += 1
            words = f"{case.name} ({how}): {found.family} {found.confidence}"
            if "wrong" in counts:
                wrong.append(words)
            if {"sure and wrong", "false verdict"} & set(counts):
                dangerous.append(words)
    assert not dangerous
    assert len(wrong) <= (1 - LEAST_RIGHT) * total, wrong


def test_threads_fail_where_the_list_says_and_nowhere_else():
    """A new failure is a regression. One that is mended must leave the list to stay mended."""
    failures = set()
    for case in THREADS:
        for how, rendered in renderings(case).items():
            found = judged(case, judge(gather(rendered.sources), RULES))
            bad = [word for word in found if word in FAILURES]
            if bad:
                failures.add(f"{case.name} ({how}): {', '.join(bad)}")
    listed = set((FOLDER / "failing.list").read_text("utf-8").splitlines())
    changes = [f"+ {line}" for line in sorted(failures - listed)]
    changes += [f"- {line}" for line in sorted(listed - failures)]
    assert not changes, "\n".join(["failing.list must change:", *changes])


def test_each_thread_is_another_one_and_says_what_it_was():
    assert all(
        (case.source or "").startswith("https://")
        and case.cause
        and case.basis in ("thread", "message", "inferred")
        and case.kind in ("hang", "crash", "slow", "healthy")
        and not set(case.never) & set(case.expect)
        for case in THREADS
    )
    assert len({case.source for case in THREADS}) == len(THREADS)
    families = Counter(
        (case.name.partition("/")[0], case.expect[0])
        for case in THREADS
        if not case.healthy and case.expect[0] != UNKNOWN
    )
    assert max(families.values()) <= 5


def test_every_family_is_in_the_corpus():
    """A family without a case could break without anybody seeing it."""
    cases = Counter(name for part in PARTS for case in read_cases(part) for name in case.expect)
    assert {rule.family for rule in RULES.families} - set(cases) == set()
