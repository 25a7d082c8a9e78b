"""An event that somebody outside Python may set is waited for as long as a poll, no other is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import run_wtrain, script, start_fast

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by Linux's system calls")
TRAINING = """\
import ctypes, functools, os, queue, signal, sys, threading, time
import watchdog_train as wt

go, idle = threading.Event(), queue.Queue()
go.set()

class Pause:
    def __call__(self, *_):
        go.clear()
    def method(self, *_):
        go.clear()

def function(*_):
    go.clear()

def unknown_thread(routine):
    C = ctypes.CDLL(None)
    begin = ctypes.cast(getattr(C, routine), ctypes.c_void_p)
    C.pthread_create(ctypes.byref(ctypes.c_ulong()), None, begin, ctypes.c_void_p(600))

kind, wait = sys.argv[1:]
handlers = {"function": function, "method": Pause().method, "object": Pause(),
            "partial": functools.partial(function, 1)}
if kind in handlers:
    signal.signal(signal.SIGUSR1, handlers[kind])
elif kind == "framework":
    code = compile("def handler(*_): pass", "/x/site-packages/submitit/job.py", "exec")
    exec(code)
    signal.signal(signal.SIGUSR1, handler)
elif kind == "native":
    unknown_thread("sleep")
elif kind == "ctrl-c":
    signal.signal(signal.SIGINT, function)
for step in range(12):
    time.sleep(0.1)
    wt.beat(step=step)
go.clear()
if wait == "event":
    go.wait()
elif wait == "condition":
    condition = threading.Condition()
    condition.acquire()
    condition.wait()
else:
    idle.get()
"""


@pytest.mark.parametrize(
    ("kind", "wait", "outside"),
    [
        ("function", "event", True),
        ("method", "event", True),
        ("object", "condition", True),
        ("partial", "condition", True),
        ("native", "event", True),
        ("native", "queue", False),
        ("function", "queue", False),
        ("framework", "event", False),
        ("ctrl-c", "event", False),
        ("nothing", "event", False),
    ],
)
def test_what_may_set_an_event_from_outside_decides_how_long_it_is_waited_for(
    tmp_path: Path, kind: str, wait: str, outside: bool
) -> None:
    running = start_fast(tmp_path, (*script(tmp_path, TRAINING), kind, wait), "--name", "t")
    looked = running.wait_for("looked", 40)
    run_wtrain("stop", "--now", "t", cwd=tmp_path)
    running.result(30)
    assert (looked["patience"]["row"] == "poll") == outside, looked
