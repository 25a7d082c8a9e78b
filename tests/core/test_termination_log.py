"""The verdict for a kubelet: short, whole, in the file it has mounted, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import said
from watchdog_train.report.summary import CAP_BYTES, verdict_text
from watchdog_train.report.why_text import why_text
from watchdog_train.report.words import cut_bytes
from watchdog_train.store.log_reading import read_events
from watchdog_train.supervisor.status_files import IN_KUBERNETES, TerminationLog

GOLDEN = Path(__file__).parent.parent / "golden"
POD = {IN_KUBERNETES: "10.0.0.1"}


def recorded(name: str) -> State:
    return replay(read_events(GOLDEN / f"{name}.events.jsonl").events)


@pytest.mark.parametrize(
    ("name", "begins", "holds"),
    [
        ("gave_up", "wtrain: gave up: ", ("stall 000", "evidence: /")),
        ("healthy", "wtrain: success: ", ()),
        ("stopped", "wtrain: stopped: ", ()),
    ],
)
def test_the_verdict_of_recorded_runs(name: str, begins: str, holds: tuple[str, ...]) -> None:
    """The outcome first; what was caught and where the evidence is, unless all ended well."""
    text = verdict_text(recorded(name))
    assert text.startswith(begins)
    assert text.endswith("\n")
    assert text.count("\n") == 1 + len(holds)
    for words in holds:
        assert words in text


def test_it_is_known_before_the_end() -> None:
    """Of a run that lives: where it is, and what was caught."""
    events = read_events(GOLDEN / "gave_up.events.jsonl").events
    upto = next(n for n, event in enumerate(events) if isinstance(event, e.EvidenceCollected))
    text = verdict_text(replay(events[: upto + 1]))
    assert text.startswith("wtrain: collecting, attempt 1\nstall 0001 of attempt 1: ")


def test_it_is_never_too_long() -> None:
    """Whatever a training has written; in bytes, not characters, and no character is cut in two."""
    state = recorded("gave_up")
    long = msgspec.structs.replace(state, why=said("ä\x1b[31m\n" * 9000), cwd="ü" * 5000)
    stalls = (
        *state.stalls[:-1],
        msgspec.structs.replace(state.stalls[-1], verdict=said("ö" * 9000)),
    )
    data = verdict_text(msgspec.structs.replace(long, stalls=stalls)).encode()
    assert len(data) <= CAP_BYTES
    assert b"\x1b" not in data
    assert [cut_bytes("äöü", size) for size in (6, 5, 4)] == ["äöü", "ä…", "…"]


def test_it_is_written_in_place(tmp_path: Path) -> None:
    """The kubelet has mounted that file: another one under its name would not be seen."""
    kubelets = tmp_path / "termination-log"
    kubelets.write_text("x" * 9000)
    before = kubelets.stat().st_ino
    log = TerminationLog("auto", environ=POD, cwd=str(tmp_path), auto=kubelets)
    state = recorded("gave_up")
    log.follow(e.SupervisorLeft(why=said("a bug")), State())
    assert list(log.finish(state)) == []
    assert kubelets.read_text() == verdict_text(state)
    assert kubelets.stat().st_ino == before


def test_nobody_asks_for_it(tmp_path: Path) -> None:
    """Outside of Kubernetes, where it has no such file, and where the setting is null."""
    file = tmp_path / "termination-log"
    absent = TerminationLog("auto", environ=POD, cwd=str(tmp_path), auto=file)
    assert list(absent.finish(recorded("healthy"))) == []
    assert not file.exists()
    file.write_text("")
    for wanted, environ in (("auto", {}), (None, POD)):
        log = TerminationLog(wanted, environ=environ, cwd=str(tmp_path), auto=file)
        assert list(log.finish(recorded("healthy"))) == []
    assert file.read_text() == ""


@pytest.mark.parametrize("what", ["no folder", "a folder", "a pipe"])
def test_what_cannot_be_written_is_said(tmp_path: Path, what: str) -> None:
    """A failure is recorded; it costs the run nothing."""
    path = tmp_path / "there" / "log"
    if what != "no folder":
        path.parent.mkdir()
    if what == "a folder":
        path.mkdir()
    if what == "a pipe":
        os.mkfifo(path)
    log = TerminationLog("there/log", environ={}, cwd=str(tmp_path))
    (noticed,) = log.finish(recorded("gave_up"))
    assert noticed.kind == "termination"
    assert why_text(noticed.why).startswith(
        f"the termination message cannot be written to {path}: "
    )
