"""Waits that nobody can end because a thread died, beside healthy ones: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.processes.collecting import collect_tree
from tests.support import wait_until
from watchdog_train.core.model import EvidenceResult
from watchdog_train.core.model import explanation as x
from watchdog_train.core.model import waits as w
from watchdog_train.report.explanation_text import because, sentences, what_happened

if sys.platform != "linux":
    pytest.skip("by Linux's system calls", allow_module_level=True)

_MOVES = (x.Computing, w.UnknownWait)
BEGIN = "import multiprocessing, threading, watchdog_train\nwatchdog_train.beat(1)\n"
POOL = """
import multiprocessing, os, sys, threading, time
class Torn(Exception):
    def __init__(self, code, detail):
        super().__init__(code)
def work(number):
    if number == 1:
        raise Torn(1, "x")  # the result thread cannot rebuild it, and dies
    if number == 9:
        while True:
            pass
    return number
def spin():
    while True:
        pass
def fail():
    raise RuntimeError("of the program's own")
pool = multiprocessing.Pool(2)
"""
EXECUTOR = """
import concurrent.futures, time
executor = concurrent.futures.ProcessPoolExecutor(1)
first = executor.submit(time.sleep, 0.3)
first.set_result(1)  # by mistake: the manager thread cannot set it once more, and dies
executor._executor_manager_thread.join()
executor.submit(int).result()
"""
LOOP = """
import asyncio, os, signal, threading, time
def fail():
    raise RuntimeError("the consumer")
async def main():
    {more}
    await asyncio.Event().wait()
asyncio.run(main())
"""
FAILS = "threading.Thread(target=fail, name='consumer').start()"
ENDLESS = {
    "a pool whose result thread died": (
        f"{POOL}pool.map(work, range(4), chunksize=1)",
        "releaser-died",
        "its thread Thread-3 (_handle_results) ended with TypeError",
    ),
    "an executor whose manager thread died": (EXECUTOR, "proven", "InvalidStateError"),
    "an event loop whose consumer died": (
        LOOP.format(more=FAILS),
        "releaser-died",
        "its thread consumer ended with RuntimeError",
    ),
    "a queue whose producer died": (
        f"import queue\ndef fail():\n    raise ValueError('row 7')\n{FAILS}\nqueue.Queue().get()",
        "proven",
        "its thread consumer ended with ValueError at script.py:5: row 7",
    ),
    "an event loop alone": (LOOP.format(more=""), "nobody-left", "The loop has no timer"),
}


def judged(
    tmp_path: Path,
    program: str,
    *,
    silent_s: float,
    raised: bool = False,
    kind: type[x.Doing] | None = None,
    row: str | None = None,
) -> EvidenceResult:
    """What is found of this training, once it waits, without progress for so long."""
    training = Training(tmp_path)
    process = training.start(BEGIN + program)
    try:
        if raised:
            wait_until(lambda: list(training.slot_dir.glob("*.exception.json")), 30, "its end")
        told = {"beat_age_s": silent_s}
        slots = str(training.slot_dir)

        def at_rest() -> EvidenceResult | None:
            folder = tmp_path / f"look-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            found = collect_tree(folder, process.pid, slot_dir=slots, told=told)
            root = found.explanation.root if found.explanation else None
            busy = root is None or (not raised and isinstance(root.doing, _MOVES))
            wanted = root is not None and kind in (None, type(root.doing))
            wanted = wanted and row in (None, found.patience.row)
            return found if wanted and not busy else None

        return wait_until(at_rest, 60, "a wait")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_wait_that_nobody_can_end_names_the_thread_that_died(name: str, tmp_path: Path) -> None:
    program, row, words = ENDLESS[name]
    found = judged(tmp_path, program, silent_s=600.0, raised=row != "nobody-left", row=row)
    assert found.explanation is not None
    text = what_happened(found.explanation)
    assert words in text
    assert found.explanation.because is None
    assert found.explanation.remedies == ()


CHAINED = """
import queue
{how}
def fail():
    raise KeyError("av1")
def batch():
    wait()
threading.Thread(target=batch, name="batcher", daemon=True).start()
threading.Thread(target=fail, name="decoder").start()
wait()
"""


@pytest.mark.parametrize(
    "how",
    [
        "changed = threading.Condition()\ndef wait():\n    with changed:\n        changed.wait()",
        "clips = queue.Queue()\ndef wait():\n    clips.get()",
    ],
)
def test_a_thread_that_died_is_the_likely_cause_where_others_wait_in_a_chain(
    how: str, tmp_path: Path
) -> None:
    """The waits are no less proven; nothing is said of a thread that were left, for one is."""
    found = judged(tmp_path, CHAINED.format(how=how), silent_s=600.0, raised=True, row="proven")
    assert found.explanation is not None
    cause = because(found.explanation)
    assert cause.startswith("thread decoder of rank 0 raised KeyError at script.py:")
    assert cause.endswith("'av1' (likely)")
    told = " ".join(sentences(found.explanation))
    assert "Thread batcher of rank 0 is waiting for a" in told
    assert "No thread is left" not in told
    assert found.crash.in_thread


HEALTHY = {
    "the thread died before the last progress": (
        f"{POOL}pool.map(work, range(4), chunksize=1)", -60.0, True,
    ),
    "another thread of the program works": (
        f"{POOL}threading.Thread(target=spin).start()\npool.map(work, range(4), chunksize=1)",
        600.0, True,
    ),
    "a worker of the pool works": (f"{POOL}pool.map(work, [9, 1], chunksize=1)", 600.0, True),
    "another pool is waited for": (
        f"{POOL}pool.map_async(work, [1])\nmultiprocessing.Pool(1).map(time.sleep, [600])",
        600.0, True,
    ),
    "a thread of the program's own died": (
        f"{POOL}threading.Thread(target=fail).start()\npool.map(time.sleep, [600])", 600.0, True,
    ),
    "a pool that was closed": (
        f"{POOL}pool.close()\npool.join()\nthreading.Event().wait()", 600.0, False,
    ),
    "a loop with a timer": (LOOP.format(more="asyncio.create_task(asyncio.sleep(600))"), 600.0,
                            False),
    "a loop beside a thread": (
        LOOP.format(more="threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"),
        600.0, False,
    ),
    "a loop with a child": (
        LOOP.format(more="await asyncio.create_subprocess_exec('sleep', '600')"), 600.0, False,
    ),
    "a loop that a signal wakes": (
        LOOP.format(
            more="asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)"
        ),
        600.0, False,
    ),
    "a loop that serves": (
        LOOP.format(more="await asyncio.start_server(print, '127.0.0.1', 0)"), 600.0, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_wait_that_may_end_is_not_taken_for_one_that_cannot(name: str, tmp_path: Path) -> None:
    program, silent_s, raised = HEALTHY[name]
    found = judged(tmp_path, program, silent_s=silent_s, raised=raised)
    assert found.patience.row not in ("releaser-died", "proven")
    assert found.explanation.root.died is None
    assert not isinstance(found.explanation.root.doing, x.LoopWait)


HOLDER = """
import os, filelock, threading
lock = filelock.FileLock("build.lock")
lock.acquire()
print("held", flush=True)
threading.Event().wait()
"""
FULL = "import os\nwhile True:\n    os.write(2, bytes(65536))\n"


@pytest.mark.skipif(find_spec("filelock") is None, reason="filelock is not installed")
def test_a_file_lock_that_is_polled_has_its_path_and_holder(tmp_path: Path) -> None:
    """The library keeps no descriptor between two tries, and the kernel sees only a sleep."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        waits = "import filelock\nfilelock.FileLock('build.lock').acquire()"
        found = judged(tmp_path, waits, silent_s=60.0, kind=w.FileLockWait, row="outsider")
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    assert found.explanation is not None
    text = what_happened(found.explanation)
    assert f"waiting for the lock on {tmp_path / 'build.lock'}" in text
    assert f"(pid {holder.pid})" in text


def test_a_full_standard_error_is_called_so(tmp_path: Path) -> None:
    found = judged(tmp_path, FULL, silent_s=60.0, kind=w.PipeWait)
    assert found.explanation is not None
    assert "writing to its standard error (descriptor 2)" in what_happened(found.explanation)
