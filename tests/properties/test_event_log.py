"""Whatever byte a supervisor is killed at, its log reads as a prefix of what it wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.fold.evolve import evolve, replay
from watchdog_train.core.fold.state import State
from watchdog_train.core.model import PhaseRanks, RunProgress, said
from watchdog_train.store.event_log import EventLog
from watchdog_train.store.log_reading import read_events

HISTORY: tuple[e.AnyEvent, ...] = (
    msgspec.structs.replace(b.RUN_STARTED, argv=("python", "caf\u00e9.py")),
    e.FirstBeat(rank=0, pid=3, after_s=1.5),
    e.Progress(
        progress=RunProgress(step=7, loss=0.25),
        ranks=(PhaseRanks(phase="train", ranks=((0, 1),), step=7, behind=(0, 1)),),
        members=(),
    ),
    e.StallDeclared(
        stall_id="0001",
        basis="quiet",
        phase="train",
        ranks=(0,),
        age_s=30.0,
        why=said("\u2028 quiet"),
    ),
    e.StallRecovered(stall_id="0001", why=said("a step")),
    e.RunFinished(outcome="succeeded", exit_code=0, warning=None, why=said("it ended")),
)

texts = st.text(max_size=40)
histories = st.lists(
    st.one_of(
        st.builds(e.SuspicionEnded, why=texts.map(said)),
        st.builds(e.FirstBeat, rank=st.integers(0, 9), pid=st.integers(1), after_s=st.just(1.0)),
        st.builds(e.LogBehind, behind_s=st.just(2.0), spill=st.none() | texts, why=texts.map(said)),
        st.builds(e.TreeGone, shared_memory_removed=st.lists(texts, max_size=3).map(tuple)),
    ),
    max_size=8,
)


def write(path: Path, history: tuple[e.AnyEvent, ...]) -> tuple[e.AnyEvent, ...]:
    log = EventLog.open(path, spill_dir=None)
    written = tuple(log.append(event, 1) for event in history)
    assert log.close(10.0)
    return written


def test_every_byte_cut_reads_as_a_prefix_and_names_the_torn_tail(tmp_path: Path) -> None:
    """Cut anywhere, the reader gives the whole lines before the cut and the bytes after them."""
    path = tmp_path / "events.jsonl"
    written = write(path, HISTORY)
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        reading = read_events(path)
        whole = content[:size].count(b"\n")
        assert reading.events == written[:whole]
        tail = content[:size].rpartition(b"\n")[2]
        assert reading.torn_tail == (tail or None)
        assert replay(reading.events) == replay(written[:whole])


def test_a_supervisor_goes_on_after_any_cut(tmp_path: Path) -> None:
    """Opened after a cut at any byte, the log takes new events and reads without a gap."""
    path = tmp_path / "events.jsonl"
    written = write(path, HISTORY)
    content = path.read_bytes()
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    cuts = sorted({*ends, *(end + 1 for end in ends), *range(0, len(content), 29)})
    for size in cuts:
        path.write_bytes(content[:size])
        log = EventLog.open(path, spill_dir=None)
        added = log.append(e.SuspicionEnded(why=said("after")), 1)
        assert log.close(10.0)
        whole = content[:size].count(b"\n")
        assert read_events(path).events == (*written[:whole], added)


@given(histories)
def test_what_was_appended_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, history: list[e.AnyEvent]
) -> None:
    """Any texts, any events: reading gives back exactly what append() returned."""
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    written = write(path, tuple(history))
    assert read_events(path).events == written
    bare = [msgspec.structs.replace(each, seq=0, t=0.0, mono=0.0, attempt=0) for each in written]
    assert bare == history


@given(histories)
def test_replaying_every_prefix_is_evolving_step_by_step(history: list[e.AnyEvent]) -> None:
    """A reader that comes at any moment sees the state that the loop had then."""
    state = State()
    for count, event in enumerate(history, start=1):
        state = evolve(state, event)
        assert replay(history[:count]) == state
