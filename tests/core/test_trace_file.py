"""trace.jsonl on disk: capped, gone on with, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from watchdog_train.core.traces.trace import header_line
from watchdog_train.errors import WtrainError
from watchdog_train.store import trace_file
from watchdog_train.store.trace_file import TraceFile, older_part, trace_lines

HEADER = header_line(1.0)


def at_once(work: Callable[[], None]) -> bool:
    work()
    return True


def written(path: Path, *lines: bytes, cap_bytes: int = 10_000) -> TraceFile:
    file = TraceFile(path, poll_s=1.0, cap_bytes=cap_bytes, beside=at_once)
    for line in lines:
        file.append(line)
    file.close()
    return file


def test_a_trace_is_a_header_and_lines(tmp_path: Path) -> None:
    """As documented."""
    path = tmp_path / "trace.jsonl"
    file = written(path, b"{1}\n", b"{2}\n")
    assert path.read_bytes() == HEADER + b"{1}\n{2}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert file.trouble is None


def test_the_next_supervisor_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    """A half line of a dead supervisor costs itself only."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(HEADER + b"{1}\n{tor")
    written(path, b"{2}\n")
    assert path.read_bytes() == HEADER + b"{1}\n{tor\n{2}\n"


def test_the_oldest_go_when_the_cap_is_reached(tmp_path: Path) -> None:
    """Two parts, half of the cap each, each with its header; the newest samples are kept."""
    path = tmp_path / "trace.jsonl"
    lines = [b"%019d\n" % number for number in range(100)]
    written(path, *lines, cap_bytes=400)
    sizes = [part.stat().st_size for part in (older_part(path), path)]
    assert sum(sizes) <= 400
    kept = [line + b"\n" for line, torn in trace_lines(path) if not torn]
    assert kept.count(HEADER) == 2
    samples = [line for line in kept if line != HEADER]
    assert samples == lines[-len(samples) :]


def test_a_disk_that_refuses_is_said_and_tried_again(tmp_path: Path) -> None:
    """Samples are lost, nothing else is."""
    path = tmp_path / "gone" / "trace.jsonl"
    file = written(path, b"{1}\n")
    assert file.trouble
    path.parent.mkdir()
    file.append(b"{2}\n")
    file.close()
    assert path.read_bytes() == HEADER + b"{2}\n"


def test_a_writer_with_too_much_to_do_loses_samples(tmp_path: Path) -> None:
    """The loop never waits for a trace."""
    file = TraceFile(tmp_path / "t", poll_s=1.0, cap_bytes=99, beside=lambda _: False)
    file.append(b"{1}\n")
    assert file.trouble == "the disk does not answer"


@pytest.mark.parametrize("end", [b"", b"\n{4}\n"])
def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as a cut-off one, and what follows is read."""
    monkeypatch.setattr(trace_file, "LINE_BYTES", 64)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"{1}\n" + b"x" * 1000 + end)
    lines = list(trace_lines(path))
    assert lines[:2] == [(b"{1}", False), (b"", True)]
    assert lines[2:] == ([(b"{4}", False)] if end else [])


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """With its path, and exit code 78."""
    path = tmp_path / "trace.jsonl"
    if kind == "directory":
        path.mkdir()
    with pytest.raises(WtrainError) as refused:
        list(trace_lines(path))
    assert refused.value.exit_code == 78
