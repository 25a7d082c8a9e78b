"""What a thread waits for, named exactly: real processes that wait, read from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.processes.collecting import collect_tree
from tests.support import interpreter, run_command, wait_until
from watchdog_train.core.model import waits as w
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.evidence.process_look import ProcLook, look, sealed, settled, thread_reader
from watchdog_train.system import proc

if sys.platform != "linux":
    pytest.skip("by Linux's system calls", allow_module_level=True)

from watchdog_train.system.waits import WaitReader

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A Python in the test's folder; it and what it has started end with the test."""
    started = []

    def begin(
        program: str, python: str = sys.executable, **streams: int
    ) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [python, "-c", textwrap.dedent(program)],
                cwd=tmp_path,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        )
        return started[-1]

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def wait_of(pid: int, kind: type[w.Wait], tid: int | None = None) -> w.Wait:
    """The wait of a thread (of the main one) as soon as it is of this kind, and stays so."""
    found: list[w.ThreadFact] = []

    def look() -> bool:
        before = [(fact.call, fact.switches) for fact in found]
        found[:] = WaitReader().threads(pid, only=[tid or pid])
        stays = before == [(fact.call, fact.switches) for fact in found] or kind is w.Running
        return stays and bool(found) and isinstance(found[0].wait, kind)

    wait_until(look, 20, f"a wait of {kind.__name__}")
    return found[0].wait


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_who_is_hidden_by_the_system_is_not_nobody(hidden: int) -> None:
    """Mounted with hidepid, /proc shows a user nothing of others, or not even that they are."""
    program = """
        import ctypes, os
        from watchdog_train.system.waits import WaitReader
        def be_nobody():
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        read_end, write_end = os.pipe()  # its other end stays ours, who are root
        reader = os.fork()
        if reader == 0:
            os.close(write_end); be_nobody(); os.read(read_end, 1); os._exit(0)
        looker = os.fork()
        if looker == 0:
            os.close(write_end); os.close(read_end); be_nobody()
            waits = []
            while not waits or getattr(waits[0], "call", "") != "read":
                waits = [fact.wait for fact in WaitReader().threads(reader)]
            print(waits[0].others, waits[0].complete, flush=True); os._exit(0)
        os.close(read_end); os.waitpid(looker, 0); os.kill(reader, 9)
    """
    mount = f"mount -t proc -o hidepid={hidden} proc /proc"
    inside = ("sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, textwrap.dedent(program))
    run = run_command(["unshare", "-m", *inside], timeout_s=30, code=None)
    if "mount" in run.stderr:
        pytest.skip(run.stderr)
    assert run.stdout == "() False\n", run.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_what_another_user_may_not_read_is_a_fact(start: Start, tmp_path: Path) -> None:
    """Its call is refused; that it has the lock for which we wait is public, and no proof."""
    tmp_path.chmod(0o777)
    holder = start(
        """
        import fcntl, os, time
        os.umask(0); file = open("lock", "w"); fcntl.flock(file, 2); open("up", "w")
        time.sleep(600)
        """
    )
    wait_until((tmp_path / "up").exists, 20, "it is locked")
    looker = start(
        f"""
        import ctypes, fcntl, os
        from watchdog_train.system.waits import WaitReader
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        waiter = os.fork()
        if waiter == 0:
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0); fcntl.flock(open("lock", "w"), 2)
        name = ""
        while name != "FileLockWait":
            (fact,) = WaitReader().threads(waiter)
            name = type(fact.wait).__name__
        print([ref.pid for ref in fact.wait.holders], fact.wait.complete)
        print(WaitReader().threads({holder.pid})[0].wait.why, flush=True)
        os.kill(waiter, 9)
        """,
        stdout=subprocess.PIPE,
    )
    assert looker.communicate(timeout=30)[0] == f"[{holder.pid}] False\nrefused\n".encode()


def test_a_child_is_named_by_our_number_for_it(start: Start, tmp_path: Path) -> None:
    """In a pid namespace of its own a parent waits for number 2: here that is somebody else's."""
    namespace = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip("a pid namespace cannot be made here")
    program = "import subprocess; open('up', 'w'); subprocess.run(['sleep', '600'])"
    outside = start(
        f"import os; os.execvp('unshare', {[*namespace, sys.executable, '-c', program]})"
    )
    wait_until((tmp_path / "up").exists, 20, "it runs")
    (parent,) = wait_of(outside.pid, w.ChildWait).children
    wait_until(
        lambda: [c.name for c in wait_of(parent.pid, w.ChildWait).children] == ["sleep"], 20, "it"
    )


def test_stopped_computing_and_ended(start: Start) -> None:
    process = start("while True: pass")
    wait_of(process.pid, w.Running)
    os.kill(process.pid, 19)
    assert not wait_of(process.pid, w.Stopped).traced
    (first,) = WaitReader().threads(process.pid)
    wait_until(lambda: WaitReader().threads(process.pid)[0].idle_s > first.idle_s, 20, "since when")
    os.kill(process.pid, 9)
    wait_of(process.pid, w.Ended)


def test_many_processes_cost_little(start: Start) -> None:
    """Deciding threads alone of 64 processes: the look that is repeated."""
    started = [start("import time; time.sleep(600)").pid for _ in range(64)]
    for pid in started:
        wait_of(pid, w.SleepWait)
    reader, began = WaitReader(), time.process_time()
    assert all(reader.threads(pid, only=[pid]) for pid in started)
    assert time.process_time() - began < 0.2


def test_all_threads_of_a_process_with_many_are_read(start: Start) -> None:
    """A torch on a machine with many cores; each thread tells whether it ran between two looks."""
    process = start(
        """
        import threading, time
        for _ in range(70): threading.Thread(target=threading.Event().wait, daemon=True).start()
        time.sleep(600)
        """
    )
    wait_of(process.pid, w.SleepWait)

    def all_wait() -> bool:
        """The last threads may still be on their way to the lock."""
        two = (look(process.pid, at, thread_reader()) for at in (0.0, 1.0))
        facts = settled(*two)
        assert [type(fact.wait) for fact in facts] == [w.SleepWait] + [w.MutexWait] * 70
        return all(fact.unchanged and 0 <= fact.idle_s < 60 for fact in facts)

    wait_until(all_wait, 10, "no thread runs between two looks")


def test_who_ran_between_two_looks_is_not_proven_to_hang() -> None:
    """It may wait for the same lock again: two threads that take turns."""

    def seen(switches: int, **other: object) -> ProcLook:
        fact = w.ThreadFact(
            tid=7, name="", state="S", switches=switches, wait=w.MutexWait(address=1)
        )
        known = {"ppid": 1, "name": "", "cpu_s": 0, "os_threads": 1, "handles_signals": ()}
        look = {"pid": 7, "start": 1, "state": "S", "at": float(switches), "threads": (fact,)}
        return ProcLook(**{**known, **look, **other})

    assert sealed(seen(1), seen(1), frozenset()) is True
    assert sealed(seen(1), seen(2), frozenset()) is False
    assert sealed(seen(1), seen(1, os_threads=2), frozenset()) is None
    assert sealed(seen(1), seen(1, handles_signals=None), frozenset()) is None


def test_a_stack_is_of_a_thread_by_its_number_with_python_3_10(start: Start) -> None:
    """Which does not keep it, and py-spy finds it only where it stops the process."""
    program = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    process = start(program, python=interpreter("3.10"))
    wait_until(lambda: len(proc.numbers(process.pid, "task") or ()) == 2, 20, "its thread")

    def numbers() -> list[int | None]:
        command = pyspy.command(pyspy.find(), process.pid, nonblocking=True)
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [thread.os_id for thread in pyspy.parse(said, process.pid) or ()]

    wait_until(lambda: sorted(numbers()) == proc.numbers(process.pid, "task"), 20, "both numbers")


STEPS_ELSEWHERE = """
import signal, threading, time, watchdog_train
signal.signal(signal.SIGUSR1, lambda *_: None)
def train():
    watchdog_train.beat()
    print(threading.get_native_id(), flush=True)
    time.sleep(600)
watchdog_train.beat()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_the_thread_that_made_the_last_beat_decides(tmp_path: Path) -> None:
    """Its wait is that of the process; every thread's is there, with what two looks add."""
    training = Training(tmp_path)
    process = training.start(STEPS_ELSEWHERE)
    try:
        tid = int(process.stdout.readline())
        wait_of(process.pid, w.MutexWait)
        collect_tree(tmp_path, process.pid, mode="full", slot_dir=str(training.slot_dir))
        (read,) = read_bundle(tmp_path / "out").evidence.processes
        assert (read.deciding_tid, read.handles_signals) == (tid, (signal.SIGUSR1,))
        assert isinstance(read.wait, w.SleepWait)
        assert read.thread_waits[tid].wait == read.wait
        assert isinstance(read.thread_waits[process.pid].wait, w.MutexWait)
        assert read.thread_waits[process.pid].unchanged
        assert {thread.os_id for thread in read.threads} <= set(read.thread_waits)
    finally:
        process.kill()
        process.communicate(timeout=10)
