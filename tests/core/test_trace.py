"""A trace written, read back from anybody, and judged again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core import builders as b
from tests.core.test_detect import HEALTHY, SUSPECT
from watchdog_train.cli.replay import RecordedLooks
from watchdog_train.core import events as e
from watchdog_train.core import replay as replays
from watchdog_train.core.model import Patience, RankEnd, Sample
from watchdog_train.core.model.gpu import GpuUse
from watchdog_train.core.policy import Policy, WaitLimits
from watchdog_train.core.replay import Replay
from watchdog_train.core.trace import LONGEST_STRIDE, TraceWriter, decode_line, sample_of
from watchdog_train.errors import WtrainError
from watchdog_train.report.why_text import why_text
from watchdog_train.store import trace_file
from watchdog_train.store.trace_file import TraceFile, older_part, trace_lines

STEP = (1, 7, 7, 28, 28, 0, 0, 0)


def stopping_at(last_step_t: int, until: int, *, poll_s: float = 1.0, **more: Any) -> list[Sample]:
    """A step a second up to a moment, then silence; CPU time stands still with the steps."""
    found = []
    for number in range(int(until / poll_s) + 1):
        at = number * poll_s
        done = int(min(at, last_step_t))
        values = {key: value(at) if callable(value) else value for key, value in more.items()}
        state, phase = values.pop("state", "S"), values.pop("phase", "train")
        members = values.pop("members", (b.rank(words=done, phase=phase, state=state), b.keeper()))
        values = {"cpu_s": float(done), "births": 5, **values}
        found.append(b.sample(at, *members, **values))
    return found


def written(samples: Iterable[Sample], rows: Mapping[float, str] | None = None) -> Iterator[bytes]:
    """The lines of a run; `rows`: what a stack sample has found at a time."""
    writer, look = TraceWriter(origin=0.0, poll_s=0.5), None
    for sample in samples:
        if rows and sample.at in rows:
            patience = Patience(row=rows[sample.at])  # type: ignore[arg-type]
            look = e.Looked(patience=patience, since_mono=sample.at)
        line = writer.line(sample, 1, look)
        if line is not None:
            yield line


def judged(lines: Iterable[bytes], policy: Policy | None = None) -> Replay:
    """With what stack samples of the run have found."""
    policy = policy or Policy()
    looks = RecordedLooks(policy)
    found = Replay(policy, looks.answer)
    for each in lines:
        line = decode_line(each)
        if line is not None:
            looks.hear(line)
            found.judge(sample_of(line))
    return found


def replayed(samples: Iterable[Sample]) -> Replay:
    """Each stack sample finds nothing that is known, at once."""
    found = Replay(Policy(), b.unknown_look)
    for line in written(samples):
        read = decode_line(line)
        assert read is not None
        found.judge(sample_of(read))
    return found


# -- written ------------------------------------------------------------------------------------


def test_a_line_has_the_documented_fields() -> None:
    """Of a judged rank a list, of other processes their number; no name, path or text."""
    writer = TraceWriter(origin=100.0, poll_s=1.0)
    members = (b.rank(words=STEP, state="R"), b.member(11, "worker"), b.keeper())
    look = e.Looked(patience=Patience(row="sleep", look_in_s=9.0), why=None)
    line = writer.line(b.sample(112.0, *members, cpu_s=88.1234, log_bytes=900), 1, look)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "t": 12.0,
        "begins": 1,
        "ranks": [[10, 0, 1, "R", "train", 1, list(STEP), 7, None, 0, 0, 0.0]],
        "others": [["worker", "S", 1], ["keeper", "S", 1]],
        "cpu_s": 88.123,
        "io_bytes": 0,
        "tcp_bytes": 0,
        "log_bytes": 900,
        "births": 3,
        "suspended_s": 0.0,
        "row": "sleep",
        "look_in_s": 9.0,
    }
    again = json.loads(writer.line(b.sample(113.0, *members), 1, look) or b"")
    assert not {"begins", "row"} & set(again), "said once"
    assert json.loads(writer.line(b.sample(113.1, *members), 2) or b"")["begins"] == 2


def test_what_is_written_is_read_back_as_it_was_seen() -> None:
    """All that the detector reads; the clock begins with the run."""
    writer = TraceWriter(origin=1000.0, poll_s=1.0)
    end = RankEnd(pid=12, start=5, rank=1, world_size=2, step=3, phase="eval", at=1002.0, code=1)
    announced = {"expect_until_ns": int(1060e9), "saves_ended": 2, "milestone": 4}
    poll = b.sample(
        1003.0,
        b.rank(words=4, phase="eval", phase_entries=3, world_size=2, total_steps=9, **announced),
        b.rank(11, 1, words=4, state="T"),
        *(b.member(pid, "worker", state="D") for pid in range(20, 24)),
        b.member(30, "launcher"),
        cpu_s=9.5,
        io_bytes=7,
        tcp_bytes=None,
        log_bytes=6,
        deaths=2,
        late_s=31.5,
        suspended_s=12.25,
        cpu_wait_s=1.5,
        asked=True,
        held_back=True,
        ended=(end,),
        gpu=GpuUse(util=100.0, power=0.2),
    )
    line = decode_line(writer.line(poll, 1) or b"")
    assert line is not None
    back = sample_of(line)
    same = "cpu_s io_bytes tcp_bytes log_bytes births deaths late_s suspended_s cpu_wait_s asked"
    for name in (*same.split(), "held_back", "gpu"):
        assert getattr(back, name) == getattr(poll, name), name
    assert back.at == 3.0
    (gone,) = back.ended
    assert (gone.pid, gone.at, gone.code, gone.script) == (12, 2.0, 1, "")
    assert [m.state for m in back.members] == ["S", "T", "D", "D", "D", "D", "S"]
    assert [m.member.role for m in back.members][-2:] == ["worker", "launcher"]
    first = back.judged[0][1]
    assert (first.phase, first.phase_entries, first.world_size) == ("eval", 3, 2)
    assert (first.total_steps, first.saves_ended, first.milestone) == (9, 2, 4)
    assert first.expect_until_ns == 60_000_000_000


def test_quick_looks_and_many_ranks_are_thinned() -> None:
    """A hundred looks a second while a tree is killed are one line a poll."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    polls = [b.sample(at / 100, b.rank(words=at)) for at in range(301)]
    times = [json.loads(each)["t"] for poll in polls if (each := writer.line(poll, 1))]
    assert times == [0.0, 0.9, 1.8, 2.7]
    many = [b.rank(100 + number, number, words=5) for number in range(120)]
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    late = {3: 40.0, 6: 0.5}
    polls = [
        b.sample(float(at), *many, late_s=late.get(at, 0.0), asked=at == 7) for at in range(21)
    ]
    kept = {int(poll.at): json.loads(each) for poll in polls if (each := writer.line(poll, 1))}
    assert list(kept) == list(range(0, 21, LONGEST_STRIDE))
    assert [one.get("late_s", 0.0) for one in kept.values()] == [0.0, 40.0, 0.5, 0.0, 0.0]
    assert [at for at, one in kept.items() if one.get("asked")] == [10]


# -- read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe",
        b'{"ranks":[]}',
        b'{"t":NaN}',
        b'{"t":1,"io_bytes":-4}',
        b'{"t":1,"row":"dancing"}',
        b'{"t":1,"others":[["worker","S",99999999]]}',
        b'{"t":1,"ranks":[[10,0,1,"S","train",1,[1,2],7,null,0,0,0.0]]}',
        b'{"t":1,"ranks":[[10,0,1,"S","dancing",1,[1,7,7,28,28,0,0,0],7,null,0,0,0.0]]}',
        b'{"t":1.0,"ranks":[[10,0,1,"S","tra',
        b'{"t":' + b"[" * 100_000,
    ],
)
def test_what_is_no_line_is_left_out(bad: bytes) -> None:
    assert decode_line(bad) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NUMBER = st.integers(0, 1 << 70) | st.floats(0, allow_nan=False, allow_infinity=False)
RANK = st.tuples(
    st.integers(), st.integers(), st.integers(), st.sampled_from("RSDTZ"),
    st.sampled_from(["train", "eval", "idle"]), st.integers(),
    st.lists(st.integers(0, 1 << 70), min_size=8, max_size=8), st.integers(), st.integers(),
    st.integers(), st.integers(), NUMBER,
)  # fmt: skip
LINE = st.fixed_dictionaries(
    {"t": st.integers() | st.floats(allow_nan=False)},
    optional={
        **dict.fromkeys(("cpu_s", "io_bytes", "tcp_bytes", "log_bytes", "births"), NUMBER | JSON),
        **dict.fromkeys(("late_s", "suspended_s", "gpu", "ended", "others", "row"), JSON),
        "ranks": st.lists(RANK, max_size=3),
    },
)


@settings(max_examples=80, deadline=None)
@given(st.lists(LINE, max_size=6), st.binary(max_size=60))
@example([{"t": 1, "ranks": [[0, 0, 0, "R", "train", 0, [0] * 8, 0, 0, 0, 0, 1e299]]}], b"")
def test_any_line_is_judged_or_left_out(lines: list[dict[str, Any]], junk: bytes) -> None:
    """Nothing that anybody can write makes a replay fail."""
    judged([junk, *(json.dumps(each).encode() for each in lines)])


# -- judged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("poll_s", [0.5, 1.0, 5.0, 10.0])
def test_a_hang_is_called_at_any_poll(poll_s: float) -> None:
    """Steps a second, then nothing: suspected, then a stall as for an unknown wait."""
    found = replayed(stopping_at(100, 300, poll_s=poll_s))
    assert [finding.kind for finding in found.findings] == ["suspect", "stall"]
    assert found.first_stall_t is not None
    assert 75 <= found.first_stall_t - 100 <= 75 + poll_s + 2
    stall = found.findings[-1]
    assert (stall.phase, stall.basis) == ("train", "quiet")


@pytest.mark.parametrize(
    ("row", "within_s"), [("proven", (20, 25)), ("network", (600, 630)), ("input", None)]
)
def test_replay_waits_as_long_as_the_run(row: str, within_s: tuple[int, int] | None) -> None:
    """What the stack samples of the run have found is used, with the limits of the settings."""
    rows = dict.fromkeys((73.0, 84.0, 99.0, 139.0, 219.0, 379.0, 660.0), row)
    stall = judged(written(stopping_at(60, 760), rows)).first_stall_t
    if within_s is None:
        assert stall is None
    else:
        assert stall is not None
        assert within_s[0] <= stall - 60 <= within_s[1]


def test_a_stall_is_said_once_and_again_after_life() -> None:
    """Nothing is killed in a replay: one silence is one stall."""
    lives_again = [
        b.sample(301.0 + n, b.rank(words=101 + min(n, 50)), cpu_s=200.0 + min(n, 50), births=5)
        for n in range(460)  # the silence of 201 s has ended by itself: half as much again
    ]
    found = replayed([*stopping_at(100, 300), *lives_again])
    assert [finding.kind for finding in found.findings] == ["suspect", "stall"] * 2


def test_the_settings_decide() -> None:
    patient = Policy(patience=WaitLimits(unknown_s=120.0))
    rows = dict.fromkeys((113.0, 124.0, 139.0, 169.0, 175.0, 214.0, 220.0), "unknown")
    lines = list(written(stopping_at(100, 300), rows))
    assert (judged(lines).first_stall_t, judged(lines, patient).first_stall_t) == (175, 220)


@pytest.mark.parametrize("name", [*HEALTHY, *SUSPECT])
def test_a_trace_gives_the_verdicts_of_its_samples(name: str) -> None:
    """At each look of a healthy or a silent training."""
    poll, seconds, *_ = {**HEALTHY, **SUSPECT}[name]
    writer = TraceWriter(origin=0.0, poll_s=0.5)
    seen, traced = Replay(Policy(), b.unknown_look), Replay(Policy(), b.unknown_look)
    for at in range(int(min(seconds, 1000)) + 1):
        sample = poll(float(at))
        line = decode_line(writer.line(sample, 1) or b"")
        assert line is not None
        expected, found = seen.judge(sample), traced.judge(sample_of(line))
        assert found == msgspec.structs.replace(expected, why=found.why), at
    assert [one.kind for one in traced.findings] == [one.kind for one in seen.findings]


def test_a_laptop_that_slept_is_no_stall() -> None:
    """Nobody looked meanwhile; what the look after it was late is in its line."""
    late = [3899.0, *[0.0] * 59]
    awake = [
        b.sample(4000.0 + n, b.rank(words=100), cpu_s=100.0, births=5, late_s=late[n])
        for n in range(60)
    ]
    assert replayed([*stopping_at(100, 100), *awake]).first_stall_t is None


def test_a_rank_that_failed_is_named() -> None:
    """The others wait for it: the stall is about the rank that is gone, not about them."""
    end = RankEnd(
        pid=11, start=1011, rank=1, world_size=2, step=99, phase="train", at=100.0, code=1
    )

    def ranks(at: float) -> tuple[Any, ...]:
        words = int(min(at, 100))
        first = b.rank(words=words, world_size=2)
        return (first,) if at >= 100 else (first, b.rank(11, 1, words=words, world_size=2))

    ended = {"ended": lambda at: (end,) if at >= 100 else (), "deaths": lambda at: int(at >= 100)}
    stall = replayed(stopping_at(100, 400, members=ranks, **ended)).findings[-1]
    assert (stall.kind, stall.basis) == ("stall", "rank-gone")
    assert "rank 1" in why_text(stall.why)


def test_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that flaps for ever does not fill the memory."""
    monkeypatch.setattr(replays, "MOST_FINDINGS", 5)
    found = replayed(stopping_at(400, 399, state=lambda t: "T" if t // 20 % 2 else "S"))
    assert [finding.kind for finding in found.findings] == ["stopped"] * 5
    assert found.left_out == 5


# -- on disk ------------------------------------------------------------------------------------


def at_once(work: Callable[[], None]) -> bool:
    work()
    return True


def filled(path: Path, *lines: bytes, cap_bytes: int = 10_000) -> TraceFile:
    file = TraceFile(path, cap_bytes=cap_bytes, beside=at_once)
    for line in lines:
        file.append(line)
    file.close()
    return file


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"{1}\n{tor", b"{1}\n{tor\n")])
def test_the_next_supervisor_continues_behind_a_line_that_is_cut_off(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    """A half line of a dead supervisor costs itself only."""
    path = tmp_path / "trace.jsonl"
    if before:
        path.write_bytes(before)
    file = filled(path, b"{2}\n", b"{3}\n")
    assert path.read_bytes() == after + b"{2}\n{3}\n"
    assert file.trouble is None
    assert before or path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_go_when_the_cap_is_reached(tmp_path: Path) -> None:
    """Two parts, half of the cap each; the newest lines are kept."""
    path = tmp_path / "trace.jsonl"
    lines = [b"%019d\n" % number for number in range(100)]
    filled(path, *lines, cap_bytes=400)
    assert sum(part.stat().st_size for part in (older_part(path), path)) <= 400
    kept = list(trace_lines(path))
    assert len(kept) > 10
    assert kept == lines[-len(kept) :]


def test_a_disk_that_refuses_is_said_and_tried_again(tmp_path: Path) -> None:
    """Lines are lost, nothing else is; the loop never waits for a trace."""
    path = tmp_path / "gone" / "trace.jsonl"
    file = filled(path, b"{1}\n")
    assert file.trouble
    path.parent.mkdir()
    file.append(b"{2}\n")
    file.close()
    assert path.read_bytes() == b"{2}\n"
    late = TraceFile(tmp_path / "t", beside=lambda _: False)
    late.append(b"{1}\n")
    assert late.trouble == "the disk does not answer"


def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "LINE_BYTES", 64)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"{1}\n" + b"x" * 1000 + b"\n{4}\n")
    lines = list(trace_lines(path))
    assert max(map(len, lines)) <= 64
    assert (lines[0], lines[-1]) == (b"{1}\n", b"{4}\n")


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace.jsonl"
    if kind == "directory":
        path.mkdir()
    with pytest.raises(WtrainError) as refused:
        list(trace_lines(path))
    assert refused.value.exit_code == 78
