"""What the operating system is asked: the same contract for every implementation that answers."""

from __future__ import annotations

import errno
import os
import platform
import pty
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import run_command, wait_until
from watchdog_train.core.model import ProcessId
from watchdog_train.system import current
from watchdog_train.system.linux import LinuxSystem
from watchdog_train.system.portable import PortableSystem
from watchdog_train.system.protocol import BlindError, ProcessSystem

PYTHON = sys.executable


@pytest.fixture(params=[LinuxSystem, PortableSystem])
def system(request: pytest.FixtureRequest) -> ProcessSystem:
    chosen: ProcessSystem = request.param()
    return chosen


@pytest.fixture
def linux() -> LinuxSystem:
    return LinuxSystem()


class Started:
    """Processes that a test has started, ended with it."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def python(self, program: str, *arguments: str) -> tuple[int, bytes]:
        """The pid of a program, and the line that it has written."""
        process = self(PYTHON, "-c", program, *arguments, stdout=subprocess.PIPE)
        return process.pid, process.stdout.readline()

    def __call__(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("start_new_session", True)
        process = subprocess.Popen(argv, **options)
        self.processes.append(process)
        return process


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def identity_of(system: ProcessSystem, pid: int) -> ProcessId:
    who = system.identity(pid)
    assert who is not None
    return who


# -- Contract: Linux and portable -----------------------------------------------------------------


def test_choice_of_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gets its own implementation; WTRAIN_SYSTEM=portable takes psutil's."""
    assert current().name == "linux"
    monkeypatch.setenv("WTRAIN_SYSTEM", "portable")
    assert current().name == "portable"


def test_identity_is_stable_and_ends_with_the_process(
    system: ProcessSystem, start: Started
) -> None:
    """The same process has the same identity at every look; a zombie is not alive, nor is gone."""
    process = start("sleep", "60")
    who = identity_of(system, process.pid)
    assert identity_of(type(system)(), process.pid) == who
    assert system.is_alive(who) is True
    assert system.is_alive(ProcessId(who.pid, who.start + 1)) is False
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: system.is_alive(who) is False, 5, "the zombie counts as dead")
    assert identity_of(system, process.pid) == who
    assert system.send_signal(who, signal.SIGTERM) == "gone"
    process.wait(5)
    assert system.identity(process.pid) is None
    assert system.is_alive(who) is False


def test_wrong_start_is_never_signalled(system: ProcessSystem, start: Started) -> None:
    """A pid that belongs to another process by now is left alone."""
    process = start("sleep", "60")
    who = identity_of(system, process.pid)
    reused = ProcessId(who.pid, who.start - 1)
    assert system.send_signal(reused, signal.SIGKILL) == "not-ours"
    assert system.send_signal_to_group(reused, signal.SIGKILL) == "not-ours"
    assert system.is_alive(who) is True
    assert system.send_signal(who, signal.SIGKILL) == "sent"
    assert process.wait(5) == -9
    assert system.send_signal(who, signal.SIGKILL) == "gone"


@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")
def test_a_number_that_a_thread_has_by_now_is_gone() -> None:
    """New kernels answer ENOENT to pidfd_open() then, which nobody expected (seen with 6.18)."""
    linux, done = LinuxSystem(), threading.Event()
    thread = threading.Thread(target=done.wait, args=(30,))
    thread.start()
    try:
        who = ProcessId(thread.native_id, 1)
        assert linux.send_signal(who, signal.SIGKILL) in ("gone", "not-ours")
        assert linux.send_signal_to_group(who, signal.SIGKILL) in ("gone", "not-ours")
    finally:
        done.set()
        thread.join(10)


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_init_and_everybody_are_never_signalled(system: ProcessSystem, pid: int) -> None:
    """Pids that mean many processes or init are refused, whatever start is claimed."""
    start = getattr(system.identity(pid), "start", 0) if pid > 0 else 0
    assert system.send_signal(ProcessId(pid, start), 0) == "not-ours"
    assert system.send_signal_to_group(ProcessId(pid, start), 0) != "sent"


def test_we_are_never_signalled(system: ProcessSystem) -> None:
    """Nor are we ourselves, nor our own group."""
    me = identity_of(system, os.getpid())
    assert system.send_signal(me, 0) == "not-ours"
    program = (
        "import os, sys\n"
        "from watchdog_train.system import linux, portable\n"
        "system = (linux.LinuxSystem if 'linux' in sys.argv else portable.PortableSystem)()\n"
        "leader = system.identity(os.getpid())\n"
        "if os.fork() == 0:\n"
        "    os._exit(system.send_signal_to_group(leader, 0) != 'not-ours')\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    run_command([PYTHON, "-c", program, system.name], start_new_session=True)


def test_group_signal_reaches_the_leaders_group(system: ProcessSystem, start: Started) -> None:
    """The group of a leader gets it whole; a process that leads no group is refused."""
    process = start("sh", "-c", "sleep 60 & echo $!; wait", stdout=subprocess.PIPE)
    inner = identity_of(system, int(process.stdout.readline()))
    leader = identity_of(system, process.pid)
    assert system.send_signal_to_group(inner, signal.SIGINT) == "not-ours"
    assert system.send_signal_to_group(leader, signal.SIGTERM) == "sent"
    assert process.wait(5) == -15
    wait_until(lambda: system.is_alive(inner) is not True, 5, "the child got it, too")


def test_stopped_process_is_seen_and_continues(system: ProcessSystem, start: Started) -> None:
    """SIGSTOP shows as state T, SIGCONT ends it."""
    process = start("sleep", "60")
    who = identity_of(system, process.pid)
    assert system.send_signal(who, signal.SIGSTOP) == "sent"
    wait_until(lambda: system.snapshot([who])[who.pid].state == "T", 5, "it is stopped")
    assert system.send_signal(who, signal.SIGCONT) == "sent"
    wait_until(lambda: system.snapshot([who])[who.pid].state == "S", 5, "it goes on")


def test_snapshot_has_the_known_and_the_new(system: ProcessSystem, start: Started) -> None:
    """A known process is in every look, a new one in the next; what is neither in a full one."""
    known = identity_of(system, start("sleep", "60").pid)
    old = start("sleep", "60")
    assert {known.pid, old.pid} <= set(system.snapshot([known]))
    new = start("sleep", "60")
    second = system.snapshot([known])
    assert {known.pid, new.pid} <= set(second)
    assert old.pid not in second
    assert second[known.pid].identity == known
    assert second[new.pid].ppid == os.getpid()
    everybody = system.snapshot([known], full=True)
    assert {known.pid, old.pid, new.pid} <= set(everybody)
    assert everybody[known.pid].io_bytes is not None
    assert everybody[old.pid].io_bytes is None
    assert old.pid not in system.snapshot([known])
    assert old.pid in system.all_processes()


def test_snapshot_counts_work(system: ProcessSystem, start: Started) -> None:
    """CPU time, that of reaped children, and bytes through system calls are counted."""
    program = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.2: pass\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "while time.process_time() < 0.2: pass\n"
        "os.write(os.open('/dev/null', os.O_WRONLY), bytes(1_000_000))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    who = identity_of(system, start.python(program)[0])
    row = system.snapshot([who])[who.pid]
    assert 0.1 < row.cpu_s < 5
    assert 0.1 < row.reaped_cpu_s < 5
    assert row.io_bytes > 1_000_000
    assert system.all_processes()[who.pid].io_bytes is None


def test_facts_about_a_process(system: ProcessSystem, start: Started, tmp_path: Path) -> None:
    """Arguments, user and environment are those it was started with."""
    process = start(
        *("sleep", "61"), cwd=tmp_path, env={"WTRAIN_TOKEN": "abc", "OTHER": "x", "PATH": "/bin"}
    )
    wait_until(lambda: system.command_line(process.pid) == ("sleep", "61"), 5, "it has started")
    assert system.user_id(process.pid) == os.getuid()
    assert system.environment(process.pid, ["WTRAIN_TOKEN", "MISSING"]) == {"WTRAIN_TOKEN": "abc"}
    os.kill(process.pid, signal.SIGKILL)
    process.wait(5)
    assert system.command_line(process.pid) is None
    assert system.user_id(process.pid) is None
    assert system.environment(process.pid, ["WTRAIN_TOKEN"]) is None


def test_unknown_is_said(start: Started) -> None:
    """What psutil cannot tell is None, never False or zero."""
    portable, pid = PortableSystem(), start("sleep", "60").pid
    asked: dict[str, tuple[Any, ...]] = {
        "waits_for_input": (pid,), "handles_signal": (pid, signal.SIGTERM),
        "ignores_signal": (pid, signal.SIGTERM), "tcp_bytes": ([pid],), "suspended_s": (),
        "boot_id": (), "become_subreaper": (), "shared_memory_names": (),
        "on_network_file_system": (Path("/"),),
    }  # fmt: skip
    told = {name: getattr(portable, name)(*about) for name, about in asked.items()}
    assert told == dict.fromkeys(asked)
    assert portable.remove_shared_memory("x") is False


# -- Linux only -----------------------------------------------------------------------------------


def test_signal_without_pidfd(
    linux: LinuxSystem, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kernel without pidfds the start is still checked, and the signal still goes."""

    def refuse(_pid: int, _flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = start("sleep", "60")
    who = identity_of(linux, process.pid)
    assert linux.send_signal(ProcessId(who.pid, who.start + 1), 9) == "not-ours"
    assert linux.send_signal(who, 15) == "sent"
    assert process.wait(5) == -15


def test_identity_is_checked_after_the_pidfd_is_opened(
    linux: LinuxSystem, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid given away between an early look and pidfd_open is not signalled.

    The reuse is played: the pidfd that is opened belongs to another process, whose start is what
    /proc then shows.
    """
    ours, other = start("sleep", "60"), start("sleep", "60")
    who = identity_of(linux, ours.pid)
    real_open = os.pidfd_open

    def open_after_reuse(pid: int, flags: int = 0) -> int:
        ours.kill()
        ours.wait(5)
        return real_open(other.pid, flags) if pid == ours.pid else real_open(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", open_after_reuse)
    assert linux.send_signal(who, 9) == "gone"
    assert other.poll() is None


def test_process_of_another_user_denies(linux: LinuxSystem, start: Started) -> None:
    """A process that we may not signal is "denied", not "gone"."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, sys\n"
        "from watchdog_train.system.linux import LinuxSystem\n"
        "s = LinuxSystem(); who = s.identity(int(sys.argv[1])); os.setuid(65534)\n"
        "print(s.send_signal(who, 15))"
    )
    process = start("sleep", "60")
    assert run_command([PYTHON, "-c", program, str(process.pid)]).stdout == "denied\n"
    assert process.poll() is None


def test_group_of_a_zombie_leader_is_reached(linux: LinuxSystem, start: Started) -> None:
    """A leader that has ended but is not reaped still names its group."""
    process = start("sh", "-c", "sleep 60 & echo $!", stdout=subprocess.PIPE)
    inner = identity_of(linux, int(process.stdout.readline()))
    leader = identity_of(linux, process.pid)
    wait_until(lambda: linux.is_alive(leader) is False, 5, "the leader is a zombie")
    assert linux.send_signal_to_group(leader, signal.SIGKILL) == "sent"
    wait_until(lambda: linux.is_alive(inner) is not True, 5, "its group is gone")


def test_name_with_parentheses_and_spaces(linux: LinuxSystem, start: Started) -> None:
    """A process may call itself anything; its fields are still found."""
    program = (
        "import ctypes, time\n"
        "ctypes.CDLL(None).prctl(15, b') Z 1 (x y', 0, 0, 0)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    pid, _ = start.python(program)
    row = linux.all_processes()[pid]
    assert row.name == ") Z 1 (x y"
    assert row.ppid == os.getpid()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of exit is another there")
def test_main_thread_gone_is_not_dead(linux: LinuxSystem, start: Started) -> None:
    """A process whose main thread has left looks like a zombie and lives on in its threads."""
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)"
    )
    process = start(PYTHON, "-c", program)
    who = identity_of(linux, process.pid)
    wait_until(lambda: linux.all_processes()[who.pid].state == "Z", 5, "the main thread has left")
    assert linux.is_alive(who) is True
    assert linux.send_signal(who, signal.SIGKILL) == "sent"
    assert process.wait(5) == -9


@pytest.mark.parametrize("words", ["input()", "import pdb; pdb.set_trace()"])
def test_prompt_on_a_terminal_waits_for_input(
    linux: LinuxSystem, start: Started, words: str
) -> None:
    """input() and the debugger's prompt on a terminal are waits for a person."""
    master, slave = pty.openpty()
    process = start(PYTHON, "-c", words, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        wait_until(lambda: linux.waits_for_input(process.pid) is True, 10, "it prompts")
    finally:
        os.close(master)


def test_only_a_read_of_descriptor_0_waits_for_input(linux: LinuxSystem, start: Started) -> None:
    """Also of a pipe; a sleep, a busy loop and a read of another descriptor are no prompts."""
    reads = start("cat", stdin=subprocess.PIPE)
    wait_until(lambda: linux.waits_for_input(reads.pid) is True, 5, "cat reads")
    asleep = start("sleep", "60")
    busy = start(PYTHON, "-c", "while True: pass")
    other = start(PYTHON, "-c", "import os; r, w = os.pipe(); os.read(r, 1)", stdin=None)
    for process in (asleep, busy, other):
        who = identity_of(linux, process.pid)
        wait_until(lambda who=who: linux.is_alive(who), 5, "it runs")
        assert linux.waits_for_input(process.pid) is False


def test_handled_signals(linux: LinuxSystem, start: Started) -> None:
    """SigCgt and SigIgn tell which signals a process handles and ignores."""
    program = (
        "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    pid, _ = start.python(program)
    for number, handled in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
        assert linux.handles_signal(pid, number) is handled
        assert linux.ignores_signal(pid, number) is not handled
    assert linux.process_group(pid) == os.getpgid(pid)


def test_threads_in_line_for_a_cpu(linux: LinuxSystem, start: Started) -> None:
    """Two that want the same CPU wait for one another; a thread that sleeps does not wait."""
    program = (
        "import os, threading, time\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('on', flush=True)\n"
        "while True: pass"
    )
    pid, _ = (start.python(program)[0] for _ in range(2))
    before = linux.cpu_waits([pid])
    if not before:
        pytest.skip("this kernel does not keep schedstat")
    assert len(before[pid]) == 2

    def waited_s() -> float:
        now = linux.cpu_waits([pid, 2**22 + 1])
        assert list(now) == [pid], "nobody has that other number"
        (sleeper,) = set(now[pid]) - {pid}
        assert now[pid][sleeper].waited_s - before[pid][sleeper].waited_s < 0.1
        return now[pid][pid].waited_s - before[pid][pid].waited_s

    wait_until(lambda: waited_s() > 0.3, 20, "a third of a second in line")


def test_tcp_bytes_count_what_arrives_and_never_shrink(linux: LinuxSystem, start: Started) -> None:
    """Bytes received by a process over TCP are counted, while it reads and after it has closed."""
    program = (
        "import socket, sys\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "while s.recv(65536): pass\n"
        "s.close()\nsys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        process = start(PYTHON, "-c", program, port, stdin=subprocess.PIPE)
        server.settimeout(10)
        connection, _ = server.accept()
    if linux.tcp_bytes([process.pid]) is None:
        pytest.skip("this kernel does not answer sock_diag")
    with connection:
        for sent in range(100_000, 400_000, 100_000):
            connection.sendall(bytes(100_000))
            wait_until(
                lambda sent=sent: (linux.tcp_bytes([process.pid]) or 0) >= sent, 5, f"{sent} bytes"
            )
    total = linux.tcp_bytes([process.pid])
    assert 300_000 <= total < 301_000
    who = identity_of(linux, process.pid)
    process.kill()
    process.wait(5)
    assert linux.tcp_bytes([who.pid]) == total, "a closed socket's bytes stay counted"


def test_what_is_told_to_a_launcher_is_no_sign_of_life(linux: LinuxSystem, start: Started) -> None:
    """A connection to a launcher does not count; one to another member of the tree does."""
    serves = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\n"
        "connection, _ = server.accept()\n"
        "while True: connection.sendall(connection.recv(100))\n"
    )
    asks = (
        "import socket, sys, time\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "for _ in range(100): s.sendall(bytes(100)); s.recv(100)\n"
        "print('asked', flush=True); time.sleep(1e6)\n"
    )
    store, said = start.python(serves)
    port = int(said)
    rank, _ = start.python(asks, str(port))
    alone = linux.tcp_bytes([rank])
    if alone is None:
        pytest.skip("this kernel does not answer sock_diag")
    assert alone >= 20_000
    assert LinuxSystem().tcp_bytes([rank], [store]) == 0
    assert LinuxSystem().tcp_bytes([rank], (), [port]) == 0, "it may be out of our sight"
    assert LinuxSystem().tcp_bytes([rank], (), [port + 1]) == alone
    assert (LinuxSystem().tcp_bytes([rank, store]) or 0) > alone


def test_what_a_rank_asks_its_own_store_is_no_sign_of_life(start: Started) -> None:
    """Rank 0 holds the store that all ranks meet at, and waits in it by asking it."""
    asks = (
        "import socket, time\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "s = socket.create_connection(server.getsockname())\n"
        "store, _ = server.accept()\n"
        "for _ in range(100): s.sendall(bytes(100)); store.sendall(store.recv(100)); s.recv(100)\n"
        "print('asked', flush=True); time.sleep(1e6)\n"
    )
    rank, _ = start.python(asks)
    if LinuxSystem().tcp_bytes([rank]) is None:
        pytest.skip("this kernel does not answer sock_diag")
    assert LinuxSystem().tcp_bytes([rank], [rank]) == 0


def test_shared_memory_is_listed_without_ours(linux: LinuxSystem) -> None:
    """Segments are listed and removed; what begins with wtrain- is neither."""
    foreign, ours = Path("/dev/shm/torch_test_segment"), Path("/dev/shm/wtrain-test-segment")
    for path in (foreign, ours):
        path.write_bytes(b"x")
        path.chmod(0o644)
    try:
        names = linux.shared_memory_names()
        assert foreign.name in names
        assert ours.name not in names
        assert linux.remove_shared_memory(foreign.name) is False, "others may have it mapped"
        foreign.chmod(0o600)
        assert linux.remove_shared_memory(foreign.name) is True
        assert linux.remove_shared_memory(foreign.name) is False
        assert linux.remove_shared_memory(ours.name) is False
        assert linux.remove_shared_memory("../etc/hostname") is False
        assert ours.exists()
    finally:
        ours.unlink()
        foreign.unlink(missing_ok=True)


def test_slot_directory_is_private_by_name(
    linux: LinuxSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On /dev/shm here; in XDG_RUNTIME_DIR where there is no such place with room."""
    name = f"wtrain-{os.getuid()}-run-1"
    assert linux.slot_directory("run-1") == Path("/dev/shm") / name
    monkeypatch.setattr("watchdog_train.system.linux.SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert linux.slot_directory("run-1") == tmp_path / name


def test_facts_of_the_machine(linux: LinuxSystem, start: Started, tmp_path: Path) -> None:
    """The kernel's boot, clocks and mounts; a process without sockets has moved nothing."""
    assert linux.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for system in (linux, PortableSystem()):  # the clock that the client writes into its slot
        before = time.clock_gettime(time.CLOCK_MONOTONIC)
        assert before <= system.monotonic() <= time.clock_gettime(time.CLOCK_MONOTONIC)
    assert abs(linux.suspended_s() - linux.suspended_s()) < 0.01
    assert linux.on_network_file_system(tmp_path / "not" / "yet") is False
    assert linux.tcp_bytes([start("sleep", "60").pid]) == 0


def test_who_cannot_be_read_is_not_gone(system: ProcessSystem) -> None:
    """Without a descriptor nobody's end is told; with some again everybody is there."""
    me = system.identity(os.getpid())
    assert me is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(BlindError) as refused:
            system.snapshot((me,))
        with pytest.raises(BlindError):
            system.all_processes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert refused.value.errno == errno.EMFILE
    assert system.snapshot((me,))[me.pid].identity == me


@pytest.mark.parametrize("refused", [False, True], ids=["copied", "by its name"])
def test_a_pipe_of_another_process_is_read_on(
    linux: LinuxSystem, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer needs a reader when that process dies; an old identity gives nothing."""
    if refused:
        monkeypatch.setattr("watchdog_train.system.linux.PIDFD_GETFD_MACHINES", ())
    read, write = os.pipe()
    holder = subprocess.Popen(["sleep", "600"], stdin=read)
    try:
        os.close(read)
        who = linux.identity(holder.pid)
        assert linux.take_descriptor(ProcessId(who.pid, who.start + 1), 0) is None
        assert linux.take_descriptor(who, 1000) is None
        taken = linux.take_descriptor(who, 0)
        assert taken is not None
        assert not os.get_inheritable(taken)
    finally:
        holder.kill()
        holder.wait(10)
    os.write(write, b"on")
    assert os.read(taken, 10) == b"on"
    os.close(taken)
    os.close(write)


@pytest.mark.needs_subreaper
def test_subreaper_adopts(start: Started) -> None:
    """An orphan among our descendants becomes our child."""
    program = (
        "import os, sys, time\n"
        "from watchdog_train.system.linux import LinuxSystem\n"
        "assert LinuxSystem().become_subreaper() is True\n"
        "r, w = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        while os.getppid() == int(sys.argv[1] or 0): pass\n"
        "        time.sleep(0.2); os.write(w, str(os.getppid()).encode()); os._exit(0)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(int(os.read(r, 20)) == os.getpid())"
    )
    assert start.python(program, "0")[1] == b"True\n"
