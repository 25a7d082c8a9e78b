"""Flight Recorder dumps: real ones of torch 2.13 with gloo, NCCL's from its documented format."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog_train.client.layout import RECORDER_PREFIX
from watchdog_train.core.diagnosis.collectives import compare, pending
from watchdog_train.core.diagnosis.facts import CollectiveFact
from watchdog_train.core.diagnosis.recorder import (
    advanced,
    joined,
    looks_like_recorder,
    read_recorder,
    still_in,
    trimmed,
)
from watchdog_train.core.pickle_data import DamagedPickleError, UnreadablePickleError, read
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.evidence.recorders import left_in_files, read_dump

CAPTURED = Path(__file__).parents[1] / "programs" / "recorders"


def facts(name: str, kind: str):
    found = []
    for rank in (0, 1):
        data = read_dump((CAPTURED / f"gloo-{name}-rank{rank}.{kind}").read_bytes())
        found += read_recorder(data, rank)
    return found


@pytest.mark.parametrize("kind", ["json", "pickle"])
def test_both_formats_of_one_moment_say_the_same(kind):
    """Rank 1 is one all-reduce behind; which of two in different operations is wrong is unknown."""
    left, differ = facts("left", kind), facts("mismatch", kind)
    found = compare(left)
    assert (found.relation, found.culprit) == ("behind", 1)
    assert [pending(left, rank) for rank in (0, 1)] == [("allreduce", 3), (None, None)]
    found = compare(differ)
    assert (found.relation, found.culprit) == ("different-operation", None)
    assert {fact.op for fact in differ} == {"ALLREDUCE", "BROADCAST"}


def test_what_nccl_left_at_an_earlier_start_is_not_read(tmp_path):
    """Ranks that a launcher starts anew write into the same folder."""
    left = tmp_path / f"{RECORDER_PREFIX}1"
    left.write_bytes((CAPTURED / "gloo-left-rank1.pickle").read_bytes())
    assert [one.rank for one in left_in_files(str(tmp_path))] == [1]
    os.utime(left, (time.time() - 3600,) * 2)
    assert left_in_files(str(tmp_path)) == []


def nccl(rank, completed, enqueued, op):
    """Handwritten from the documented format; not tested on NCCL."""
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "op_id": number,
            "profiling_name": op if number == enqueued else "nccl:all_reduce",
            "input_sizes": [[1024, 8]],
            "state": "completed" if number <= completed else "started",
            "retired": number <= completed,
            "is_p2p": False,
            "frames": [{"name": "step", "filename": "train.py", "line": 3}],
        }
        for number in range(1, enqueued + 1)
    ]
    status = {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
    return {"version": "2.10", "entries": entries, "pg_status": {"0": status}}


@pytest.mark.parametrize(
    ("odd", "enqueued", "op", "relation"),
    [
        (5, 41, "nccl:broadcast", "different-operation"),  # the majority is the victim
        (3, 40, "nccl:all_reduce", "behind"),  # it never joined
    ],
)
def test_the_one_of_eight_ranks_that_differs_is_named(odd, enqueued, op, relation):
    given = [(enqueued, op) if rank == odd else (41, "nccl:all_reduce") for rank in range(8)]
    dumps = [read_recorder(nccl(rank, 40, *one), rank) for rank, one in enumerate(given)]
    found = compare([fact for dump in dumps for fact in dump])
    assert (found.relation, found.culprit) == (relation, odd)


def test_a_group_that_moves_between_two_looks_accuses_nobody():
    """Ranks of a healthy job are a collective apart at any moment."""
    before = read_recorder(nccl(0, 40, 41, "nccl:all_reduce"), 0)
    later = read_recorder(nccl(0, 41, 42, "nccl:all_reduce"), 0)
    other = read_recorder(nccl(1, 41, 41, "nccl:all_reduce"), 1)
    assert still_in(before, (*later, *other)) == ()
    assert still_in(before, (*before, *other)) == (*before, *other)


def test_ranks_that_exchange_while_they_are_looked_at():
    """Only numbers that grew, of a group that was known before: a new group proves nothing."""
    before = (fact(0, 5, 5), fact(1, 5, 4), fact(2, 5, 5))
    after = (fact(0, 6, 5), fact(1, 5, 5), fact(2, 5, 5), fact(3, 9, 9))
    assert advanced(before, after) == (0, 1)
    assert advanced(after, before) == ()
    assert advanced((), after) == ()


def fact(rank: int, enqueued: int, completed: int) -> CollectiveFact:
    return CollectiveFact(rank=rank, seq=5, last_enqueued=enqueued, last_completed=completed)


def test_the_recorder_that_holds_something_is_taken():
    """Of an NCCL job the recorder of the CPU answers, too, and is empty."""
    status = {"0": {"last_enqueued_collective": "-1"}}
    empty = {"version": "2.10", "pg_status": status, "entries": []}
    gpu = nccl(0, 2, 3, "nccl:all_reduce")
    assert joined({"cpu": empty, "nccl": gpu}) is gpu
    assert joined({"cpu": gpu, "nccl": empty}) is gpu
    assert joined({"cpu": empty}) is empty
    assert joined({}) is None


def test_groups_of_two_recorders_count_for_themselves():
    """Gloo and NCCL number the same group apart: who is behind in one is not so in the other."""
    given: list[CollectiveFact] = []
    for rank in (0, 1):
        gloo = nccl(rank, 2 + rank, 3 + rank, "gloo:all_gather")
        both = joined({"cpu": gloo, "nccl": nccl(rank, 6, 7, "nccl:all_reduce")})
        given += read_recorder(both, rank)
    found = compare(given)
    assert (found.relation, found.culprit) == ("behind", 0)


def test_a_pickle_that_runs_something_is_only_data():
    """What would call a function when it is loaded becomes a description, and no dump."""

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (Path("/tmp/must-not-exist-of-recorder-test"),))

    content = pickle.dumps({"entries": [Bomb(), {"process_group": Bomb(), "state": Bomb()}]})
    assert read_recorder(read_dump(content), 0) != ()
    assert not Path("/tmp/must-not-exist-of-recorder-test").exists()
    assert read(b"S'\\K'\n.") == "\\K"  # Python warns of that escape, and a test fails with it


def test_a_pickle_that_holds_itself_stays_small():
    """The same list a billion times, and one within itself: written down in bounded space."""
    laughs: list = [1]
    for _ in range(40):
        laughs = [laughs, laughs]
    own: list = []
    own.append(own)
    entry = {"collective_seq_id": 1, "input_sizes": laughs, "output_sizes": own, "frames": laughs}
    content = pickle.dumps({"entries": [entry] * 9, "pg_status": {"0": {"x": laughs}}}, protocol=2)
    started = time.monotonic()
    data = read_dump(content)
    assert len(msgspec.json.encode(trimmed(data))) < 20_000
    assert read_recorder(data, 0)
    assert time.monotonic() - started < 5


def test_a_folder_of_nccl_pickles_can_be_brought(tmp_path):
    """`wtrain diagnose` takes what NCCL left, without unpickling it."""
    for rank in range(2):
        dump = nccl(rank, 5, 6 - rank, "nccl:all_reduce")
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    given = read_inputs([str(tmp_path)])
    assert [(fact.rank, fact.seq) for fact in given.evidence.collectives] == [(0, 6), (1, 5)]


KEYS = (
    "entries", "pg_status", "0", "state", "rank", "process_group", "collective_seq_id",
    "input_sizes", "last_enqueued_collective", "profiling_name",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_data_is_no_exception(data):
    compare(read_recorder(data, 0))
    looks_like_recorder(data)
    assert msgspec.json.encode(trimmed(data))


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x80\x02", b"\x80\x04}"]))
def test_any_bytes_are_no_exception(content, head):
    assert read_dump(head + content) is None or looks_like_recorder(read_dump(head + content))


@given(st.integers(min_value=0, max_value=1500))
def test_a_real_pickle_cut_anywhere_is_damaged(at):
    content = (CAPTURED / "gloo-left-rank0.pickle").read_bytes()
    if at < len(content):
        with pytest.raises((DamagedPickleError, UnreadablePickleError)):
            read(content[:at])
