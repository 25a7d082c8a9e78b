"""Words of the terminal, the status and the bundles: each thing once, and nothing wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.core.builders import running
from watchdog_train.core import events as e
from watchdog_train.core import model as m
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence
from watchdog_train.core.model.explanation import CollectiveWait, Victim
from watchdog_train.core.model.waits import FileWait
from watchdog_train.evidence.bundle import SUMMARY_FILE, Bundle, write_staged
from watchdog_train.report.narrative import narrate
from watchdog_train.report.why_text import why_text

QUIET = m.Why(
    "no-progress",
    rank=0,
    phase="train",
    seconds=13.0,
    because=(m.Why("learnt-limit", limit_s=12.0), m.Why("job-idle")),
)
LOOK = "the worker waits for a lock; nobody can release it."


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (QUIET.plus(m.said(LOOK)), "rank 0 made no progress for 13 s in phase train"),
        (QUIET, "rank 0 made no progress for 13 s in phase train"),
        (
            QUIET.plus(m.said(LOOK), m.Why("waited", seconds=21.0)),
            "rank 0 made no progress for 13 s in phase train; waited 21 s more",
        ),
        (
            m.Why("over-stall-timeout", rank=0, seconds=9.2, limit_s=5.0),
            "rank 0: no progress for 9.2 s, over your --stall-timeout 5 s",
        ),
    ],
)
def test_a_stall_has_a_headline(why: m.Why, expected: str) -> None:
    """What the suspicion and the diagnosis say in lines of their own is not said again."""
    assert why_text(why, brief=True) == expected


def test_a_stall_is_told_once() -> None:
    declared = e.StallDeclared(
        stall_id="0001", basis="proven", phase="train", ranks=(0,), age_s=13.0,
        why=QUIET.plus(m.said(LOOK)),
    )  # fmt: skip
    root = m.Standstill(
        who=m.Who(pid=12, role="rank", rank=0), doing=FileWait(call="open", path="x", kind="fifo")
    )
    cause = m.Because(family="fork-lock", certainty="likely", template=LOOK)
    found = m.Explanation(kind="hang", root=root, because=cause)
    state = running(declared)
    told = (
        *narrate(declared, state),
        *narrate(e.StallExplained(stall_id="0001", explanation=found), state),
    )
    assert told == (
        "wtrain: STALL 0001: rank 0 made no progress for 13 s in phase train",
        "wtrain: rank 0 (pid 12) is opening x. It is a FIFO that no other process has open.",
        f"wtrain: Cause: fork-lock (likely). {LOOK}",
    )
    waits = CollectiveWait(op="all_reduce")
    victims = (Victim(who=m.Who(pid=9, role="rank", rank=1), how=waits, waits_for=(root.who,)),)
    seen = msgspec.structs.replace(found, because=None, victims=victims)
    sampled = running(e.Looked(patience=m.Patience(root=root), explanation=seen), declared)
    (first,) = narrate(declared, sampled)
    assert first == (
        "wtrain: STALL 0001: rank 0 (pid 12) has been opening x for 13 s. It is a FIFO that no "
        "other process has open. rank 1 waits for rank 0 (pid 12) in all_reduce."
    )
    known = e.StallExplained(stall_id="0001", explanation=seen)
    assert narrate(known, sampled) == (), "the first line has said it"
    unknown = msgspec.structs.replace(found, because=None)
    (line,) = narrate(e.StallExplained(stall_id="0001", explanation=unknown), state)
    assert line == told[1]


def test_a_bundle_says_what_follows_and_what_to_change(tmp_path: Path) -> None:
    """SUMMARY.md can be read alone: no "then" without a before, each remedy with its line."""
    found = m.Explanation(kind="hang", remedies=(m.Remedy(name="num-workers-0", by="family"),))
    slow = m.Straggler(
        rank=1, pid=4, place="batch", behind_s=0.2, step_s=0.5, lost=0.4, share=0.9, steps=60
    )
    verdict = BundleVerdict(
        id="0001", why="stall", at=0.0, straggler=slow,
        done=("then every process is ended, and the run stops",),
    )  # fmt: skip
    bundle = Bundle(verdict=verdict, explanation=found, evidence=Evidence(why="stall"))
    write_staged(tmp_path, bundle)
    text = (tmp_path / SUMMARY_FILE).read_text()
    assert "Straggler before it: rank 1 (pid 4) has its batch 0.2 s after the others" in text
    assert "## What follows\n\n- every process is ended, and the run stops\n" in text
    change = "1. num-workers-0: loads data in the main process; "
    change += "DataLoader(..., num_workers=0)\n"
    assert change in text
