"""The installed `wtrain replay` on traces of strangers and on the trace of a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.test_trace import line, stopping_at
from tests.support import run_program, run_wtrain


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_strangers_trace(tmp_path: Path) -> None:
    """Words for people, data for programs; other settings, another answer."""
    trace = write(tmp_path / "night.jsonl", stopping_at(100, 300))
    told = run_wtrain("replay", trace.name, cwd=tmp_path).check().stdout.splitlines()
    assert told[0] == "night.jsonl: 301 samples, 5 min"
    assert told[1].split() == ["t", "verdict", "phase", "basis", "why"]
    assert told[-1] == "first stall at 175.0 s"
    data = run_wtrain("replay", trace.name, "--json", cwd=tmp_path).check().json()
    assert list(data) == ["schema_version", "verdicts", "first_stall_t"]
    assert [list(verdict) for verdict in data["verdicts"]] == [
        ["t", "kind", "phase", "basis", "why"]
    ] * 2
    assert (data["verdicts"][-1]["kind"], data["first_stall_t"]) == ("stall", 175.0)
    settings = "detection: {silence_s: 250}\n"
    (tmp_path / "slow.yaml").write_text(settings)
    slow = ["replay", trace.name, "--config", "slow.yaml"]
    assert run_wtrain(*slow, "--json", cwd=tmp_path).check().json() == {
        "schema_version": 1,
        "verdicts": [],
        "first_stall_t": None,
    }
    assert "nothing would have been called" in run_wtrain(*slow, cwd=tmp_path).check().stdout


def test_what_is_wrong_is_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    """Damage goes to stderr, the best answer that can be given to stdout."""
    lines = stopping_at(100, 300)[1:]
    trace = write(tmp_path / "t.jsonl", [*lines[:50], b"{oops", *lines[50:], b'{"t":301,"ra'])
    trace.write_bytes(trace.read_bytes()[:-1])
    done = run_wtrain("replay", str(trace), "--json", cwd=tmp_path).check()
    assert done.json()["first_stall_t"] == 175.0
    assert "no header" in done.stderr
    assert "line 51: not a sample" in done.stderr
    assert "the last line is cut off" in done.stderr


@pytest.mark.parametrize(
    ("content", "reference"),
    [(b"", "trace-empty"), (b"hello\nworld\n", "trace-empty"), (None, "trace-unknown")],
)
def test_no_trace_at_all(tmp_path: Path, content: bytes | None, reference: str) -> None:
    """Refused with 78, and what a sample looks like."""
    if content is not None:
        (tmp_path / "t.jsonl").write_bytes(content)
    done = run_wtrain("replay", "t.jsonl", cwd=tmp_path).check(78)
    assert f"error: {reference}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_trace_of_a_run(tmp_path: Path) -> None:
    """Recorded by the supervisor, judged again with the run's own settings or with others."""
    run = run_program(tmp_path, "sleeping_steps.py", "--steps", "4", "--sleep-s", "1").check()
    header, *samples = (run.run_dir / "trace.jsonl").read_text().splitlines()
    assert json.loads(header) == {"v": 1, "kind": "trace", "poll_s": 0.25, "waits": True}
    read = [json.loads(sample) for sample in samples]
    assert {"t", "ranks", "cpu_s", "processes", "log_bytes", "states"} <= set(read[0])
    steps = [s["ranks"]["0"]["step"] for s in read if "0" in s["ranks"]]
    assert steps[-1] == 4
    assert run_wtrain("replay", "--json", cwd=tmp_path).check().json()["first_stall_t"] is None
    assert run.only("run_started")["limits"]["patience"]["unknown_early_s"] == 12
    (run.run_dir / "trace.jsonl").unlink()
    assert "trace-missing" in run_wtrain("replay", cwd=tmp_path).check(78).stderr


def test_a_named_pipe_is_no_trace(tmp_path: Path) -> None:
    """It would be waited for, for ever."""
    import os

    os.mkfifo(tmp_path / "t.jsonl")
    assert run_wtrain("replay", "t.jsonl", cwd=tmp_path, timeout_s=20).returncode == 78


def test_lines_are_the_documented_ones() -> None:
    """What these tests feed is the format of the documentation."""
    assert json.loads(line(1.0, 7))["ranks"] == {"0": {"step": 7, "phase": "train", "beats": 28}}
