"""What a thread waits for, named exactly: real processes that wait, read from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from watchdog_train.core.model import waits as w
from watchdog_train.evidence.process_look import look, settled, thread_reader

if sys.platform != "linux":
    pytest.skip("by Linux's system calls", allow_module_level=True)

from watchdog_train.system.waits import WaitReader

pytestmark = pytest.mark.processes
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A Python in the test's folder; it and what it has started end with the test."""
    started = []

    def begin(program: str, **streams: int) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program)],
                cwd=tmp_path,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **streams},
            )
        )
        return started[-1]

    yield begin
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


def wait_of(pid: int, kind: type[w.Wait], tid: int | None = None) -> w.Wait:
    """The wait of a thread (of the main one) as soon as it is of this kind, and stays so."""
    found: list[w.Wait] = []

    def look() -> bool:
        facts = WaitReader().threads(pid, only=[tid or pid])
        found[:] = [fact.wait for fact in facts]
        return bool(found) and isinstance(found[0], kind)

    wait_until(look, 20, f"a wait of {kind.__name__}")
    return found[0]


def pids(refs: w.Refs) -> set[int]:
    return {ref.pid for ref in refs}


def test_a_fifo_is_named_by_its_path_and_not_opened(start: Start, tmp_path: Path) -> None:
    """Nobody has its other end; looking at it does not release whoever opens it."""
    os.mkfifo(tmp_path / "ckpt.pt")
    process = start("open('ckpt.pt', 'wb')")
    wait = wait_of(process.pid, w.FileWait)
    assert (wait.call, wait.kind) == ("open", "fifo")
    assert (wait.path, wait.others, wait.unlinked) == (str(tmp_path / "ckpt.pt"), (), False)
    assert wait_of(process.pid, w.FileWait) == wait


def test_the_other_end_of_a_pipe_is_named(start: Start) -> None:
    """By direction: the reader's wait names who can write, itself included when it can."""
    read_end, write_end = os.pipe()
    writer = start("import time; time.sleep(600)", stdout=write_end)
    reader = start("import os; os.read(0, 1)", stdin=read_end)
    os.close(read_end)
    os.close(write_end)
    wait = wait_of(reader.pid, w.PipeWait)
    assert (wait.call, pids(wait.others)) == ("read", {writer.pid})
    own = start("import os; r, w = os.pipe(); os.read(r, 1)")
    assert pids(wait_of(own.pid, w.PipeWait).others) == {own.pid}


def test_a_pipe_that_is_full_names_its_reader(start: Start) -> None:
    read_end, write_end = os.pipe()
    reader = start("import time; time.sleep(600)", stdin=read_end)
    writer = start("import os\nwhile True: os.write(1, b'x' * 4096)", stdout=write_end)
    os.close(read_end)
    os.close(write_end)
    wait = wait_of(writer.pid, w.PipeWait)
    assert (wait.call, pids(wait.others)) == ("write", {reader.pid})


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
    run = subprocess.run(
        ["unshare", "-m", *inside],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if "mount" in run.stderr:
        pytest.skip(run.stderr)
    assert run.stdout == "() False\n", run.stderr


def test_a_lock_is_held_by_all_who_inherited_it(start: Start, tmp_path: Path) -> None:
    """flock taken before a fork whose parent has died: the child is named."""
    holder = start(
        """
        import fcntl, os, time
        file = open("lock", "w"); fcntl.flock(file, fcntl.LOCK_EX)
        if os.fork(): os._exit(0)
        open("child", "w").write(str(os.getpid())); time.sleep(600)
        """
    )
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), 20, "it")
    holder.wait()
    process = start("import fcntl; fcntl.flock(open('lock'), fcntl.LOCK_EX)")
    wait = wait_of(process.pid, w.FileLockWait)
    assert wait.path == str(tmp_path / "lock")
    assert pids(wait.holders) == {int((tmp_path / "child").read_text())}
    os.kill(int((tmp_path / "child").read_text()), 9)
    other = start(
        "import fcntl, time; f = open('p', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)"
    )
    wait_of(other.pid, w.SleepWait)
    posix = start("import fcntl; fcntl.lockf(open('p', 'w'), fcntl.LOCK_EX)")
    assert pids(wait_of(posix.pid, w.FileLockWait).holders) == {other.pid}


def test_a_server_on_this_host_is_named(start: Start, tmp_path: Path) -> None:
    """The address, and the process that has not answered; a listener waits for anybody."""
    server = start(
        """
        import socket, time
        s = socket.create_server(("127.0.0.1", 0)); open("port", "w").write(str(s.getsockname()[1]))
        c, _ = s.accept(); time.sleep(600)
        """
    )
    port = wait_until(
        lambda: (tmp_path / "port").exists() and (tmp_path / "port").read_text(), 20, "it"
    )
    listens = wait_of(server.pid, w.TcpWait)
    assert (listens.call, listens.address) == ("accept", f"127.0.0.1:{port}")
    client = start(f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)")
    wait = wait_of(client.pid, w.TcpWait)
    assert (wait.call, wait.address, pids(wait.others)) == (
        "read",
        f"127.0.0.1:{port}",
        {server.pid},
    )


def test_the_other_end_of_a_unix_socket_is_named(start: Start) -> None:
    process = start(
        """
        import os, socket, time
        a, b = socket.socketpair()
        if os.fork() == 0: a.close(); time.sleep(600)
        b.close(); a.recv(1)
        """
    )
    wait = wait_of(process.pid, w.PipeWait)
    assert wait.call == "read"
    assert len(wait.others) == 1
    assert wait.others[0].pid != process.pid


def test_a_child_is_named_in_every_way_to_wait_for_it(start: Start) -> None:
    """waitpid, subprocess, multiprocessing's join with a time limit."""
    plain = start("import subprocess; subprocess.run(['sleep', '600'])")
    wait_until(  # before, it is the copy of its parent that has not become it yet
        lambda: [c.name for c in wait_of(plain.pid, w.ChildWait).children] == ["sleep"], 20, "sleep"
    )
    joins = start(
        """
        import multiprocessing, time
        p = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        p.start(); p.join(500)
        """
    )
    wait = wait_of(joins.pid, w.PipeWait)
    assert wait.timed
    assert pids(wait.others) - {joins.pid}


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


def test_a_mutex_names_its_owner_and_whether_it_lives(start: Start, tmp_path: Path) -> None:
    """Held by a thread of the process, and held by nobody: it was held when the process forked."""
    mutex = """
        import ctypes, os, threading, time
        lib = ctypes.CDLL(None); m = ctypes.create_string_buffer(64)
        lib.pthread_mutex_init(m, None)
        def hold():
            lib.pthread_mutex_lock(m); open("tid", "w").write(str(threading.get_native_id()))
            time.sleep(600)
        threading.Thread(target=hold, daemon=True).start()
        while not (os.path.exists("tid") and open("tid").read()): time.sleep(0.01)
    """
    process = start(mutex + "    lib.pthread_mutex_lock(m)")
    wait = wait_of(process.pid, w.MutexWait)
    assert wait.owner_tid == int((tmp_path / "tid").read_text())
    assert (wait.owner_lives, wait.timed) == (True, False)
    (tmp_path / "tid").unlink()
    forks = start(
        mutex
        + """
        child = os.fork()
        if child == 0: lib.pthread_mutex_lock(m)
        open("child", "w").write(str(child)); os.waitpid(child, 0)
        """
    )
    (child,) = wait_of(forks.pid, w.ChildWait).children
    held = wait_of(child.pid, w.MutexWait)
    assert held.owner_tid == int((tmp_path / "tid").read_text())
    assert held.owner_lives is False


def test_a_lock_of_python_has_no_owner(start: Start) -> None:
    process = start("import threading; l = threading.Lock(); l.acquire(); l.acquire()")
    wait = wait_of(process.pid, w.MutexWait)
    assert (wait.owner_tid, wait.timed) == (None, False)
    timed = start("import threading; l = threading.Lock(); l.acquire(); l.acquire(timeout=500)")
    assert wait_of(timed.pid, w.MutexWait).timed


def test_who_maps_a_shared_semaphore_is_named(start: Start) -> None:
    process = start(
        """
        import multiprocessing, time
        context = multiprocessing.get_context("fork"); s = context.Semaphore(0)
        context.Process(target=time.sleep, args=(600,), daemon=True).start()
        s.acquire()
        """
    )
    wait = wait_of(process.pid, w.SharedSemaphoreWait)
    assert "/dev/shm/" in wait.path
    assert len(wait.others) == 1


def test_a_sleep_tells_when_it_ends(start: Start) -> None:
    for program in (
        "import time; time.sleep(300)",
        "import select; select.select([], [], [], 300)",
    ):
        wait = wait_of(start(program).pid, w.SleepWait)
        assert 250 < wait.left_s <= 300


def test_of_several_all_are_named(start: Start) -> None:
    """poll, select and epoll on two pipes, with their time limit."""
    pipes = "import os, select; (a, x), (b, y) = os.pipe(), os.pipe()\n"
    for program in (
        "p = select.poll(); p.register(a, 1); p.register(b, 1); p.poll(400_000)",
        "select.select([a, b], [], [], 400)",
        "p = select.epoll(); p.register(a, 1); p.register(b, 1); p.poll(400)",
    ):
        process = start(pipes + program)
        wait = wait_of(process.pid, w.PollWait)
        assert [type(each) for each in wait.waits] == [w.PipeWait] * 2
        assert all(pids(each.others) == {process.pid} for each in wait.waits)
        assert 300 < wait.left_s <= 400


def test_stopped_computing_and_ended(start: Start) -> None:
    process = start("while True: pass")
    wait_of(process.pid, w.Running)
    os.kill(process.pid, 19)
    assert not wait_of(process.pid, w.Stopped).traced
    os.kill(process.pid, 9)
    wait_of(process.pid, w.Ended)


def test_a_parent_in_vfork_waits_for_its_child(start: Start, tmp_path: Path) -> None:
    """It shows state D, which is no disk: the child opens its program, a FIFO, for ever."""
    os.mkfifo(tmp_path / "out")
    process = start(
        """
        import os
        opens = [(os.POSIX_SPAWN_OPEN, 1, "out", 1, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)
        """
    )
    (child,) = wait_of(process.pid, w.ChildWait).children
    assert wait_of(child.pid, w.FileWait).path == str(tmp_path / "out")


def test_a_terminal_is_named(start: Start) -> None:
    ours, theirs = os.openpty()
    process = start("input()", stdin=theirs)
    os.close(theirs)
    wait = wait_of(process.pid, w.TerminalWait)
    assert wait.path.startswith("/dev/pts/")
    os.close(ours)


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
    first, second = look(process.pid, 0.0, thread_reader()), look(process.pid, 1.0, thread_reader())
    facts = settled(first, second)
    assert [type(fact.wait) for fact in facts] == [w.SleepWait] + [w.MutexWait] * 70
    assert all(fact.unchanged and 0 <= fact.idle_s < 60 for fact in facts)
