"""`wtrain diagnose` on logs of programs that really failed: exception, message, the user's line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash_logs import LAYOUTS, CrashLog, logs, programs, run
from watchdog_train.core.model import Explanation, signal_name
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.explain.judge import judge
from watchdog_train.remedies.catalogue import remedy_words
from watchdog_train.report.diagnosis_text import diagnosis_text

pytestmark = pytest.mark.processes
LEAST_RIGHT = 0.98
SAMPLE = ("value", "fatal", "killed", "chained", "pool")
"""Kinds that take no time to fail."""


def problems(log: CrashLog, path: Path) -> list[str]:
    """What `diagnose` says wrongly of this log."""
    path.write_bytes(log.text.encode())
    given = read_inputs([str(path)])
    found = judge(given.evidence)
    text = diagnosis_text(found, given.evidence, given.failures, given.read, remedy_words())
    if not given.failures:
        return ["no failure", text]
    failure, program = given.failures[0], log.program
    fact = failure.fact
    named = fact.type or (signal_name(failure.signal) if failure.signal else "")
    wrong = []
    if log.shows_type and named != program.type:
        wrong.append(f"type {named}")
    if log.shows_type and program.message not in fact.message:
        wrong.append(f"message {fact.message}")
    place = fact.own
    at = (place.file[-8:], place.line) if place is not None else None
    if log.shows_line and program.line is not None and at != ("train.py", program.line):
        wrong.append(f"place {at} instead of {program.line}")
    if stands_still(found) or "standing still" in text or max(map(len, text.split("\n"))) > 400:
        wrong.append("stands still")
    return [*wrong, text.split("\n")[0]] if wrong else []


def stands_still(found: Explanation) -> bool:
    return found.kind in ("hang", "stopped", "slow")


def wrong_ones(chosen, folder: Path) -> tuple[list[str], int]:
    wrong, total = [], 0
    for number, program in enumerate(chosen):
        text = run(program, folder / str(number))
        for log in logs(program, text):
            total += 1
            found = problems(log, folder / "train.log")
            if found:
                wrong.append(f"{program.kind} {program.type}, {log.name}: {'; '.join(found)}")
    return wrong, total


def test_a_sample_of_logs_names_the_failure(tmp_path):
    chosen = {one.kind: one for one in programs() if one.kind in SAMPLE}
    wrong, total = wrong_ones(chosen.values(), tmp_path)
    assert total >= len(SAMPLE) * len(LAYOUTS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_all_logs_name_the_failure(tmp_path):
    """15 kinds and more, in 13 layouts, whole and in parts."""
    wrong, total = wrong_ones(programs(), tmp_path)
    assert total >= 200
    assert len(wrong) <= (1 - LEAST_RIGHT) * total, "\n".join(wrong)
    assert not any("stands still" in one for one in wrong), "\n".join(wrong)
