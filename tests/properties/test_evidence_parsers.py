from __future__ import annotations

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog_train.core.diagnosis.stacks import FRAMES_CAP
from watchdog_train.evidence import from_inside, pyspy
from watchdog_train.evidence.inputs import Texts, read_inputs
from watchdog_train.evidence.logs import clean_line, tail
from watchdog_train.explain.judge import judge

KEYS_OF_PYSPY = "frames name filename line pid os_thread_id module"
KEYS_OF_A_RECORDER = """
    entries pg_status rank 0 rank_1 profiling_name collective_seq_id process_group input_sizes state
    last_enqueued_collective
"""


def json_with(keys):
    """Values of JSON whose objects have these keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(keys.split()), inner, max_size=5)
        ),
        max_leaves=30,
    )


@given(json_with(KEYS_OF_PYSPY))
def test_any_json_is_no_exception(value):
    """Whatever py-spy prints, the answer is threads or None."""
    threads = pyspy.parse(json.dumps(value), 1)
    assert threads is None or all(len(thread.frames) <= FRAMES_CAP for thread in threads)


@given(st.text(max_size=300))
def test_any_text_is_no_exception(text):
    """Every parser of untrusted text is total."""
    pyspy.parse(text, 1)
    from_inside.parse(text)
    clean_line(text)


LINES = """\
Process 12: python a.py
Python v3.10
Thread 1 (idle): "MainThread"
    f (a.py:3)
Traceback (most recent call last):
  File "a.py", line 1, in f
    x = (
E: no
Thread 2 (most recent call first):
  File "a.py", line 3 in f
[rank1]: oops
Fatal Python error: Aborted
  + Exception Group Traceback (most recent call last):
    +---------------- 2 ----------------
2024-01-01 10:00:00 step 3
KeyboardInterrupt
"""
PIECES = st.sampled_from(LINES.split("\n")) | st.text(max_size=30)


def given_text(text, name="x"):
    texts = Texts()
    texts.add(name, text.encode("utf-8", "replace"))
    return texts.together().evidence


@given(st.lists(PIECES, max_size=25), st.text(max_size=30))
def test_any_mixture_of_formats_is_no_exception(lines, name):
    """Torn, mixed and foreign text gives what is whole in it, and a diagnosis."""
    evidence = given_text("\n".join(lines), name)
    found = judge(evidence)
    assert found.because is None or found.because.family


@given(json_with(KEYS_OF_A_RECORDER), st.sampled_from(["rank0.json", "fr.json", "x.txt"]))
def test_any_json_file_is_no_exception(value, name):
    """A Flight Recorder dump, or anything that looks like one."""
    given_text(json.dumps(value), name)


HOSTILE = (
    "#0 " + "(" * 3900,
    "#0 f" + " (" * 1900,
    "    f" + " (a:1" * 700,
    "a(" * 1900 + ")" * 100,
    "Thread 1 (idle): " + '"' * 3900,
    "[" * 3900,
    "(" + "a" * 3900,
    "1/2 [" * 800,
    "rank" * 900,
    "step 1 " * 500,
    "http://" * 500,
    'File "' * 600,
    "Traceback (most recent call last) " * 100,
    "a." * 1900,
    "   |" * 900,
    "Killed " * 500,
    "exit code (" * 300,
)


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_no_line_costs_more_than_its_length(line):
    """Hostile lines are read in linear time, as a dump and as a log."""
    lines = "".join(f"{chr(97 + at)}{line}\n" for at in range(26))
    text = f'Thread 1 (most recent call first):\n{lines}Thread 3 (idle): "M"\n{lines}'
    started = time.process_time()
    judge(given_text(text))
    assert time.process_time() - started < 10


def test_a_night_of_progress_costs_little():
    """Of lines that differ in numbers alone, the first and last say all; an error stays."""
    lines = [f"step {at} loss {at / 7:.4f} lr 1e-4 tokens {at * 4096}" for at in range(50_000)]
    lines.insert(20_000, "RuntimeError: DataLoader worker (pid 8) is killed by signal: Bus error.")
    started = time.process_time()
    evidence = given_text("\n".join(lines))
    found = judge(evidence)
    assert time.process_time() - started < 15
    assert len(evidence.logs[0].lines) < 1000
    assert any("Bus error" in line for line in evidence.logs[0].lines)
    assert found.family != "shm-exhausted"  # training went on for hours after it


def test_a_huge_log_is_read_at_its_ends(tmp_path):
    """A sparse file of 1 GiB costs its head and its tail."""
    path = tmp_path / "rank0.log"
    with path.open("wb") as file:
        file.write(b"first line\n" + b"x" * 5000 + b"\n")
        file.seek(1 << 30)
        file.write(b"\nlast line\n")
    started = time.monotonic()
    lines = read_inputs([str(path)]).evidence.logs[0].lines
    assert (lines[0], lines[-1]) == ("first line", "last line")
    assert time.monotonic() - started < 5


THREAD = "Thread 0x00007f1 (most recent call first):\n"


FRAME = '  File "a.py", line 3 in f\n'


@given(st.lists(st.sampled_from([THREAD, FRAME, "junk\n", "  ...\n"])))
def test_any_order_of_faulthandler_lines_is_no_exception(lines):
    """A torn or mixed dump gives what is whole in it: frames also where their head is cut off."""
    threads = from_inside.parse("".join(lines))
    assert (threads is None) == (THREAD not in lines and FRAME not in lines)


def test_a_log_that_is_no_file_is_not_read(tmp_path):
    """A fifo or a folder in place of a log does not hold the collector."""
    os.mkfifo(tmp_path / "fifo")
    assert tail(str(tmp_path / "fifo"), 10) is None
    assert tail(str(tmp_path), 10) is None
