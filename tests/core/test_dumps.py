"""Text of tools and programs: stacks, exceptions, and lines of logs, in whatever layout."""

# ruff: noqa: E501 - lines of dumps are as long as they are
from __future__ import annotations

import json

import pytest

from watchdog_train.core.diagnosis.log_lines import advances, progress_of, read_line
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.dumps import dumps
from watchdog_train.evidence.inputs import Texts
from watchdog_train.explain import waits
from watchdog_train.report.diagnosis_text import failure_words

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
BARE = """\
Timeout (0:02:00)!
File "/v/torch/utils/file_baton.py", line 50 in wait
File "/v/torch/utils/cpp_extension.py", line 2156 in _jit_compile
"""
"""Logs lose the line above and the indentation."""


def main_frames(text):
    """Names of the main thread's frames, innermost first."""
    (dump,) = dumps(text)
    return [frame.name for frame in dump.main.frames]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (PY_SPY, ["wait", "get", "_try_get_data", "<module>"]),
        (NATIVE, ["__lll_lock_wait", "void at::native::resize<float>", "fetch", "<module>"]),
        (FAULT, ["step", "<module>"]),
        (BARE, ["wait", "_jit_compile"]),
    ],
    ids=["py-spy", "native", "faulthandler", "without its head"],
)
def test_every_format_gives_the_main_threads_frames(text, names):
    """Locals and source lines are left out, arguments cut from native names."""
    assert main_frames(text) == names


def test_frames_of_a_traceback_are_no_dump():
    """Its comma tells them from those of the fault handler, which may lack their head."""
    assert not dumps('  File "/a/train.py", line 3, in <module>\n')


def processes(**texts):
    """Of files of these names; `__` stands for the dot before the pid."""
    read = Texts()
    for name, text in texts.items():
        read.add(name.replace("__", ".") + ".txt", text.encode())
    return read.together().evidence.processes


def told(*texts):
    """What is said of logs of these texts: the cause first, then the rest."""
    read = Texts()
    for number, text in enumerate(texts):
        read.add(f"log{number}.log", text.encode())
    return [failure_words(one) for one in read.together().failures]


def trace(kind, line=3, name="f"):
    return f'Traceback (most recent call last):\n  File "a.py", line {line}, in {name}\n{kind}\n'


RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/me/train.py:1133 in step                                               │
│ ❱ 1133 │   data = self._data_queue.get(timeout=timeout)                      │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: bad
"""
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"
KILLED = "failed (exitcode: -9) local_rank: 1 (pid: 9) of binary: python"
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."
THROWN = "terminate called after throwing an instance of 'c10::Error'\n  what():  bad alloc\n"
VALUE = trace("ValueError: bad")
BAD = "ValueError at a.py:3 in f(): bad"
TOLD = {
    "rich": (RICH, ["ValueError at train.py:1133 in step(): bad"]),
    "what a launcher says last": (VALUE + trace("torch.x.ChildFailedError:", name="main"), [BAD]),
    "a launcher alone": (
        f"{KILLED}\n{trace('x.ChildFailedError:')}",
        [f"killed by SIGKILL: {KILLED}"],
    ),
    "a consequence that is printed first": (
        f"[rank0]: {CLOSED}\n[rank1]: KeyError: 'x'\n",
        ["KeyError: 'x' (rank 1)", f"{CLOSED} (rank 0)"],
    ),
    "the last one of a process": (
        trace("ImportError: no apex", line=9) + VALUE,
        [BAD, "ImportError at a.py:9 in f(): no apex"],
    ),
    "of a child process": (
        f"Process P-1:\n{VALUE}RuntimeError: no engine",
        [f"{BAD} (P-1)", "RuntimeError: no engine"],
    ),
    "of a helper thread": (f"Exception in thread Thread-3:\n{VALUE}", [f"{BAD} (Thread-3)"]),
    "work went on after it": (f"{VALUE}step 1 loss 2\nstep 2 loss 1\nstep 3 loss 1\n", []),
    "C++": (f"{THROWN}Aborted\n", ["c10::Error: bad alloc", "killed by SIGABRT: Aborted"]),
    "at the exit": (f"Exception ignored in: <function f>\n{VALUE}", []),
    "an interrupt": (trace("KeyboardInterrupt"), ["KeyboardInterrupt at a.py:3 in f()"]),
    "cut off": (VALUE.rpartition("Value")[0], ["an exception at a.py:3 in f()"]),
    "quoted in JSON": (json.dumps({"error": VALUE}), [BAD]),
    "named in its source": (
        VALUE.replace("in f\n", 'in f\n    x("Traceback (most recent call last):" + y)\n'),
        [BAD],
    ),
    "logged": ("10:00 ERROR x.py:3 - ValueError: bad\n", ["ValueError: bad"]),
    "Slurm": (SLURM, [f"killed by SIGKILL: {SLURM}"]),
    "a shell": ("exit status 139", ["killed by SIGSEGV: exit status 139"]),
    "nothing": ("loading 3 files\nUserWarning: slow\nexit code: 1", []),
}


@pytest.mark.parametrize("how", TOLD)
def test_the_cause_is_named_first(how):
    text, words = TOLD[how]
    assert told(text) == words


def test_of_two_logs_the_first_failure_in_time_is_the_cause():
    logs = ("2026-05-01 10:00:09 ValueError: late\n", "2026-05-01 10:00:01 KeyError: 'first'\n")
    assert told(*logs) == ["KeyError: 'first'", "ValueError: late"]


def test_a_crash_is_never_a_standstill():
    """Stacks of a fatal error, or beside an exception, are of no process that waits."""
    text = "Fatal Python error: Aborted\n\n" + FAULT.partition("\n")[2]
    assert not processes(log=text)
    assert told(text) == ["Fatal Python error at train.py:31 in step(): Aborted"]


def test_a_dump_says_whose_it_is():
    dump = dumps(PY_SPY)[0]
    assert (dump.pid, dump.command) == (812, ("python", "-u", "train.py", "--lr", "1e-4"))
    assert [thread.owns_gil for thread in dump.threads] == [True, False]
    assert dumps(FAULT)[0].main.name == "python3"
    assert dump.threads[1].name == "QueueFeederThread"


def test_threads_behind_a_prefix_are_one_process():
    """The launcher's prefix stands before the empty line between them, too."""
    text = "".join(
        f'[rank3]:Thread 0x7f{at} (most recent call first):\n[rank3]:  File "a.py", line 1 in f\n[rank3]:\n'
        for at in (1, 2)
    )
    assert [(dump.rank, len(dump.threads)) for dump in dumps(text)] == [(3, 2)]


def test_processes_are_told_apart_and_put_together():
    """Two containers have a pid 1 each; a dump without a pid shows the one process there is."""
    dump = 'Process 1: python train.py\nThread 1 (active): "MainThread"\n    f (a.py:1)\n'

    one, two = processes(rank0=dump, rank1=dump)
    assert one.identity != two.identity
    moved = dump.replace("a.py:1", "a.py:7")
    assert [one.changed for one in processes(log=dump + moved)] == [True]
    worker = (
        'Thread 1 (idle): "MainThread"\n    _worker_loop (torch/utils/data/_utils/worker.py:3)\n'
    )
    found = processes(rank0__pid7=dump, rank0__pid8=worker, rank2__worker3__pid9=dump)
    assert [(one.role, one.rank, one.worker) for one in found] == [
        ("rank", 0, None),
        ("worker", 0, None),
        ("worker", 2, 3),
    ]


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
    found = progress_of(text)
    assert (found[1] if found else None) == progress


def test_a_counter_that_stands_still_does_not_advance():
    """Only a higher number than ever before is progress; a bar's start at 0 is not."""
    bars = ["0/9 [00:00<?, ?it/s]", "1/9 [00:01<00:08]", "1/9 [00:20<02:08]", "2/9 [00:21<01:08]"]
    assert advances([read_line(bar) for bar in bars]) == [1, 3]


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
    (process,) = processes(rank0__pid7102=text)
    assert waits.deciding_thread(process).name == "Thread-4"
