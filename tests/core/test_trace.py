"""A trace written, read back from anybody, and judged again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import builders as b
from watchdog_train.core import events as e
from watchdog_train.core.model import Patience, said
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.core.policy import Policy, WaitLimits
from watchdog_train.core.traces import replaying
from watchdog_train.core.traces.replaying import Replay
from watchdog_train.core.traces.trace import LONGEST_STRIDE, TraceWriter, header_line
from watchdog_train.core.traces.trace_reading import TraceReader, TraceSample
from watchdog_train.errors import WtrainError
from watchdog_train.explain.recorded_looks import RecordedLooks
from watchdog_train.report.why_text import why_text
from watchdog_train.store import trace_file
from watchdog_train.store.trace_file import TraceFile, older_part, trace_lines

HEADER = {"v": 1, "kind": "trace", "poll_s": 1.0}


def line(t: float, step: int | None = 0, phase: str | None = "train", **more: Any) -> bytes:
    """A sample in the documented form, quiet unless told."""
    sample = {
        "t": t,
        "ranks": {"0": {"step": step, "phase": phase, "beats": (step or 0) * 4}},
        "cpu_s": 50.0,
        "io_bytes": 123,
        "tcp_bytes": 0,
        "processes": 5,
        "log_bytes": 900,
        "gpu_util": None,
        "states": {"S": 5},
        **more,
    }
    return json.dumps(sample).encode()


def read(*lines: bytes, torn: bool = False) -> tuple[list[TraceSample], TraceReader]:
    reader = TraceReader()
    last = len(lines) - 1
    found = [reader.read(each, torn=torn and n == last) for n, each in enumerate(lines)]
    return [each for each in found if each is not None], reader


def replay(lines: Iterable[bytes], policy: Policy | None = None) -> Replay:
    reader = TraceReader()
    looks = RecordedLooks(policy or Policy(), reader)
    judged = Replay(policy or Policy(), looks.answer)
    for each in lines:
        found = reader.read(each)
        if found is not None:
            looks.hear(found)
            if found.new_attempt:
                judged.begin_attempt()
            judged.judge(found.sample)
    return judged


def stopping_at(last_step_t: int, until: int, *, poll_s: float = 1.0, **more: Any) -> list[bytes]:
    """A step a second up to a moment, then silence; CPU time stands still with the steps."""
    lines = [json.dumps({**HEADER, "poll_s": poll_s}).encode()]
    for number in range(int(until / poll_s) + 1):
        t = number * poll_s
        done = int(min(t, last_step_t))
        values = {key: value(t) if callable(value) else value for key, value in more.items()}
        lines.append(line(t, done, **{"cpu_s": float(done), **values}))
    return lines


# -- written ------------------------------------------------------------------------------------


def test_a_line_has_the_documented_keys_in_their_order() -> None:
    """The format is a contract: others write and read it, too."""
    assert header_line(1.0) == b'{"v":1,"kind":"trace","poll_s":1.0,"waits":true}\n'
    writer = TraceWriter(origin=100.0, poll_s=1.0)
    words = (1, 7, 8, 7, 8, 0, 0, 0)
    poll = b.sample(
        112.0,
        b.rank(words=words, state="R"),
        b.member(11, "worker"),
        b.keeper(),
        cpu_s=88.1234,
        io_bytes=123,
        log_bytes=900,
    )
    written = writer.line(poll, 1)
    assert written.endswith(b"}\n")
    assert json.loads(written) == {
        "t": 12.0,
        "ranks": {"0": {"step": 7, "phase": "train", "beats": 31}},
        "cpu_s": 88.123,
        "io_bytes": 123,
        "tcp_bytes": 0,
        "processes": 2,
        "log_bytes": 900,
        "gpu_util": None,
        "states": {"R": 1, "S": 1},
    }
    assert list(json.loads(written))[:3] == ["t", "ranks", "cpu_s"]


def test_a_starved_training_is_no_stall_in_its_trace_either() -> None:
    """`cpu_wait_s` goes through: written where it was asked for, absent is unknown."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    lines = [
        writer.line(
            b.sample(
                float(at),
                b.rank(words=min(at, 60)),
                cpu_s=0.01 * at,
                cpu_wait_s=0.6 * max(0, at - 64),
            ),
            1,
        )
        for at in range(400)
    ]
    written = [each for each in lines if each is not None]
    assert json.loads(written[100])["cpu_wait_s"] == 21.6
    starved = replay([header_line(1.0), *written])
    assert [(each.kind, each.basis) for each in starved.findings] == [("suspect", "hard-budget")]
    assert starved.first_stall_t is None
    kept = [json.loads(each) for each in written]
    without = [json.dumps({k: v for k, v in one.items() if k != "cpu_wait_s"}) for one in kept]
    hung = replay([header_line(1.0), *(each.encode() for each in without)])
    assert hung.first_stall_t is not None


def test_quick_looks_and_many_ranks_are_thinned() -> None:
    """A hundred looks a second while a tree is brought down are one sample a poll."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    polls = [b.sample(at / 100, b.rank(words=at)) for at in range(301)]
    times = [json.loads(each)["t"] for poll in polls if (each := writer.line(poll, 1))]
    assert times == [0.0, 0.9, 1.8, 2.7]
    many = [b.rank(100 + number, number, words=5) for number in range(120)]
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    kept = [at for at in range(21) if writer.line(b.sample(float(at), *many), 1)]
    assert kept == list(range(0, 21, LONGEST_STRIDE))


def test_each_look_is_written_once() -> None:
    """With the row and the kind of wait, and nothing of the program."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    root = x.Standstill(who=x.Who(pid=1), doing=w.SleepWait(left_s=9.0))
    look = e.Looked(
        patience=Patience(row="sleep", look_in_s=9.0, root=root),
        why=said(""),
    )
    lines = [writer.line(b.sample(float(at), b.rank()), 1, look) for at in range(2)]
    first, second = (json.loads(each or b"") for each in lines)
    assert first["wait"] == {"row": "sleep", "on": "sleep", "look_in_s": 9.0}
    assert "wait" not in second


@pytest.mark.parametrize(
    ("row", "within_s"), [("proven", (20, 25)), ("network", (600, 630)), ("input", None)]
)
def test_replay_waits_as_long_as_the_run(row: str, within_s: tuple[int, int] | None) -> None:
    """What the looks of the run have found is used; limits are those of the settings."""
    lines = stopping_at(60, 760)
    lines[0] = header_line(1.0)
    for at in (74, 85, 100, 140, 220, 380, 661):
        lines[1 + at] = lines[1 + at][:-1] + b',"wait":{"row":"%s","on":"tcp"}}' % row.encode()
    stall = replay(lines).first_stall_t
    if within_s is None:
        assert stall is None
    else:
        assert within_s[0] <= stall - 60 <= within_s[1]


def test_two_processes_of_one_rank_stay_two() -> None:
    """Tasks of a service have no rank; each keeps its number while others come and go."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    tasks = [b.member(pid, slot=b.slot(pid, words=pid)) for pid in (20, 21, 22)]
    first = json.loads(writer.line(b.sample(0.0, *tasks), 1) or b"")
    second = json.loads(writer.line(b.sample(1.0, *tasks[1:]), 2 - 1) or b"")
    assert set(first["ranks"]) == {"0", "1", "2"}
    assert second["ranks"] == {key: first["ranks"][key] for key in ("1", "2")}


def test_a_new_attempt_is_said() -> None:
    """Counters begin anew with it."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    assert "attempt" not in json.loads(writer.line(b.sample(0.0, b.rank()), 1) or b"")
    assert json.loads(writer.line(b.sample(0.1, b.rank()), 2) or b"")["attempt"] == 2


def test_what_is_written_is_read_back_as_it_was_seen() -> None:
    """Progress, phase, activity and states survive the way through the file."""
    writer = TraceWriter(origin=0.0, poll_s=1.0)
    poll = b.sample(
        3.0,
        b.rank(words=4, phase="eval"),
        b.rank(11, 1, words=4, phase="checkpoint"),
        b.member(12, "worker", state="D"),
        cpu_s=9.5,
        io_bytes=7,
        tcp_bytes=8,
        log_bytes=6,
    )
    (found,), _ = read(header_line(1.0), writer.line(poll, 1) or b"")
    back = found.sample
    assert (back.at, back.cpu_s, back.io_bytes, back.tcp_bytes) == (3.0, 9.5, 7, 8)
    assert back.log_bytes == 6
    slots = [member.slot for member in back.members if member.slot is not None]
    assert [(slot.rank, slot.step, slot.phase) for slot in slots] == [
        (0, 4, "eval"),
        (1, 4, "checkpoint"),
    ]
    assert {slot.world_size for slot in slots} == {2}
    assert {member.state for member in back.members} >= {"D", "S"}


# -- read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"{", "not a sample"),
        (b"[1, 2]", "not a sample"),
        (b"\xff\xfe", "not a sample"),
        (b'{"ranks":{}}', "without a time"),
        (b'{"t":NaN,"ranks":{}}', "not a sample"),
        (line(1.0, ranks={"0": {"step": "7"}}), "not a sample"),
        (line(1.0, 3, "dancing"), "a phase that is not known"),
        (line(1.0, states={"Q": 3}), "a process state that is not known"),
        (b'{"v":2,"kind":"trace","poll_s":1.0}', "version 2"),
        (b'{"v":1,"kind":"events"}', "kind 'events'"),
        (b'{"v":1,"kind":"trace"}', "poll_s"),
        (b'{"v":1,"kind":"trace","poll_s":0}', "poll_s"),
    ],
)
def test_bad_lines_are_named_and_cost_nothing_else(bad: bytes, said: str) -> None:
    """Line, reason and count; the samples around are read."""
    samples, reader = read(json.dumps(HEADER).encode(), line(0.0), bad, bad, line(5.0))
    assert samples[0].sample.at == 0.0
    assert samples[-1].sample.at == 5.0
    problem = next(text for text in reader.problems if said in text)
    assert problem.startswith("line 3: ")


def test_a_repeated_problem_is_counted() -> None:
    """Ten million bad lines are one message."""
    _, reader = read(*[b"?"] * 1000)
    assert reader.problems == ("line 1: not a sample; left out (and 999 more)",)


def test_a_torn_end_is_no_damage() -> None:
    """The supervisor was killed while it wrote."""
    samples, reader = read(line(0.0), line(1.0)[:40], torn=True)
    assert len(samples) == 1
    assert reader.problems == ("line 2: the last line is cut off; it is left out",)


def test_a_line_that_could_not_be_read_is_named() -> None:
    """Longer than any sample, or the end of a damaged packed file: the rest is read."""
    reader = TraceReader()
    reader.read(line(1.0))
    assert reader.read(b"", torn=True) is None
    assert reader.read(line(2.0)) is not None
    assert reader.problems == ("line 2: longer than any sample; left out",)


def test_values_that_are_odd_are_unknown_and_the_rest_is_kept() -> None:
    """A negative count costs itself."""
    odd = line(1.0, ranks={"0": {"step": None, "beats": 5}}, io_bytes=-4, cpu_s=None)
    (found,), _ = read(odd)
    slot = found.sample.members[0].slot
    assert (slot.step, slot.phase, slot.progress[0]) == (None, "unknown", 5)
    assert (found.sample.cpu_s, found.sample.io_bytes) == (None, None)


def test_no_beats_and_more_keys_are_fine() -> None:
    """Steps alone are progress; what is not known is ignored."""
    plain = b'{"t":1,"ranks":{"0":{"step":3,"lr":0.1}},"host":"a","cpu_s":1}'
    (found,), reader = read(plain)
    slot = found.sample.members[0].slot
    assert (slot.step, slot.phase) == (3, "train")  # it takes steps
    assert reader.problems == ()


def test_a_value_that_is_missing_once_is_no_progress() -> None:
    """What was known before still holds."""
    first, second = line(0.0, 5), line(1.0, ranks={"0": {"step": 5, "phase": "train"}})
    samples, _ = read(first, second)
    words = [each.sample.members[0].slot.progress for each in samples]
    assert words[0] == words[1]


def test_time_that_goes_back_once_is_left_out() -> None:
    """A line out of order."""
    samples, reader = read(*(line(t) for t in (0.0, 1.0, 0.5, 1.0, 2.0)))
    assert [each.sample.at for each in samples] == [0.0, 1.0, 2.0]
    assert any("time does not go on" in text for text in reader.problems)


def test_a_clock_that_was_set_back_goes_on() -> None:
    """Samples that follow one another from an earlier time are taken to follow."""
    samples, reader = read(*(line(float(t)) for t in (100, 101, 102, 5, 6, 7, 8)))
    assert [each.sample.at for each in samples] == [100, 101, 102, 103, 104]
    assert any("set back" in text for text in reader.problems)


@pytest.mark.parametrize("poll_s", [0.5, 1.0, 5.0, 10.0])
def test_a_gap_is_told_from_the_poll(poll_s: float) -> None:
    """Whoever slept did not see silence."""
    times = [poll_s * number for number in range(5)]
    times += [times[-1] + 600, times[-1] + 600 + poll_s]
    header = json.dumps({**HEADER, "poll_s": poll_s}).encode()
    samples, reader = read(header, *(line(t) for t in times))
    late = [each.sample.late_s for each in samples]
    assert late == [0.0] * 5 + [600 - poll_s, 0.0]
    assert any("gap" in text for text in reader.problems)


def test_a_thinned_trace_is_no_row_of_gaps() -> None:
    """A header says one second, the samples come every ten: ten it is, soon."""
    samples, _ = read(json.dumps(HEADER).encode(), *(line(10.0 * n) for n in range(20)))
    assert [each.sample.late_s for each in samples[8:]] == [0.0] * 12


@pytest.mark.parametrize(
    ("after", "new"),
    [
        ({"cpu_s": 1.0, "log_bytes": 901}, False),  # workers ended: a sum over the living
        ({"cpu_s": 90.0, "log_bytes": 0}, False),  # a log that was turned over
        ({"attempt": 2}, True),
    ],
)
def test_a_new_attempt_is_noticed(after: dict[str, Any], new: bool) -> None:
    """By its number."""
    samples, _ = read(line(0.0, cpu_s=100.0), line(1.0, cpu_s=100.0), line(2.0, **after))
    assert samples[-1].new_attempt is new


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([line(float(t)) for t in range(4)])))
def test_any_bytes_are_read(lines: list[bytes]) -> None:
    """Nothing anybody can write makes the reader fail, and its words stay few."""
    samples, reader = read(*lines)
    assert len(samples) == reader.samples
    assert len(reader.problems) <= 32


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = ("t", "ranks", "cpu_s", "io_bytes", "processes", "states", "attempt", "v", "kind", "poll_s")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)), max_size=6))
def test_any_values_are_judged(samples: list[dict[str, Any]]) -> None:
    """A line of the right keys with any values is judged or left out, never a failure."""
    replay(json.dumps(each).encode() for each in samples)


# -- judged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("poll_s", [0.5, 1.0, 5.0, 10.0])
def test_a_hang_is_called_at_any_poll(poll_s: float) -> None:
    """Steps a second, then nothing: suspected, then a stall as for an unknown wait."""
    judged = replay(stopping_at(100, 300, poll_s=poll_s))
    assert [found.kind for found in judged.findings] == ["suspect", "stall"]
    assert 75 <= judged.first_stall_t - 100 <= 75 + poll_s + 2
    stall = judged.findings[-1]
    assert (stall.phase, stall.basis) == ("train", "quiet")


def test_a_stall_is_said_once_and_again_after_life() -> None:
    """Nothing is ended in a replay: one silence is one stall."""
    lines = stopping_at(100, 300)
    # The silence of 201 s has ended by itself: half as much again is needed now.
    lines += [line(301.0 + n, 101 + min(n, 50), cpu_s=200.0 + min(n, 50)) for n in range(460)]
    judged = replay(lines)
    assert [found.kind for found in judged.findings] == ["suspect", "stall"] * 2


def test_the_settings_decide() -> None:
    """Tuning last night's run is what it is for."""
    patient = Policy(patience=WaitLimits(unknown_s=120.0))
    early = replay(stopping_at(100, 300)).first_stall_t
    late = replay(stopping_at(100, 300), patient).first_stall_t
    assert late == early + 45


HEALTHY: dict[str, list[bytes]] = {
    "steps": stopping_at(600, 600),
    "an evaluation at work": [
        *stopping_at(100, 100),
        *(line(101.0 + n, 100, "eval", cpu_s=100.0 + n) for n in range(2400)),
    ],
    "a laptop that slept": [
        *stopping_at(100, 100),
        *(line(4000.0 + n, 100 + n, cpu_s=100.0 + n) for n in range(60)),
    ],
    "a save in D state": [
        *stopping_at(100, 100),
        *(line(101.0 + n, 100, "checkpoint", states={"D": 1, "S": 4}) for n in range(600)),
    ],
    "a download that trickles": [
        line(float(n), None, "download", tcp_bytes=10_000 * n) for n in range(1200)
    ],
    "everybody gone": [
        *stopping_at(100, 100),
        *(line(101.0 + n, 100, processes=0) for n in range(99)),
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_traces_are_left_alone(name: str) -> None:
    """No stall where there was none."""
    assert replay(HEALTHY[name]).first_stall_t is None


def test_a_rank_that_vanishes_is_named() -> None:
    """The others wait for it: the stall is about the rank that is gone, not about them."""

    def ranks(t: float) -> dict[str, Any]:
        both = {str(n): {"step": int(min(t, 100)), "phase": "train"} for n in (0, 1)}
        return {"0": both["0"]} if t > 100 else both

    judged = replay(stopping_at(100, 400, ranks=ranks, processes=lambda t: 5 - (t > 100)))
    stall = judged.findings[-1]
    assert (stall.kind, stall.basis) == ("stall", "rank-gone")
    assert "rank 1" in why_text(stall.why)


def test_stopped_has_its_own_word() -> None:
    """A debugger or SIGSTOP is no stall."""
    judged = replay(stopping_at(50, 200, states=lambda t: {"T": 1, "S": 4} if t > 60 else {"S": 5}))
    assert {found.kind for found in judged.findings} == {"stopped", "suspect"}


def test_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that flaps for ever does not fill the memory."""
    monkeypatch.setattr(replaying, "MOST_FINDINGS", 5)
    flapping = ({"T": 1, "S": 4} if n // 20 % 2 else {"S": 5} for n in range(400))
    judged = replay(line(float(n), n, states=states) for n, states in enumerate(flapping))
    assert [found.kind for found in judged.findings] == ["stopped"] * 5
    assert judged.left_out == 5


TRACE_HEADER = header_line(1.0)


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
    assert path.read_bytes() == TRACE_HEADER + b"{1}\n{2}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert file.trouble is None


def test_the_next_supervisor_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    """A half line of a dead supervisor costs itself only."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(TRACE_HEADER + b"{1}\n{tor")
    written(path, b"{2}\n")
    assert path.read_bytes() == TRACE_HEADER + b"{1}\n{tor\n{2}\n"


def test_the_oldest_go_when_the_cap_is_reached(tmp_path: Path) -> None:
    """Two parts, half of the cap each, each with its header; the newest samples are kept."""
    path = tmp_path / "trace.jsonl"
    lines = [b"%019d\n" % number for number in range(100)]
    written(path, *lines, cap_bytes=400)
    sizes = [part.stat().st_size for part in (older_part(path), path)]
    assert sum(sizes) <= 400
    kept = [line + b"\n" for line, torn in trace_lines(path) if not torn]
    assert kept.count(TRACE_HEADER) == 2
    samples = [line for line in kept if line != TRACE_HEADER]
    assert samples == lines[-len(samples) :]


def test_a_disk_that_refuses_is_said_and_tried_again(tmp_path: Path) -> None:
    """Samples are lost, nothing else is."""
    path = tmp_path / "gone" / "trace.jsonl"
    file = written(path, b"{1}\n")
    assert file.trouble
    path.parent.mkdir()
    file.append(b"{2}\n")
    file.close()
    assert path.read_bytes() == TRACE_HEADER + b"{2}\n"


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
