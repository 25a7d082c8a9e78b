from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog_train.core.stacks import FRAMES_CAP
from watchdog_train.errors import WtrainError
from watchdog_train.evidence import fault_handler, pyspy
from watchdog_train.evidence.logs import clean_line, tail
from watchdog_train.evidence.redact import redact_text
from watchdog_train.rules import load_rules

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["frames", "name", "filename", "line", "pid", "os_thread_id", "module"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_no_exception(value):
    """Whatever py-spy prints, the answer is threads or None."""
    threads = pyspy.parse(json.dumps(value), 1)
    assert threads is None or all(len(thread.frames) <= FRAMES_CAP for thread in threads)


@given(st.text(max_size=300))
def test_any_text_is_no_exception(text):
    """Every parser of untrusted text is total."""
    pyspy.parse(text, 1)
    fault_handler.parse(text)
    clean_line(text)


THREAD = "Thread 0x00007f1 (most recent call first):\n"


@given(st.lists(st.sampled_from([THREAD, '  File "a.py", line 3 in f\n', "junk\n", "  ...\n"])))
def test_any_order_of_faulthandler_lines_is_no_exception(lines):
    """A torn or mixed dump gives what is whole in it."""
    threads = fault_handler.parse("".join(lines))
    assert (threads is None) == (THREAD not in lines)


def test_a_faulthandler_dump_is_read():
    """Threads, names, frames; the last one is the main thread."""
    text = (
        "Thread 0x00007f10 [pulse] (most recent call first):\n"
        '  File "/a/threading.py", line 320 in wait\n\n'
        "Current thread 0x00007f20 (most recent call first):\n"
        '  File "/home/u/train.py", line 31 in __getitem__\n'
    )
    threads = fault_handler.parse(text)
    assert [thread.main for thread in threads] == [False, True]
    assert threads[0].name == "pulse"
    assert str(threads[1].frames[0]) == "__getitem__ (train.py:31)"


@pytest.mark.parametrize("text", ["a://" * 50_000, "key=" * 50_000, "\x1b[" * 100_000])
def test_redaction_is_linear(text):
    """Hostile lines cost no more than their length."""
    started = time.monotonic()
    redact_text(text[:200_000])
    assert time.monotonic() - started < 2


@settings(max_examples=50)
@given(st.text(alphabet=" -:[]{}&*\nabfamily'\"|>#", max_size=200))
def test_a_rule_file_is_read_or_refused(text):
    """Any text is a set of rules or an error that names its problems."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.yaml").write_text(text)
        with contextlib.suppress(WtrainError):
            assert load_rules([folder]).families


def test_a_log_that_is_no_file_is_not_read(tmp_path):
    """A fifo or a folder in place of a log does not hold the collector."""
    os.mkfifo(tmp_path / "fifo")
    assert tail(str(tmp_path / "fifo"), 10) is None
    assert tail(str(tmp_path), 10) is None
