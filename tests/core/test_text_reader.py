"""Dumps of py-spy and faulthandler, and logs: every format becomes the same stacks."""

# ruff: noqa: E501 - lines of dumps are as long as they are
from __future__ import annotations

import json

import pytest

from watchdog_train.core.diagnosis.log_lines import advances, progress_of, read_line
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.text.gather import gather
from watchdog_train.evidence.text.reader import read_text
from watchdog_train.evidence.text.roles import who_by_name
from watchdog_train.evidence.text.sources import Source
from watchdog_train.explain import waits

PY_SPY = """\
Process 812: python -u train.py --lr 1e-4
Python v3.10.12 (/opt/conda/bin/python3.10)

Thread 0x7F1C2A (active+gil): "MainThread"
    wait (threading.py:320)
        Arguments:
            self: <Condition at 0x7f1c>
    get (queue.py:171)
    _try_get_data (torch/utils/data/dataloader.py:1011)
    <module> (train.py:90)
Thread 0x7F1C2B (idle): "QueueFeederThread"
    wait (threading.py:320)
    _feed (multiprocessing/queues.py:231)
"""
NATIVE = """\
Thread 77 (idle): "MainThread"
    __lll_lock_wait (libpthread-2.31.so)
    void at::native::resize<float>(int, at::Tensor const&) (libtorch_cpu.so)
    fetch (torch/utils/data/_utils/fetch.py:44)
    <module> (C:\\\\work\\\\train.py:3)
"""
FAULT = """\
Timeout (0:05:00)!
Thread 0x00007f2a (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run

Current thread 0x00007f2b [python3] (most recent call first):
  File "/home/u/train.py", line 31 in step
  File "/home/u/train.py", line 60 in <module>
"""


def innermost(text):
    dumps = read_text(text).dumps
    assert len(dumps) == 1, dumps
    main = next(thread for thread in dumps[0].threads if thread.main)
    return [frame.name for frame in main.frames]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (PY_SPY, ["wait", "get", "_try_get_data", "<module>"]),
        (
            NATIVE,
            ["__lll_lock_wait", "void at::native::resize<float>", "fetch", "<module>"],
        ),
        (FAULT, ["step", "<module>"]),
    ],
    ids=["py-spy", "native", "faulthandler"],
)
def test_every_format_gives_the_main_threads_frames(text, names):
    """Innermost first, locals and source lines left out, arguments cut from native names."""
    assert innermost(text) == names


TRACEBACKS = {
    "rich": """\
056444Z ╭───────────────────── Traceback (most recent call last) ──────────────────────╮
058181Z │ /opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py:11 │
058182Z │ 33 in _try_get_data                                                       │
058183Z │ ❱ 1133 │   data = self._data_queue.get(timeout=timeout)                   │
058184Z │ /opt/conda/lib/python3.10/multiprocessing/connection.py:257 in poll       │
058185Z ╰──────────────────────────────────────────────────────────────────────────────╯
KeyboardInterrupt
""",
    "without a head": """\
 10%|#         | 40/400 [01:00<09:00]
  File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1133, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/opt/conda/lib/python3.10/multiprocessing/connection.py", line 257, in poll
    return self._poll(timeout)
KeyboardInterrupt
""",
}


@pytest.mark.parametrize("how", TRACEBACKS)
def test_a_traceback_is_read_however_it_was_printed(how):
    (raised,) = read_text(TRACEBACKS[how]).raised
    assert raised.interrupted
    assert [frame.name for frame in raised.frames[:2]] == ["poll", "_try_get_data"]
    assert raised.frames[1].line == 1133
    assert raised.frames[1].short == "torch/utils/data/dataloader.py"


def test_a_dump_says_whose_it_is():
    """Process, version, threads and who holds the interpreter lock."""
    dump = read_text(PY_SPY).dumps[0]
    assert (dump.pid, dump.command) == (812, "python -u train.py --lr 1e-4")
    assert [thread.owns_gil for thread in dump.threads] == [True, False]
    assert dump.threads[1].name == "QueueFeederThread"


def test_a_dump_between_log_lines_leaves_the_log():
    """What is no dump stays a line of the log, a look-alike head included."""
    reading = read_text("Process 3: loading\nstep 1 loss 2\n" + PY_SPY + "\nstep 2 loss 1\n")
    assert reading.log == ("Process 3: loading", "step 1 loss 2", "step 2 loss 1")
    assert len(reading.dumps) == 1


def test_ranks_that_print_into_one_stream_are_told_apart():
    """Tracebacks of two ranks, line by line in turns, with the launcher's prefixes."""
    first = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: one"]
    second = ["Traceback (most recent call last):", '  File "b.py", line 2, in g', "KeyError: 'x'"]
    lines = [
        line
        for one, two in zip(first, second, strict=True)
        for line in (f"[rank0]: {one}", f"[rank1]: {two}")
    ]
    raised = read_text("\n".join(lines)).raised
    assert [(r.rank, r.type, r.frames[0].name) for r in raised] == [
        (0, "ValueError", "f"),
        (1, "KeyError", "g"),
    ]


def test_threads_behind_a_prefix_are_one_process():
    """The launcher's prefix stands before the empty line between them, too."""
    text = "".join(
        f'[rank3]:Thread 0x7f{at} (most recent call first):\n[rank3]:  File "a.py", line 1 in f\n[rank3]:\n'
        for at in (1, 2)
    )
    assert [(dump.rank, len(dump.threads)) for dump in read_text(text).dumps] == [(3, 2)]


def test_processes_are_told_apart_and_put_together():
    """Two containers have a pid 1 each; a dump without a pid shows the one process there is."""
    dump = 'Process 1: python train.py\nThread 1 (active): "MainThread"\n    f (a.py:1)\n'

    def read(**texts):
        return gather([Source(name=name, text=text) for name, text in texts.items()]).processes

    one, two = read(rank0=dump, rank1=dump)
    assert one.identity != two.identity
    (both,) = read(
        py=dump, fault='Thread 0x7f (most recent call first):\n  File "b.py", line 2 in g\n'
    )
    assert [frame.name for thread in both.threads for frame in thread.frames] == ["f", "g"]


def test_an_interrupt_is_no_error():
    """Ctrl-C shows where the process was."""
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyboardInterrupt\n'
    assert read_text(text).raised[0].interrupted


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank0.pid12.txt", ("rank", 0, None, 12)),
        ("worker1.pid13.txt", ("worker", None, 1, 13)),
        ("rank0-worker1.pid13.txt", ("worker", 0, 1, 13)),
        ("launcher.pid9.txt", ("launcher", None, None, 9)),
        ("case/rank_12/py-spy-881.txt", ("rank", 12, None, 881)),
        ("rank3.log", ("rank", 3, None, None)),
        ("logs/none_0/attempt_0/2/stderr.log", ("rank", 2, None, None)),
        ("log.txt", (None, None, None, None)),
        ("rank1-other.pid7.txt", ("other", 1, None, 7)),
        ("compile_worker0.pid7.txt", ("other", None, None, 7)),
        ("compile_worker.pid7.txt", ("other", None, None, 7)),
        ("wandb-service.pid7.txt", ("other", None, None, 7)),
        ("rank2/worker_3.txt", ("worker", 2, 3, None)),
        ("torchrun/dump.txt", ("launcher", None, None, None)),
        ("dataloader-worker-died/dump.txt", (None, None, None, None)),
        ("dataloader-worker-stuck.txt", (None, None, None, None)),
        ("datasets-map-num-proc.txt", (None, None, None, None)),
        ("accelerate-hangs-at-nccl.txt", (None, None, None, None)),
        ("rank0-only-work.log", (None, None, None, None)),
        ("pyspy-subprocesses.txt", (None, None, None, None)),
    ],
)
def test_a_file_name_tells_the_role(name, expected):
    """As our own bundles name their files, and as others do."""
    who = who_by_name(name)
    assert (who.role, who.rank, who.worker, who.pid) == expected


@pytest.mark.parametrize(
    ("raw", "rank", "clock", "text"),
    [
        ("[rank3]: ValueError: no", 3, None, "ValueError: no"),
        ("[default1]:[2024-05-01 10:00:02,120] INFO x", 1, "date", "INFO x"),
        ("7: E0501 10:00:02.120 812 nccl.cpp:12] timed out", 7, "date", "timed out"),
        ("[1,4]<stderr>:oops", 4, None, "oops"),
        ("(Trainer pid=92, ip=10.0.0.1) hello", None, None, "hello"),
        ("[  812.123456] NVRM: Xid", None, None, "NVRM: Xid"),
        ("May  1 10:00:02 node kernel: x", None, "date", "node kernel: x"),
        ("plain 3: text", None, None, "plain 3: text"),
    ],
)
def test_prefixes_come_off_a_line(raw, rank, clock, text):
    """Launchers, clusters and loggers write in front of what matters."""
    line = read_line(raw)
    assert (line.rank, line.clock, line.text) == (rank, clock, text)


@pytest.mark.parametrize(
    ("text", "progress"),
    [
        (" 12%|#2  | 120/1000 [00:10<01:00, 12it/s]", 120.0),
        ("{'loss': 0.51, 'epoch': 0.2}", 0.51),
        ("global_step=1,200 lr 1e-4", 1200.0),
        ("Epoch: [3][40/900] Time 0.1", 40.0),
        ("model.bin:  37%|###7 | 1.85G/4.97G [03:10<05:21, 9.72MB/s]", 1.85e9),
        ("rebuilding: 0%| | 0.00B / 51.6GB [00:05<?, ?B/s]", 0.0),
        ("loading 3 files", None),
        ("slurmstepd: error: *** STEP 77.0 ON gpu14 CANCELLED AT 2026-11-21T02:00:00 ***", None),
        ("Traceback (most recent call last):", None),
    ],
)
def test_lines_of_progress_are_recognised(text, progress):
    """Bars, trainers and hand-written loops."""
    found = progress_of(text)
    assert (found[1] if found else None) == progress


def test_a_counter_that_stands_still_does_not_advance():
    """Only a higher number than ever before is progress; a bar's start at 0 is not."""
    bars = ["0/9 [00:00<?, ?it/s]", "1/9 [00:01<00:08]", "1/9 [00:20<02:08]", "2/9 [00:21<01:08]"]
    assert [at for at, _ in advances([read_line(bar) for bar in bars])] == [1, 3]


def test_frames_of_the_fault_handler_are_read_without_their_head():
    """Logs lose the line above and the indentation; a traceback's comma tells its frames apart."""
    text = (
        "Timeout (0:02:00)!\n"
        'File "/v/torch/utils/file_baton.py", line 50 in wait\n'
        'File "/v/torch/utils/cpp_extension.py", line 2156 in _jit_compile\n'
    )
    assert innermost(text) == ["wait", "_jit_compile"]
    assert not read_text('  File "/a/train.py", line 3, in <module>\n').dumps


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"path": '"/out/rank0.done"', "n": "3"}, ("path", "/out/rank0.done")),
        ({"name": '"rank0.done"', "model": "<Linear at 0x7f>"}, ("name", "rank0.done")),
        ({"one": '"/a/b"', "other": '"/c/d"'}, None),
        ({"path": '"/out/a very long na...'}, None),
        ({}, None),
    ],
)
def test_the_path_that_a_sleeping_function_holds(variables, expected):
    """By py-spy's variables of the innermost own frame; nothing where it is not the only one."""
    held = [{"name": name, "repr": text} for name, text in variables.items()]
    frames = [
        {"filename": "/usr/lib/python3.12/threading.py", "locals": [{"name": "x", "repr": '"/x"'}]},
        {"filename": "/home/u/train.py", "locals": held},
        {"filename": "/home/u/main.py", "locals": [{"name": "y", "repr": '"/y"'}]},
    ]
    text = json.dumps([{"os_thread_id": 7, "frames": frames}])
    assert pyspy.path_variable(text, 5, 7) == expected
    assert pyspy.path_variable(text, 5, 8) is None
    assert pyspy.path_variable("{", 5, 7) is None


@pytest.mark.parametrize(
    "innermost", ["main_loop (ray/worker.py:431)", "select (selectors.py:468)"]
)
def test_the_thread_with_the_training_decides_where_the_main_one_takes_orders(innermost):
    text = f"""Thread 7102 (idle): "MainThread"
    {innermost}
    _run_once (asyncio/base_events.py:1750)
    <module> (ray/workers/default_worker.py:218)
Thread 7181 (active): "Thread-4"
    __init__ (torch/nn/parallel/distributed.py:578)
    train_func (train_mnist.py:64)
    _bootstrap (threading.py:890)
"""
    (process,) = gather([Source(name="rank0.pid7102.txt", text=text)]).processes
    assert waits.deciding_thread(process).name == "Thread-4"
