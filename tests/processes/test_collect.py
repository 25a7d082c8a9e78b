from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from tests.processes.collecting import collect_tree, fake_pyspy, request_for, state_of
from tests.support import end_process, run_command, start_program, wait_until, write_slot
from watchdog_train.client import layout
from watchdog_train.core.model import ExitStatus, Member
from watchdog_train.evidence import pyspy
from watchdog_train.evidence.bundle import read_bundle
from watchdog_train.evidence.collect import collect
from watchdog_train.evidence.discover import tree_of
from watchdog_train.evidence.request import read_result
from watchdog_train.store.control import ControlPage
from watchdog_train.system import current
from watchdog_train.whole_files import replace_json


@pytest.fixture
def program(tmp_path):
    started = []

    def start(name, *args):
        process = start_program(name, *args, cwd=tmp_path, ready=True)
        started.append(process)
        return process

    yield start
    for process in started:
        end_process(process)


def _sleeps(pid):
    """In clock_nanosleep: the interpreter has started."""
    with open(f"/proc/{pid}/wchan") as file:
        return "nanosleep" in file.read()


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    wait_until(lambda: _sleeps(process.pid), 20, "the sleeper sleeps")
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


@pytest.mark.parametrize("mode", ["look", pytest.param("full", marks=pytest.mark.slow)])
def test_a_worker_on_a_lock_held_at_fork_is_proven(tmp_path, program, mode):
    """A real DataLoader fork deadlock is named with its worker, and can never end."""
    process = program("loader_fork_lock.py")
    wait_until(lambda: len(tree_of(current(), process.pid)) > 1, 20, "workers")

    def proven():
        found = collect_tree(tmp_path, process.pid, mode)
        return found if found.patience.row == "proven" else None

    result = wait_until(proven, 30, "the workers reach the lock")
    found = result.explanation
    assert found.family == "dataloader-worker-stuck"
    assert found.remedies[0].name == "num-workers-0"
    assert found.root.who.role == "worker"
    assert found.root.own.function == "__getitem__"
    assert result.missing == ()


def test_a_sleeping_worker_is_stuck_but_not_proven(tmp_path, program):
    """A worker asleep may wake up: the same family, no proof."""
    result = collect_tree(tmp_path, program("loader_sleep.py").pid, "look")
    assert result.explanation.family == "dataloader-worker-stuck"
    assert result.patience.row != "proven"


@pytest.mark.parametrize(
    "name", ["ctypes_gil", pytest.param("ctypes_nogil", marks=pytest.mark.slow)]
)
def test_a_deadlock_in_c_is_captured_and_proven(tmp_path, program, name):
    """Stacks come back with the interpreter lock held in C, and nobody is left to end the wait."""
    process = program("hangs.py", name)
    result = collect_tree(tmp_path, process.pid, "look")
    assert result.captured == 1
    assert result.patience.row == "proven"


def test_a_stopped_process_is_read_and_stays_stopped(tmp_path, sleeper):
    """Somebody's SIGSTOP is not undone, and stacks come back all the same."""
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(sleeper.pid) == "T", 5, "stopped")
    result = collect_tree(tmp_path, sleeper.pid)
    assert result.captured == 1
    assert result.explanation.kind == "stopped"
    assert state_of(sleeper.pid) == "T"


def test_a_zombie_and_a_reused_pid_are_named(tmp_path):
    """What cannot be captured says why."""
    dead = subprocess.Popen(["true"])
    wait_until(lambda: state_of(dead.pid) == "Z", 5, "zombie")
    try:
        members = (
            Member(pid=dead.pid, start=0, role="worker"),
            Member(pid=os.getpid(), start=1, role="rank"),
        )
        result = collect(request_for(tmp_path, members))
    finally:
        dead.wait()
    whys = {missing.pid: missing.why for missing in result.missing}
    assert "zombie" in whys[dead.pid]
    assert "another's" in whys[os.getpid()]


REFUSES = "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1"


@pytest.mark.parametrize(
    ("body", "why"),
    [(None, "pip install py-spy"), (REFUSES, "SYS_PTRACE"), ("exec sleep 600", "killed")],
    ids=["missing", "refused", "hangs"],
)
def test_a_tool_that_gives_no_stacks_is_told_in_time(tmp_path, sleeper, body, why):
    """In words a person can act on; it costs the stacks and its own time limit, not the bundle."""
    started = time.monotonic()
    tool = fake_pyspy(tmp_path, body) if body else lambda: None
    result = collect_tree(tmp_path, sleeper.pid, find_pyspy=tool, process_s=0.5)
    assert time.monotonic() - started < 5
    assert why in result.missing[0].why
    assert (tmp_path / "out" / "SUMMARY.md").is_file()


def test_a_target_left_stopped_goes_on(tmp_path, sleeper):
    """A debugger that leaves its target stopped is undone."""
    stopped = f"grep -q 'State:.T' /proc/{sleeper.pid}/status"
    body = f"kill -STOP {sleeper.pid}; until {stopped}; do :; done; exit 1"
    leaver = fake_pyspy(tmp_path, body)
    collect_tree(tmp_path, sleeper.pid, find_pyspy=leaver)
    wait_until(lambda: state_of(sleeper.pid) == "S", 5, "the target sleeps on")
    notes = read_bundle(tmp_path / "out").evidence.processes[0].notes
    assert any("continued it" in note for note in notes)


HANDLER = """
import faulthandler, signal, sys, time
out = open(sys.argv[1], "w")
faulthandler.register(signal.SIGURG, file=out, all_threads=True)
print("ready", flush=True)
def waits_here():
    time.sleep(600)
waits_here()
"""


@pytest.mark.parametrize(
    ("registered", "age", "kill_follows", "why"),
    [
        (True, 0, True, ""),
        (True, 0, False, "pulse thread did not answer"),
        (False, 0, True, "not in place"),
        (True, 1, True, "no fault handler is registered"),
    ],
)
def test_the_fault_handler_is_asked_only_before_a_kill(
    tmp_path, registered, age, kill_follows, why
):
    """Registered: stacks without ptrace. A slot that only claims it, or is that of an earlier
    process with this pid: no signal, and it lives on.
    """
    register = "faulthandler.register" if registered else "(lambda *a, **k: 0)"
    code = HANDLER.replace("faulthandler.register", register)
    dump = tmp_path / "dump.txt"
    argv = [sys.executable, "-c", code, str(dump)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        who = current().identity(process.pid)
        write_slot(tmp_path, who.pid, W_START=who.start - age, W_FAULT_HANDLER=signal.SIGURG)
        (tmp_path / f"{who.pid}.dump.txt").symlink_to(dump)
        refused = fake_pyspy(tmp_path, "echo 'Permission denied' >&2; exit 1")
        ControlPage.create(tmp_path / layout.CONTROL_FILE).close()
        result = collect_tree(
            tmp_path, who.pid, find_pyspy=refused, slot_dir=str(tmp_path), kill_follows=kill_follows
        )
        assert bool(dump.exists() and dump.read_text()) == (not why)
        assert result.captured == (not why)
        if not why:
            process_read = read_bundle(tmp_path / "out").evidence.processes[0]
            assert process_read.main.frames[0].name == "waits_here"
        else:
            assert why in result.missing[0].why
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_deadline_closes_the_bundle_with_what_is_there(tmp_path, sleeper):
    """Over the time for all, the rest is named and the bundle is written."""
    members = [Member(pid=sleeper.pid, start=0, role="rank", rank=0)]
    hanging = fake_pyspy(tmp_path, "exec sleep 600")
    started = time.monotonic()
    result = collect(request_for(tmp_path, members, deadline_s=3), find_pyspy=hanging)
    assert time.monotonic() - started < 5
    assert result.missing
    assert (tmp_path / "out" / "result.json").is_file()


def test_an_unwritable_run_directory_keeps_the_bundle_in_staging(tmp_path, sleeper):
    """Evidence is never lost to a run directory that cannot be written."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    members = [Member(pid=sleeper.pid, start=0, role="rank", rank=0)]
    request = request_for(tmp_path, members, out_dir=str(blocked / "stalls"))
    result = collect(request)
    assert result.dir == request.staging_dir
    assert read_result(request) == result
    assert read_bundle(tmp_path / "staging") is not None


def test_the_bundle_is_private_and_reads_back(tmp_path, sleeper):
    """Mode 0700 and 0600, secrets of the command line nowhere, and the same stacks from disk."""
    command = ("train.py", "--hub-token", "hunter22")
    result = collect_tree(tmp_path, sleeper.pid, told={"command": command})
    out = tmp_path / "out"
    kept = [path.read_text() for path in out.rglob("*") if path.is_file()]
    assert not any("hunter22" in text for text in kept)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert stat.S_IMODE((out / "verdict.json").stat().st_mode) == 0o600
    bundle = read_bundle(out)
    assert bundle.evidence.processes[0].main is not None
    assert bundle.verdict.processes == result.processes


def test_the_module_runs_as_a_program(tmp_path, sleeper):
    """`python -m watchdog_train.evidence.collect REQUEST` leaves its answer in result.json."""
    request = request_for(tmp_path, [Member(pid=sleeper.pid, start=0, role="rank")], "look")
    replace_json(tmp_path / "request.json", request)
    argv = [sys.executable, "-m", "watchdog_train.evidence.collect", str(tmp_path / "request.json")]
    subprocess.run(argv, check=True, timeout=60)
    assert read_result(request).captured == 1


def test_a_crash_is_told_from_its_output_and_status(tmp_path, monkeypatch):
    """Nothing lives any more: log and exit status decide, a 1 GiB log included.

    Nor is there anybody for a second look, for which the next attempt would wait.
    """
    monkeypatch.setattr("watchdog_train.evidence.collect._APART_S", 60.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(
            b"\nHF_TOKEN=hf_abcdefghijklmnopqrstuv\ntorch.OutOfMemoryError: CUDA out of memory\n"
        )
    rank, keeper = (gone.pid, "rank"), (os.getpid(), "keeper")
    members = [Member(pid=pid, start=0, role=role) for pid, role in (rank, keeper)]
    told = {"why": "crash", "exit": ExitStatus(code=1, signal=None, how_known="keeper")}
    request = request_for(tmp_path, members, told=told, log_files=(str(log),))
    started = time.monotonic()
    result = collect(request)
    assert time.monotonic() - started < 3
    assert result.explanation.family == "cuda-oom"
    assert "hf_abc" not in (tmp_path / "out" / "log-tail.txt").read_text()


def test_a_dump_of_its_own_shell_leaves_itself_out(tmp_path):
    """Whoever looks at the shell it was started from is no rank of that shell's training."""
    wtrain = f'"{sys.executable}" -m watchdog_train dump --pid $$ --json; exit $?'
    answer = json.loads(run_command(["sh", "-c", wtrain], cwd=tmp_path).stdout)
    (process,) = answer["processes"]
    assert process["role"] == "other"
    show = [sys.executable, "-m", "watchdog_train", "show", "--json"]
    shown = run_command(show, cwd=tmp_path)
    assert json.loads(shown.stdout)["dir"] == answer["dir"], "it is the newest there is here"


def test_what_fails_once_is_tried_again_without_stopping(tmp_path, sleeper):
    """A stack that changed while it was read is no reason to go without one."""
    real = pyspy.find()
    once = (
        f'test -e "$0.again" && exec {real} "$@"; touch "$0.again"; echo "Error: moved" >&2; exit 1'
    )
    result = collect_tree(tmp_path, sleeper.pid, "look", find_pyspy=fake_pyspy(tmp_path, once))
    assert result.captured == 1
