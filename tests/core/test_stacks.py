from __future__ import annotations

import pytest

from watchdog_train.core.diagnosis import stacks
from watchdog_train.core.diagnosis.facts import Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.idle import is_idle_helper, is_idle_worker
from watchdog_train.core.diagnosis.places import groups


def stack(*texts, main=False):
    frames = []
    for text in texts:
        name, _, file = text.partition(" ")
        frames.append(stacks.Frame(function=name, file=file, line=1))
    return stacks.ThreadStack(frames=tuple(frames), main=main)


IDLE_WORKER = (
    "Queue.get multiprocessing/queues.py",
    "_worker_loop torch/utils/data/_utils/worker.py",
    "run multiprocessing/process.py",
    "_bootstrap multiprocessing/process.py",
    "_launch multiprocessing/popen_fork.py",
    "main train.py",
)


@pytest.mark.parametrize(
    ("pattern", "function", "file", "fits"),
    [
        ("get (queue.py)", "Queue.get", "/usr/lib/python3.11/queue.py", True),
        ("get (queue.py)", "get", "/x/site-packages/mine_queue.py", False),
        ("get|put (queue.py|multiprocessing/queues.py)", "put", "multiprocessing/queues.py", True),
        ("wait (torch/utils/data/*)", "wait", "/src/pytorch/torch/utils/data/dataloader.py", True),
        ("map (datasets/*)", "map", "/home/u/datasets/prepare.py", False),
        ("get (queue.py)", "get", "queue.py", True),
        ("wait (threading.py)", "wait", "C:\\Python311\\Lib\\threading.py", True),
        ("f|g (a.py) || h", "h", "z.py", True),
        ("* (wandb/*)", "init", "/v/lib/python3.10/site-packages/wandb/sdk/a.py", True),
        ("poll", "Popen.poll", "anything.py", True),
        ("poll", "pollute", "anything.py", False),
    ],
)
def test_a_pattern_fits_function_and_file(pattern, function, file, fits):
    assert stacks.frame_matches(pattern, stacks.Frame(function=function, file=file, line=1)) is fits


def test_a_chain_keeps_its_order():
    frames = stack("c f.py", "b f.py", "a f.py").frames
    assert stacks.find_chain(["a", "c"], frames)
    assert not stacks.find_chain(["c", "a"], frames)


@pytest.mark.parametrize(
    ("thread", "idle"),
    [
        (stack("wait threading.py", "_feed multiprocessing/queues.py"), True),
        (stack("_send multiprocessing/connection.py", "_feed multiprocessing/queues.py"), False),
        (stack("wait threading.py", "run tqdm/_monitor.py"), True),
        (stack("_worker concurrent/futures/thread.py"), True),
        (stack("job train.py", "_worker concurrent/futures/thread.py"), False),
        (stack("wait threading.py", "run tqdm/_monitor.py", main=True), False),
        (stack("wait threading.py", "_run /src/watchdog_train/client/pulse.py"), True),
    ],
)
def test_helpers_that_wait_in_every_run_are_told_from_work(thread, idle):
    """A helper is idle only in its own wait, and a main thread never is a helper."""
    assert is_idle_helper(thread) is idle


def test_a_worker_that_waits_for_orders_is_idle():
    assert is_idle_worker([stack(*IDLE_WORKER, main=True)])
    busy = ("f train.py", "fetch torch/utils/data/_utils/fetch.py", *IDLE_WORKER[1:])
    assert not is_idle_worker([stack(*busy, main=True)])


def test_frames_of_the_parent_are_cut_off_a_forked_child():
    frames = stack(*IDLE_WORKER).frames
    assert stacks.is_forked(frames)
    assert stacks.own_frames(frames)[-1].name == "_bootstrap"


def test_the_deciding_frame_is_not_the_wait():
    frames = stack("select selectors.py", "wait multiprocessing/connection.py", "f a.py").frames
    assert stacks.deciding_frame(frames).name == "f"


def test_groups_put_idle_workers_last():
    idle, busy = (stack(*IDLE_WORKER, main=True),), (stack("f train.py", main=True),)
    workers = tuple(
        ProcessEvidence(pid=pid, start=1, ppid=9, role="worker", threads=threads)
        for pid, threads in ((1, idle), (2, busy), (3, busy))
    )
    found = groups(Evidence(why="stall", processes=workers))
    assert [[one.pid for one in entry.processes] for entry in found] == [[2, 3], [1]]


def test_names_cannot_carry_terminal_commands():
    assert "\x1b" not in stacks.printable("f\x1b[2J")
    assert stacks.short_file("/opt/v/lib/python3.12/site-packages/a/b.py") == "a/b.py"
