"""Processes that keep a core busy: which only ask if something has happened, and which compute."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.collecting import collect_tree
from tests.support import end_process, wait_until
from watchdog_train.core.model import Patience, Place
from watchdog_train.system import proc

if sys.platform != "linux":
    pytest.skip("by Linux's system calls", allow_module_level=True)

PROGRAM = """
import hashlib, itertools, os, queue, re, signal, subprocess, sys, threading, time

flag, event, lock, tasks = [], threading.Event(), threading.Lock(), queue.Queue()
UNTIL = time.monotonic() + 1000

def waits_for_an_event():
    while not event.is_set():
        pass

def waits_for_a_flag():
    while not flag:
        continue

def waits_for_a_file():
    while True:
        if os.path.exists("nobody"):
            break

def waits_for_a_task():
    while True:
        try:
            found = tasks.get_nowait()
            break
        except queue.Empty:
            pass

def waits_for_an_idle_thread():
    threading.Thread(target=queue.Queue().get, daemon=True).start()
    while not lock.acquire(blocking=False) or not flag:
        pass

def metric_in_python(n=10**7):
    total = i = 0
    while i < n:
        total += i * i % 7
        i = (i + 1) % n

def one_line_of_native_code():
    while time.monotonic() < UNTIL:
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000)

def one_native_call():
    sum(map(abs, itertools.repeat(1)))

def tokenises():
    text = "a healthy tokenizer " * 1000
    for _ in itertools.count():
        re.findall(r"[a-z]+", text)

def waits_until_a_time():
    while time.monotonic() < UNTIL:
        pass

def waits_for_python_in_a_thread():
    thread = threading.Thread(target=metric_in_python, daemon=True)
    thread.start()
    while thread.is_alive():
        pass

def waits_for_native_code_in_a_thread():
    threading.Thread(target=one_line_of_native_code, daemon=True).start()
    while not flag:
        pass

def waits_for_a_child():
    subprocess.Popen([sys.executable, __file__, "metric_in_python"])
    while not os.path.exists("nobody"):
        pass

def waits_for_a_quiet_child():
    subprocess.Popen(["sleep", "1000"])
    while not os.path.exists("nobody"):
        pass

def waits_for_a_timer():
    timer = threading.Timer(1000, event.set)
    timer.daemon = True
    timer.start()
    while not event.is_set():
        pass

def waits_for_a_signal():
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    while not event.is_set():
        pass

class Model:
    @property
    def converged(self):
        return sum(i * i for i in range(10_000)) < 0

def asks_what_computes():
    model = Model()
    while not model.converged:
        pass

globals()[sys.argv[1]]()
"""
LOCKED = """
    waits_for_an_event waits_for_a_flag waits_for_a_file waits_for_a_task waits_for_an_idle_thread
"""
HEALTHY = """
    metric_in_python one_line_of_native_code one_native_call tokenises waits_until_a_time
    waits_for_python_in_a_thread waits_for_native_code_in_a_thread waits_for_a_child
    waits_for_a_quiet_child waits_for_a_timer waits_for_a_signal asks_what_computes
"""

LONG = """
import sys, time

def max_autotune():
    import torch, torch._inductor.config
    torch._inductor.config.freezing = True
    for width in range(64, 1 << 20, 32):
        model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU())
        tuned = torch.compile(model.eval(), mode="max-autotune")
        with torch.no_grad():
            tuned(torch.randn(128, width))
        torch._dynamo.reset()

def matmul():
    import torch
    matrix = torch.randn(8000, 8000)
    while True:
        matrix = matrix @ matrix

def metric():
    import random
    while True:
        said, meant = ([random.random() > 0.5 for _ in range(10**6)] for _ in range(2))
        right = wrong = at = 0
        while at < len(said):
            if said[at] and meant[at]:
                right += 1
            elif said[at] or meant[at]:
                wrong += 1
            at += 1
        2 * right / max(1, 2 * right + wrong)

def tokenise():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    lines = ["a healthy tokenizer splits line %d into words" % n for n in range(5000)]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    while True:
        for line in lines:
            tokenizer.encode(line).ids

globals()[sys.argv[1]]()
"""


@contextmanager
def busy(kind: str, tmp_path: Path, program: str = PROGRAM) -> Iterator[int]:
    """The pid of a process that is busy so."""
    script = tmp_path / "train.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, str(script), kind], cwd=tmp_path, start_new_session=True
    )
    try:
        # Its start is over when it has used more than a start needs.
        wait_until(lambda: proc.read_stat(process.pid).cpu_ticks > 60, 60, "a busy process")
        yield process.pid
    finally:
        end_process(process)


def locked_at(patience: Patience) -> Place | None:
    return patience.line if patience.row == "live-lock" else None


def sampled(tmp_path: Path, pid: int) -> Patience:
    return collect_tree(tmp_path, pid, mode="look").patience


@pytest.mark.parametrize("kind", LOCKED.split())
def test_whoever_only_asks_is_found_at_its_loop(kind: str, tmp_path: Path) -> None:
    """With the line of the loop, whichever call of it the sample has met."""
    with busy(kind, tmp_path) as pid:
        # One that others starve of CPU time is not seen to be busy.
        found = wait_until(lambda: locked_at(sampled(tmp_path, pid)), 60, "a live-lock")
    assert found.function == kind
    assert PROGRAM.splitlines()[found.line - 1].strip().startswith("while ")


@pytest.mark.parametrize("kind", HEALTHY.split())
def test_whoever_computes_or_is_waited_for_with_reason_is_no_live_lock(
    kind: str, tmp_path: Path
) -> None:
    with busy(kind, tmp_path) as pid:
        assert [sampled(tmp_path, pid).row == "live-lock" for _ in range(3)] == [False] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["max_autotune", "matmul", "metric", "tokenise"])
def test_no_sample_of_a_real_long_computation_is_a_live_lock(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty samples in a row would be needed; none of twenty is one, from the imports on."""
    if kind == "tokenise":
        pytest.importorskip("tokenizers")
    if kind == "max_autotune":
        if shutil.which("g++") is None:
            pytest.skip("without a C++ compiler")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with busy(kind, tmp_path, LONG) as pid:
        for _ in range(20):
            assert sampled(tmp_path, pid).row != "live-lock"
        assert proc.read_stat(pid).state not in ("Z", "X"), "it has computed all the time"
