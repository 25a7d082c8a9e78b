"""The installed `wtrain replay` on a trace file and on the trace of a real run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.core.test_trace import stopping_at, written
from tests.support import run_program, run_wtrain

ROWS = dict.fromkeys((113.0, 124.0, 139.0, 169.0, 175.0), "unknown")


def hang() -> list[bytes]:
    return list(written(stopping_at(100, 300), ROWS))


def test_a_trace_file(tmp_path: Path) -> None:
    """Words for people, data for programs; other settings, another answer."""
    (tmp_path / "night.jsonl").write_bytes(b"".join(hang()))
    told = run_wtrain("replay", "night.jsonl", cwd=tmp_path).check().stdout.splitlines()
    assert told[0] == "night.jsonl: 301 samples, 5 min"
    assert told[1].split() == ["t", "verdict", "phase", "basis", "why"]
    assert told[-1] == "first stall at 175.0 s"
    data = run_wtrain("replay", "night.jsonl", "--json", cwd=tmp_path).check().json()
    assert list(data) == ["schema_version", "verdicts", "first_stall_t"]
    assert [list(verdict) for verdict in data["verdicts"]] == [
        ["t", "kind", "phase", "basis", "why"]
    ] * 2
    assert (data["verdicts"][-1]["kind"], data["first_stall_t"]) == ("stall", 175.0)
    (tmp_path / "slow.yaml").write_text("detection: {silence_s: 250}\n")
    slow = ["replay", "night.jsonl", "--config", "slow.yaml"]
    assert run_wtrain(*slow, "--json", cwd=tmp_path).check().json() == {
        "schema_version": 1,
        "verdicts": [],
        "first_stall_t": None,
    }
    assert "nothing would have been killed" in run_wtrain(*slow, cwd=tmp_path).check().stdout


def test_damage_is_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    """A bad line, one that is out of order, and a last line that is cut off."""
    lines = hang()
    bad = [*lines[:50], b"{oops\n", lines[7], *lines[50:], lines[-1][:40]]
    (tmp_path / "t.jsonl").write_bytes(b"".join(bad))
    done = run_wtrain("replay", "t.jsonl", "--json", cwd=tmp_path).check()
    assert done.json()["first_stall_t"] == 175.0
    assert "3 lines are no samples, the first is line 51" in done.stderr


@pytest.mark.parametrize(
    ("content", "reference"),
    [(b"", "trace-empty"), (b"hello\nworld\n", "trace-empty"), (None, "trace-unreadable")],
)
def test_no_trace_at_all(tmp_path: Path, content: bytes | None, reference: str) -> None:
    """Refused with 78."""
    if content is not None:
        (tmp_path / "t.jsonl").write_bytes(content)
    done = run_wtrain("replay", "t.jsonl", cwd=tmp_path).check(78)
    assert f"error: {reference}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_trace_of_a_run(tmp_path: Path) -> None:
    """Recorded by the supervisor, judged again with the run's own settings or with others."""
    run = run_program(tmp_path, "sleeping_steps.py", "--steps", "4", "--sleep-s", "1").check()
    read = [json.loads(line) for line in (run.run_dir / "trace.jsonl").read_text().splitlines()]
    assert {"t", "begins", "others", "cpu_s", "io_bytes"} <= set(read[0])
    assert [one["begins"] for one in read if "begins" in one] == [1]
    assert [line["ranks"][0][7] for line in read if line.get("ranks")][-1] == 4
    assert run_wtrain("replay", "--json", cwd=tmp_path).check().json()["first_stall_t"] is None
    assert run.only("run_started")["limits"]["patience"]["unknown_early_s"] == 12
    (run.run_dir / "trace.jsonl").unlink()
    assert "trace-unreadable" in run_wtrain("replay", cwd=tmp_path).check(78).stderr


def test_a_named_pipe_is_no_trace(tmp_path: Path) -> None:
    """It would be waited for, for ever."""
    os.mkfifo(tmp_path / "t.jsonl")
    assert run_wtrain("replay", "t.jsonl", cwd=tmp_path, timeout_s=20).returncode == 78
