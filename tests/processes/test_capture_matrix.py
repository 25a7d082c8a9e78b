"""What can be captured of a process in each situation, and by which way: docs/evidence.md."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.client_runs import Training
from tests.processes.collecting import collect_tree, fake_pyspy, request_for, state_of
from tests.support import interpreter, run_command, wait_until
from watchdog_train.client import layout
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.evidence.discover import slot_dir_of, tree_of
from watchdog_train.evidence.request import read_result
from watchdog_train.system import current
from watchdog_train.whole_files import replace_json

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")

is_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")

WATCHED = """
import ctypes, os, sys, time
import watchdog_train
watchdog_train.beat()
def undumpable():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    sleeps()
def sleeps():
    print("ready", flush=True)
    time.sleep(600)
def spins():
    print("ready", flush=True)
    while True:
        pass
def holds_gil():
    print("ready", flush=True)
    semaphore = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).sem_init(semaphore, 0, 0)
    ctypes.PyDLL(None).sem_wait(semaphore)
globals()[sys.argv[1]]()
"""
VFORK = """
import ctypes, time
print("ready", flush=True)
if ctypes.CDLL(None).vfork() == 0:
    time.sleep(600)
"""


@pytest.fixture
def watched(tmp_path):
    """Starts a training that the client watches."""
    started = []

    def start(what):
        training = Training(tmp_path)
        training.control().close()
        process = training.start(WATCHED, arguments=(what,))
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        slot = training.slot_dir / f"{process.pid}{layout.SLOT_SUFFIX}"
        wait_until(slot.exists, 10, "its slot")
        return process, str(training.slot_dir)

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=20)


@pytest.fixture
def started():
    """Children of the test that are ready, ended with their groups."""
    found = []

    def start(argv, else_skips=""):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        found.append(process)
        if process.stdout.readline() != "ready\n":
            pytest.skip(else_skips) if else_skips else pytest.fail("it does not start")
        return process

    yield start
    for process in found:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


def of(tmp_path):
    """The one process of the bundle."""
    (process,) = read_bundle(tmp_path / "out").evidence.processes
    return process


SITUATIONS = [
    ("sleeps", True, "py-spy"),
    ("spins", True, "py-spy"),
    ("holds_gil", True, "py-spy"),
    ("sleeps", False, "control page"),
    ("spins", False, "control page"),
    ("holds_gil", False, "fault handler"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "tool", "how"), SITUATIONS)
def test_running_and_waiting_processes(tmp_path, watched, what, tool, how):
    """With and without py-spy, the interpreter lock held in C included."""
    process, slot_dir = watched(what)
    found = {} if tool else {"find_pyspy": lambda: None}
    result = collect_tree(
        tmp_path, process.pid, slot_dir=slot_dir, kill_follows=how == "fault handler", **found
    )
    assert result.captured == 1, result.missing
    assert of(tmp_path).how.removesuffix(" native") == how
    assert any(frame.name == what for frame in of(tmp_path).main.frames)
    assert process.poll() is None
    assert state_of(process.pid) in "SR"


@pytest.mark.slow
def test_a_dump_by_pid_of_a_watched_process_asks_it_from_inside(tmp_path, watched):
    """Its environment names where its slot is; the user need not know of the run."""
    process, slot_dir = watched("sleeps")
    members = tree_of(current(), process.pid)
    assert str(slot_dir_of(current(), members)) == slot_dir
    assert slot_dir_of(current(), tree_of(current(), os.getpid())[:1]) is None


@pytest.mark.slow
def test_a_stopped_process_cannot_be_asked_from_inside(tmp_path, watched):
    """That is said; test_collect.py reads one by py-spy."""
    process, slot_dir = watched("sleeps")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process.pid) == "T", 5, "stopped")
    result = collect_tree(tmp_path, process.pid, slot_dir=slot_dir, find_pyspy=lambda: None)
    assert state_of(process.pid) == "T"
    assert "pip install py-spy" in result.missing[0].why


def test_nobody_attaches_to_a_process_in_the_kernel(tmp_path, started):
    """A real state D (the parent of a vfork): named with the place, and no tool is started."""
    process = started([sys.executable, "-c", VFORK])
    wait_until(lambda: state_of(process.pid) == "D", 10, "in the kernel")
    called = tmp_path / "called"
    spy = fake_pyspy(tmp_path, f'echo "$@" >> {called}; exit 1')
    result = collect_tree(tmp_path, process.pid, find_pyspy=spy)
    (why,) = [missing.why for missing in result.missing if missing.pid == process.pid]
    assert "uninterruptible sleep" in why
    asked = called.read_text() if called.exists() else ""
    assert f"--pid {process.pid} " not in asked + " "


def denied(tmp_path, pid, slot_dir, prefix):
    """Collects in a process that has lost a right."""
    request = request_for(tmp_path, tree_of(current(), pid), slot_dir=slot_dir, kill_follows=True)
    replace_json(tmp_path / "request.json", request)
    command = [sys.executable, "-m", "watchdog_train.evidence.collect"]
    subprocess.run(
        [*prefix, *command, str(tmp_path / "request.json")], check=True, timeout=60, cwd="/"
    )
    return read_result(request)


@is_root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how"),
    [("sleeps", "control page"), ("holds_gil", "fault handler"), ("undumpable", "control page")],
)
def test_where_ptrace_is_denied_the_process_writes_itself(tmp_path, watched, what, how):
    """Without CAP_SYS_PTRACE, as in most containers; also for a process that is not dumpable."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv here")
    drop = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    process, slot_dir = watched(what)
    result = denied(tmp_path, process.pid, slot_dir, drop)
    assert result.captured == 1, result.missing
    assert of(tmp_path).how == how
    assert "ptrace is refused" in result.problem


@is_root
@pytest.mark.slow
def test_a_process_of_another_user_is_read_by_root(tmp_path, started):
    """Root reads everybody's."""
    process = started([sys.executable, "-c", SOMEBODY])
    assert collect_tree(tmp_path, process.pid).captured == 1


SOMEBODY = """
import os, time
os.setresuid(65534, 65534, 65534)
print("ready", flush=True)
time.sleep(600)
"""
STRANGER_COLLECTS = """
import importlib.metadata, os, sys, psutil
from watchdog_train.evidence import collect, manual
from watchdog_train.evidence.request import read_request
request = read_request(__import__("pathlib").Path(sys.argv[1]))
import watchdog_train.remedies.catalogue, watchdog_train.report.evidence_text
binary, system = collect.pyspy.find(), collect.current_system()
os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)
collect.collect(request, find_pyspy=lambda: binary, system=system)
"""


@is_root
@pytest.mark.slow
def test_a_process_of_another_user_is_named_as_such(tmp_path, started):
    """Neither user is root: no stacks, a reason that a person can act on, and a whole bundle."""
    process = started([sys.executable, "-c", SOMEBODY])
    folder = Path(os.path.realpath("/tmp")) / f"stranger-{os.getpid()}"
    folder.mkdir(mode=0o777)
    try:
        folder.chmod(0o777)
        request = request_for(folder, tree_of(current(), process.pid))
        replace_json(folder / "request.json", request)
        command = [sys.executable, "-c", STRANGER_COLLECTS, str(folder / "request.json")]
        run_command(command)
        result = read_result(request)
        assert result.captured == 0
        assert process.poll() is None
        assert result.missing[0].why
    finally:
        shutil.rmtree(folder)


@is_root
@pytest.mark.slow
def test_a_process_in_another_pid_namespace_is_read(tmp_path, started):
    """As in a container that is looked at from its host."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    process = started([*unshare, sys.executable, "-c", code], else_skips="no pid namespaces here")
    result = collect_tree(tmp_path, process.pid)
    assert result.captured == 1, result.missing
    inside = [p for p in read_bundle(tmp_path / "out").evidence.processes if p.how]
    assert inside[0].main.frames[-1].name == "<module>"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_is_read(tmp_path, started, version):
    """By py-spy, with line numbers."""
    code = "import time\ndef waits():\n    time.sleep(600)\nprint('ready', flush=True)\nwaits()"
    process = started([interpreter(version), "-c", code])
    assert collect_tree(tmp_path, process.pid).captured == 1
    frames = [frame for frame in of(tmp_path).main.frames if not frame.native]
    assert [(frame.name, frame.line) for frame in frames] == [("waits", 3), ("<module>", 5)]


@pytest.mark.slow
def test_a_tool_that_hangs_leaves_time_for_the_way_without_tools(tmp_path, watched):
    """However long py-spy may take, the process is still asked."""
    process, slot_dir = watched("sleeps")
    hanging = fake_pyspy(tmp_path, "exec sleep 600")
    started_at = time.monotonic()
    result = collect_tree(
        tmp_path, process.pid, slot_dir=slot_dir, find_pyspy=hanging, deadline_s=8
    )
    assert time.monotonic() - started_at < 10
    assert (result.captured, of(tmp_path).how) == (1, "control page")


@pytest.mark.skipif(
    not os.path.exists("/proc/sys/kernel/yama/ptrace_scope"), reason="no Yama in this kernel"
)
@pytest.mark.slow
def test_under_yama_the_training_lets_its_own_user_attach(tmp_path, watched):
    """PR_SET_PTRACER_ANY of the client: a sibling may attach under scope 1."""
    if Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "1":
        pytest.skip("ptrace_scope is not 1")
    process, slot_dir = watched("sleeps")
    assert pyspy.find() is not None
    assert collect_tree(tmp_path, process.pid, slot_dir=slot_dir).captured == 1
