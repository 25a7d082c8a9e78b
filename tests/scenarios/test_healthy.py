"""Healthy look-alikes of a hang: a false kill is the worst bug, so none may get a single signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenarios.checks import assert_log_is_sound, assert_never_killed, last_line
from tests.support import (
    FAST_LIMITS,
    CompletedRun,
    RunningWtrain,
    changed,
    is_alive,
    program_command,
    run_fast,
    run_wtrain,
    sentence,
    start_fast,
    wait_until,
    write_fast_config,
)
from watchdog_train.core.policy import Limits


@pytest.mark.parametrize(
    "kind",
    [
        "long_matmul",
        pytest.param("big_save", marks=pytest.mark.slow),
        pytest.param("slow_download", marks=(pytest.mark.needs_tcp_bytes, pytest.mark.slow)),
        pytest.param("tokenise_processes", marks=pytest.mark.slow),
        pytest.param("long_eval", marks=pytest.mark.slow),
        pytest.param("many_children", marks=pytest.mark.slow),
    ],
)
def test_work_that_looks_like_a_hang(kind: str, tmp_path: Path) -> None:
    """Work without progress words, three times longer than the soft budget, is left in peace."""
    run = run_fast(tmp_path, program_command("healthy.py", kind), env={"LONG_S": "10"}).check(0)
    assert_log_is_sound(run)
    assert_never_killed(run)
    assert last_line(run.stdout).startswith("finished step=40 ")


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_steps_that_sleep_30_s(tmp_path: Path) -> None:
    """With the default settings a step that only waits for 30 s is left in peace."""
    command = program_command("sleeping_steps.py", "--steps", "10")
    run = run_wtrain("run", "--", *command, cwd=tmp_path, timeout_s=400).check(0)
    assert_never_killed(run)


ANNOUNCES = """
import time
import watchdog_train as wt
for step in range(1, 41):
    wt.beat(step, 40)
    time.sleep(0.1)
    if step == 20:
        wt.expect(13)
    if step in (20, 30):
        print("silent after", step, flush=True)
        time.sleep(12)
"""


@pytest.mark.slow
def test_an_announced_silence(tmp_path: Path) -> None:
    """Of two equal silences only the one that expect() did not announce is suspected."""
    run = run_fast(tmp_path, (sys.executable, "-c", ANNOUNCES), "--observe", timeout_s=90).check(0)
    (first, *_) = run.of_type("suspected")
    steps = [
        one["progress"]["step"] for one in run.of_type("progress") if one["seq"] < first["seq"]
    ]
    assert max(filter(None, steps)) == 30, run.describe()


LOCKS = """
import os, threading, time
import watchdog_train as wt
ready = threading.Event()
def metric(until, total=0):
    while time.monotonic() < until:
        for number in range(100_000):
            total += number * number % 7
def wait_for_nobody():
    while not ready.is_set():
        pass
first = not os.path.exists("locked")
for step in range(1, 61):
    wt.beat(step, 60)
    time.sleep(0.05)
    if step == 30 and first:
        metric(time.monotonic() + 20)
    if step == 50 and first:
        open("locked", "w").close()
        wait_for_nobody()
"""


def hung_once(
    cwd: Path, source: str, limits: Limits, *launcher: str, timeout_s: float = 200
) -> CompletedRun:
    """A run of this script that ended well."""
    config = write_fast_config(cwd, limits=limits)
    (cwd / "train.py").write_text(source)
    options = ("--config", str(config), "--", sys.executable, *launcher, str(cwd / "train.py"))
    return run_wtrain("run", *options, cwd=cwd, timeout_s=timeout_s).check(0)


LIVE_LOCK_LIMITS = changed(
    FAST_LIMITS, detection={"busy_s": 4, "learnt_hard_floor_s": 4}, patience={"live_lock_s": 8}
)


@pytest.mark.timeout(240)
def test_a_live_lock_ends_and_a_metric_that_takes_as_long_does_not(tmp_path: Path) -> None:
    """Both keep one core busy, in one function, over the hard limit; with shortened limits."""
    run = hung_once(tmp_path, LOCKS, LIVE_LOCK_LIMITS)
    stall = run.only("stall_declared")
    assert stall["basis"] == "live-lock", run.describe()
    assert "wait_for_nobody (train.py:10)" in stall["why"]["because"][-1]["names"]
    assert [one["kind"] for one in run.of_type("noticed")].count("live-lock") == 1


RANKS = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = not os.path.exists("locked")
dist.barrier()
def wait_for(name):
    while not os.path.exists(name):
        pass
def steps(number):
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
def late():
    until = time.monotonic() + 20
    while time.monotonic() < until:
        sum(number * number for number in range(1000))
    open("made", "w").close()
steps(30)
if first:
    late() if rank == 0 else wait_for("made")
    steps(10)
    dist.barrier()
    open("locked", "w").close()
    if rank in SPINNING:
        wait_for("never")
    dist.all_reduce(torch.ones(1))
steps(10)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("spinning", [(0, 1), (2,)], ids=["all-of-two", "one-of-four"])
def test_ranks_that_ask_for_ever_are_a_live_lock_and_those_that_await_a_late_one_are_not(
    spinning: tuple[int, ...], tmp_path: Path
) -> None:
    """All in one loop at one line, or one while the others wait for it in a collective."""
    source = RANKS.replace("SPINNING", str(spinning))
    count = 2 if len(spinning) == 2 else 4
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    run = hung_once(tmp_path, source, LIVE_LOCK_LIMITS, *launcher, timeout_s=560)
    stall = run.only("stall_declared")
    assert stall["basis"] == "live-lock", run.describe()
    assert [one["kind"] for one in run.of_type("noticed")].count("live-lock") == 1
    assert "wait_for (train.py:12)" in stall["why"]["because"][-1]["names"]
    explained = run.of_type("stall_explained")[-1]["explanation"]
    assert explained["root"]["who"]["rank"] in spinning, explained
    because = explained["because"]  # a machine under load may be named
    assert because is None or because["family"] != "healthy-slow", "asking is no work"


HELD = """
import ctypes, os, time
import watchdog_train as wt
first = not os.path.exists("held")
for step in range(1, 41):
    wt.beat(step, 40)
    time.sleep(0.05)
    if step == 30 and first:
        open("held", "w").close()
        if ctypes.CDLL(None).vfork() == 0:
            time.sleep(1000)
            os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="state D by Linux's vfork")
@pytest.mark.timeout(240)
def test_a_wait_in_the_kernel_is_said_first_and_ended_when_it_lasts(tmp_path: Path) -> None:
    """A real state D, of a parent in vfork; with limits of 4 and 12 s instead of 5 and 15 min."""
    limits = changed(FAST_LIMITS, detection={"stuck_s": 4, "stuck_stall_s": 12})
    run = hung_once(tmp_path, HELD, limits)
    stall = run.only("stall_declared")
    assert stall["basis"] == "uninterruptible", run.describe()
    (notice,) = [one for one in run.of_type("noticed") if one["kind"] == "uninterruptible"]
    assert stall["mono"] - notice["mono"] > 4
    assert "in the kernel (state D)" in sentence(notice["why"])
    assert f"pid {notice['pids'][0]}" in sentence(notice["why"])


def test_waiting_for_a_person(tmp_path: Path) -> None:
    """A question on standard input is noticed, named, and never killed in the foreground."""
    read_end, write_end = os.pipe()
    running = start_fast(tmp_path, program_command("healthy.py", "wait_input"), stdin=read_end)
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as answer:
        running.wait_for("noticed", 60, lambda event: event["kind"] == "input")
        assert_never_killed(running.snapshot())
        answer.write(b"y\n")
        run = running.result(60).check(0)
    assert_never_killed(run)
    assert "answer: y" in run.stdout


def test_stopped_training(tmp_path: Path) -> None:
    """A training that somebody has stopped is reported as stopped, and goes on when continued."""
    running = start_fast(tmp_path, program_command("healthy.py", "stopped"))
    running.wait_for("noticed", 60, lambda event: event["kind"] == "stopped")
    root = running.wait_for("attempt_launched", 1)["pid"]
    assert is_alive(root)
    os.kill(root, signal.SIGCONT)
    run = running.result(60).check(0)
    assert_never_killed(run)


@pytest.mark.slow
def test_supervisor_that_was_stopped(tmp_path: Path) -> None:
    """While we are stopped training goes on, and that gap is no silence."""
    command = program_command("loader_fork_lock.py", "--hang-at", "-1", "--steps", "300")
    running: RunningWtrain = start_fast(tmp_path, command)
    running.wait_for("first_step", 60)
    running.send(signal.SIGSTOP)
    subprocess.run(["sleep", "8"], check=True, timeout=20)
    running.send(signal.SIGCONT)
    run = running.result(90).check(0)
    assert_never_killed(run)
    assert last_line(run.stdout).startswith("finished step=300 ")


@contextmanager
def crowd(cpu: int) -> Iterator[None]:
    """Programs that want this CPU all the time, politer than anything else on the machine."""
    program = f"import os; os.sched_setaffinity(0, {{{cpu}}}); os.nice(12)\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait(10)


def a_crowded_cpu() -> int:
    """The one that tests/programs/starved.py chooses."""
    if not sys.platform.startswith("linux") or not Path("/proc/self/schedstat").exists():
        pytest.skip("needs the scheduler's idle class and its counts")
    return min(os.sched_getaffinity(0))


@pytest.mark.slow
@pytest.mark.needs_cpu_wait
@pytest.mark.timeout(240)
def test_a_training_that_others_starve(tmp_path: Path) -> None:
    """Next to no CPU time and no step for eight soft budgets: it wants to run, no suspicion."""
    with crowd(a_crowded_cpu()):
        running = start_fast(tmp_path, program_command("starved.py"))
        wait_until((tmp_path / "starving").exists, 90, "20 steps")
        subprocess.run(["sleep", "25"], check=True, timeout=60)
        run = running.snapshot()
        assert_never_killed(run)
        assert not run.of_type("suspected"), run.describe()
        lines = map(json.loads, (run.run_dir / "trace.jsonl").read_bytes().splitlines())
        waited_s = max(line.get("cpu_wait_s", 0.0) for line in lines)
        assert waited_s > 5, "it was not starved: nothing is tested"
        for _ in range(2):
            running.send(signal.SIGTERM)
        running.result(90)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hang_in_a_crowd(tmp_path: Path) -> None:
    """Its neighbours want the CPU, the training does not: a stall as anywhere else."""
    with crowd(a_crowded_cpu()):
        command = program_command("starved.py", "--hang")
        running = start_fast(tmp_path, command, "--on-stall", "stop")
        running.wait_for("stall_declared", 120)
        running.result(60)
