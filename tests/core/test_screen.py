"""`wtrain show` fits on one screen, whatever was caught, and says what matters."""

from __future__ import annotations

import msgspec
import pytest

from tests.corpus.cases import read_cases
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence
from watchdog_train.core.model import CapturedProcess
from watchdog_train.explain.families import known_families
from watchdog_train.explain.judge import judge
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.explanation_text import what_happened
from watchdog_train.report.screen_text import HEIGHT, WIDTH, one_screen


def verdict_of(evidence) -> BundleVerdict:
    rows = tuple(
        CapturedProcess(
            pid=one.pid, start=1, role=one.role, rank=one.rank, worker=one.worker, state=one.state,
            captured=bool(one.threads), why_not=None if one.threads else "ptrace is refused " * 20,
        )
        for one in evidence.processes
    )  # fmt: skip
    return BundleVerdict(
        id="0001", why=evidence.why, at=1.0, attempt=2, beat_age_s=61.0, phase="train",
        processes=rows, exit=evidence.exit,
        done=("then every process of the training is ended, and it restarts " * 4,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "part",
    [
        "held_out",
        pytest.param("tuning", marks=pytest.mark.slow),
        pytest.param("captured", marks=pytest.mark.slow),
    ],
)
def test_every_case_fits_on_one_screen(part):
    words = remedy_words()
    for case in read_cases(part):
        evidence = case.evidence
        found = judge(evidence)
        text = one_screen(verdict_of(evidence), found, evidence, remedy_words=words)
        lines = text.split("\n")
        assert len(lines) < HEIGHT, (case.name, text)
        assert max(map(len, lines)) <= WIDTH, (case.name, text)
        known = "" if found.is_complete else "cause unknown"
        assert (found.family or known) in text, case.name
        said = "".join(what_happened(found).split())
        assert evidence.why == "crash" or said in "".join(text.split()), (case.name, text)
        if found.remedies:
            assert f"change  1 {found.remedies[0].name}"[:70] in text, (case.name, text)


def test_what_is_on_the_screen():
    case = next(c for c in read_cases("held_out") if "rank-7-loader" in c.name)
    evidence = case.evidence
    found = judge(evidence)
    text = one_screen(verdict_of(evidence), found, evidence, remedy_words=remedy_words())
    assert text.startswith("Dump on request 0001, attempt 2, ")
    assert "\nsince   no progress for 61 s, in phase train\n" in text
    assert "\nwhere   ranks 0-2: torch.all_reduce (gpt/loop.py:88) | rank 3:\n" in text
    assert "then    every process" in text
    assert "wtrain show --all" in text


def test_without_an_explanation_it_says_so():
    """A bundle whose explanation cannot be read is still shown."""
    evidence = Evidence(why="manual")
    text = one_screen(msgspec.structs.replace(verdict_of(evidence)), None, evidence)
    assert "nothing was explained" in text


def test_every_remedy_of_a_family_is_explained():
    named = {remedy for family in known_families() for remedy in family.remedies}
    assert named - remedy_words().keys() == set()
