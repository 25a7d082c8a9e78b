"""The keeper: exact exit status, output that never stops draining, orphans brought home."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.keeping import (
    PYTHON,
    at_gate,
    keep,
    keeper_argv,
    record,
    start_keeper_process,
    write_orders,
)
from tests.support import REPOSITORY, children_of, interpreter, is_alive, small_disk, wait_until
from watchdog_train.keeper.messages import Record
from watchdog_train.store.run_paths import TIMES_SUFFIX

needs_tmpfs_mount = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a tmpfs")


@pytest.mark.parametrize(
    ("argv", "code", "number"),
    [
        (["true"], 0, None),
        (["sh", "-c", "exit 3"], 3, None),
        (["sh", "-c", "exit 255"], 255, None),
        (["sh", "-c", "kill -9 $$"], None, 9),
        (["sh", "-c", "kill -TERM $$"], None, 15),
        (["sh", "-c", "kill -SEGV $$"], None, 11),
        (["sh", "-c", "yes | head -1; exit 4"], 4, None),  # SIGPIPE is as it was
    ],
)
def test_exit_status_is_exact(
    tmp_path: Path, argv: list[str], code: int | None, number: int | None
) -> None:
    """Exit codes and signals of the root arrive in exit.json as they were."""
    assert keep(tmp_path, argv) == 0
    ended = record(tmp_path, "exit.json")
    started = record(tmp_path, "keeper.json")
    assert (ended["code"], ended["signal"]) == (code, number)
    assert (ended["pid"], ended["start"]) == (started["pid"], started["start"])
    assert started["error"] is None
    assert ended["dropped_bytes"] == 0


@pytest.mark.parametrize(
    ("argv", "cwd", "number", "words"),
    [
        (["no-such-command-anywhere"], None, errno.ENOENT, "no-such-command-anywhere"),
        (["./plain-file"], None, errno.EACCES, "plain-file"),
        (["./garbage"], None, errno.ENOEXEC, "garbage"),
        (["true"], "/no/such/folder", errno.ENOENT, "/no/such/folder"),
    ],
)
def test_command_that_cannot_start_is_told(
    tmp_path: Path, argv: list[str], cwd: str | None, number: int, words: str
) -> None:
    """A command that is not there, may not run or has no folder is an error in keeper.json."""
    (tmp_path / "plain-file").write_text("text")
    (tmp_path / "garbage").write_bytes(b"\x01\x02")
    (tmp_path / "garbage").chmod(0o755)
    assert keep(tmp_path, argv, cwd=cwd or str(tmp_path)) == 1
    started = record(tmp_path, "keeper.json")
    assert started["error"]["errno"] == number
    assert words in started["error"]["message"]
    assert started["pid"] is None
    assert not list(tmp_path.glob("exit.json*"))


def test_large_output_keeps_the_newest_within_the_cap(tmp_path: Path) -> None:
    """300 MB pass through; the files keep at most the cap, at least half of it, and the tail."""
    lines = 3_000_000
    program = (
        "import sys\n"
        f"for n in range(0, {lines}, 1000):\n"
        "    sys.stdout.write(''.join(f'{i:099d}\\n' for i in range(n, n + 1000)))\n"
    )
    cap = 16 * 1024 * 1024
    assert keep(tmp_path, [PYTHON, "-c", program], cap_bytes=cap, timeout_s=90) == 0
    newest, older = tmp_path / "output.log", tmp_path / "output.log.1"
    kept = older.read_bytes() + newest.read_bytes()
    assert cap // 2 <= len(kept) <= cap
    numbers = [int(line) for line in kept.splitlines()]
    assert numbers == list(range(lines - len(numbers), lines))
    assert record(tmp_path, "exit.json")["dropped_bytes"] == 0


def test_output_waits_at_the_gate(tmp_path: Path) -> None:
    """With no word from a reader nothing is thrown away, and the training waits; without one it
    goes on, and the newest is kept.
    """
    gate, opens = os.pipe()
    cap = 200_000
    program = "import sys\nfor n in range(200_000): sys.stdout.write('%099d\\n' % n)"
    orders = write_orders(tmp_path, [PYTHON, "-c", program], cap_bytes=cap, gates={"output": gate})
    log, older = tmp_path / "output.log", tmp_path / "output.log.1"
    with start_keeper_process(orders, pass_fds=(gate,)) as process:
        os.close(gate)
        root = record(tmp_path, "keeper.json")["pid"]

        def waits_in_write() -> bool:
            """Because its keeper waits at the gate, not for a moment, as on a busy machine."""
            threads = Path(f"/proc/{process.pid}/task").glob("*/wchan")
            at_gate = any("poll" in thread.read_text() for thread in threads)
            return at_gate and "pipe_write" in Path(f"/proc/{root}/wchan").read_text()

        try:
            wait_until(waits_in_write, 60, "the training waits in write")
            assert log.stat().st_size <= cap // 2
            assert not older.exists()
            os.write(opens, b".")
            wait_until(lambda: older.exists() and log.exists(), 60, "one byte, one rotation")
            assert older.read_bytes().startswith(b"%099d\n" % 0)
            wait_until(waits_in_write, 60, "the training waits in write again")
            assert older.read_bytes().startswith(b"%099d\n" % 0)
        finally:
            os.close(opens)
        assert process.wait(60) == 0
    assert log.read_bytes().endswith(b"%099d\n" % 199_999)
    assert older.stat().st_size + log.stat().st_size <= cap
    assert record(tmp_path, "exit.json")["dropped_bytes"] == 0


@pytest.mark.parametrize("ranks", [False, True], ids=["one stream", "read for ranks"])
def test_training_that_ends_at_the_gate_leaves_all_of_its_output(
    tmp_path: Path, ranks: bool
) -> None:
    """Its status does not wait for the reader, and what it has written is in one file."""
    gate, opens = os.pipe()
    rank = os.pipe()
    own = {"output": {"path": "ranks/0/output.log", "fds": list(rank)}}
    orders = write_orders(
        tmp_path,
        [PYTHON, "-c", "print('x' * 3_000_000)"],
        cap_bytes=200_000,
        gates={"output": gate},
        ranks={"variable": "RANKS", "cap_bytes": 1000, "streams": [own]} if ranks else None,
    )
    with start_keeper_process(orders, pass_fds=(gate, *rank)) as process:
        for end in (gate, *rank):
            os.close(end)
        assert process.wait(30) == 0
    os.close(opens)
    assert (tmp_path / "output.log").stat().st_size == 3_000_001
    ended = record(tmp_path, "exit.json")
    assert (ended["code"], ended["dropped_bytes"]) == (0, 0)


def test_times_tell_when_what_was_written(tmp_path: Path) -> None:
    """The first write of a file is told with size 0, of the older half, too; ours is the name."""
    program = "import sys\nfor n in range(200): sys.stdout.write('x' * 999 + chr(10))"
    before = int(time.time())
    assert keep(tmp_path, [PYTHON, "-c", program], cap_bytes=200_000) == 0
    for name in ("output.log", "output.log.1"):
        (line,) = (tmp_path / f"{name}{TIMES_SUFFIX}").read_text().splitlines()
        when, size = map(float, line.split())
        assert before <= when <= time.time()
        assert size == 0


def test_exit_is_written_while_grandchildren_hold_the_pipe(tmp_path: Path) -> None:
    """A root's exit status does not wait for a grandchild that keeps the stream open."""
    program = ["sh", "-c", "echo before; sleep 60 & echo $! >left; exit 5"]
    orders = write_orders(tmp_path, program, linger_s=0.0)
    with start_keeper_process(orders) as process:
        ended = record(tmp_path, "exit.json", timeout_s=5.0)
        assert ended["code"] == 5
        assert (tmp_path / "output.log").read_text() == "before\n"
        left = int((tmp_path / "left").read_text())
        with pytest.raises(subprocess.TimeoutExpired):  # the keeper stays while somebody is left
            process.wait(0.3)
        os.kill(left, signal.SIGKILL)
        assert process.wait(15) == 0


DIES_AT_A_LINE = """
import os, signal, sys
sys.path.append(sys.argv[1])
from watchdog_train.keeper.attempt import main
me, left = os.getpid(), int(sys.argv[3])
def trace(frame, event, arg):
    global left
    if event == "line" and "keeper" in frame.f_code.co_filename and os.getpid() == me:
        left -= 1
        if left == 0:
            os.kill(me, signal.SIGKILL)
    return trace
sys.settrace(trace)
main(sys.argv[2])
"""


@pytest.mark.parametrize("step", [23, pytest.param(5, marks=pytest.mark.slow)])
def test_training_runs_on_record_or_not_at_all(tmp_path: Path, step: int) -> None:
    """Whatever line of the keeper is its last: what it has started is named by keeper.json."""
    outcomes = []
    for line in range(1, 10_000, step):
        folder = tmp_path / str(line)
        folder.mkdir()
        everybody, held = os.pipe()
        orders = write_orders(folder, ["sh", "-c", "echo $$ >ran"], inherited_fds=[held])
        argv = [PYTHON, "-I", "-S", "-c", DIES_AT_A_LINE, str(REPOSITORY), str(orders), str(line)]
        died = subprocess.run(argv, pass_fds=(held,), check=False, timeout=30).returncode != 0
        os.close(held)
        assert os.read(everybody, 1) == b"", "nobody is left who could become the training"
        os.close(everybody)
        ran = folder / "ran"
        if ran.exists():
            assert record(folder, "keeper.json", runs=None)["pid"] == int(ran.read_text())
        outcomes.append(ran.exists())
        if not died:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


ESCAPEE = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open("escaped.tmp", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()}")
os.rename("escaped.tmp", "escaped")
for name in sys.argv[1:]:
    open(name).read()
os._exit(0)
"""


def test_orphans_come_to_the_keeper_and_are_reaped(tmp_path: Path) -> None:
    """A process that has double-forked into a session of its own is the keeper's child, no zombie.

    The keeper ends when it is gone.
    """
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "escape.py").write_text(ESCAPEE)
    orders = write_orders(tmp_path, [PYTHON, "escape.py", "gate"])
    with start_keeper_process(orders) as process:
        path = tmp_path / "escaped"
        wait_until(path.exists, 10, "the grandchild has escaped")
        pid = int(path.read_text().split()[0])
        record(tmp_path, "exit.json")
        wait_until(lambda: _parent(pid) == process.pid, 10, "the orphan belongs to the keeper")
        (tmp_path / "gate").write_text("")
        assert process.wait(15) == 0
        assert not Path(f"/proc/{pid}").exists()


def test_many_orphans_leave_no_zombie_while_the_root_lives(tmp_path: Path) -> None:
    """Adopted zombies are reaped as they come, not only at the end."""
    program = (
        "import os, sys\n"
        "for _ in range(100):\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(0 if os.fork() else 9)\n"
        "    os.waitpid(pid, 0)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    read_end, write_end = os.pipe()
    orders = write_orders(tmp_path, [PYTHON, "-c", program], child_fds=None)
    with start_keeper_process(orders, stdin=read_end) as process, open(write_end, "wb") as words:
        os.close(read_end)
        root = record(tmp_path, "keeper.json")["pid"]
        log = tmp_path / "output.log"
        wait_until(lambda: log.exists() and log.read_text() == "done\n", 15, "all have forked")
        wait_until(lambda: children_of(process.pid) == [root], 5, "only the root is left")
        words.close()
        assert process.wait(15) == 0
    assert record(tmp_path, "exit.json")["code"] == 0


def test_child_gets_ordinary_signals_and_a_session_of_its_own(tmp_path: Path) -> None:
    """The training sees default signals, no blocked ones, its own session and no terminal."""
    report = (
        "import os, signal, json\n"
        "ignored = [s.name for s in signal.Signals if s.name not in ('SIGKILL', 'SIGSTOP')\n"
        "           and signal.getsignal(s) == signal.SIG_IGN]\n"
        "print(json.dumps([ignored, list(signal.pthread_sigmask(0, [])),\n"
        "                  os.getsid(0) == os.getpid() == os.getpgrp(), os.getppid()]))\n"
    )
    with start_keeper_process(write_orders(tmp_path, [PYTHON, "-c", report])) as process:
        process.wait(15)
    ignored, blocked, leads, parent = json.loads((tmp_path / "output.log").read_text())
    # Python itself ignores these two in every process.
    assert sorted(set(ignored) - {"SIGPIPE", "SIGXFSZ"}) == []
    assert blocked == []
    assert leads
    assert parent == process.pid


@pytest.mark.parametrize("ignore_hup", [True, False])
def test_nohup_is_kept_only_when_it_was_meant(tmp_path: Path, ignore_hup: bool) -> None:
    """SIGHUP is ignored by the training exactly when ignore_hup says so."""
    program = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    keep(tmp_path, [PYTHON, "-c", program], ignore_hup=ignore_hup)
    assert (tmp_path / "output.log").read_text() == f"{ignore_hup}\n"


def test_keeper_is_deaf_to_signals_meant_for_the_training(tmp_path: Path) -> None:
    """INT, HUP, TERM and QUIT sent to the keeper end neither it nor the training."""
    with at_gate(tmp_path, "read _ <gate; exit 6") as process:
        record(tmp_path, "keeper.json")
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
            process.send_signal(number)
    assert record(tmp_path, "exit.json")["code"] == 6


def test_keeper_lets_go_of_the_users_input(tmp_path: Path) -> None:
    """When the training has closed its input, who writes there gets EPIPE, not a full pipe."""
    read_end, write_end = os.pipe()
    with at_gate(tmp_path, "exec 0</dev/null; echo x; read _ <gate", stdin=read_end):
        os.close(read_end)
        log = tmp_path / "output.log"
        wait_until(lambda: log.exists() and log.read_bytes(), 10, "the input is closed")

        def nobody_reads() -> bool:
            try:
                return os.write(write_end, b"x") == 0
            except BrokenPipeError:
                return True

        try:
            # The training may print before the keeper has closed its own copy.
            wait_until(nobody_reads, 10, "the keeper has closed it, too")
        finally:
            os.close(write_end)


def test_wake_pipe_tells_of_output_and_exit_and_never_blocks(tmp_path: Path) -> None:
    """A byte arrives on output, a line on exit; a pipe that nobody empties stops nothing.

    Output does not fill it: there is room for the line.
    """
    heard, told = os.pipe()
    fcntl.fcntl(told, fcntl.F_SETPIPE_SZ, 4096)
    program = "import time\nfor i in range(300): print(i, flush=True); time.sleep(0.001)"
    orders = write_orders(tmp_path, [PYTHON, "-c", program], wake_fd=told)
    with start_keeper_process(orders, pass_fds=(told,)) as process:
        os.close(told)
        assert process.wait(20) == 0
    assert os.read(heard, 4097) == b"\nexit 0 -1\n"
    os.close(heard)
    assert record(tmp_path, "exit.json")["code"] == 0


@pytest.mark.parametrize(
    ("ending", "line"), [("exit 7", b"exit 7 -1\n"), ("kill -9 $$", b"exit -1 9\n")]
)
def test_status_is_told_when_the_folder_is_gone(tmp_path: Path, ending: str, line: bytes) -> None:
    """Without a folder for exit.json the status still reaches the pipe, and the keeper ends.

    Output goes on into the file that was made before.
    """
    folder = tmp_path / "attempt"
    folder.mkdir()
    os.mkfifo(tmp_path / "gate")
    heard, told = os.pipe()
    # Not in the folder itself: a shell that starts late would complain of having no directory.
    command = ["sh", "-c", f"read _ <{tmp_path}/gate; echo out; {ending}"]
    orders = write_orders(folder, command, wake_fd=told, cwd=str(tmp_path))
    with start_keeper_process(orders, pass_fds=(told,)) as process:
        os.close(told)
        record(folder, "keeper.json")
        with (folder / "output.log").open("rb") as output:
            shutil.rmtree(folder)
            (tmp_path / "gate").write_text("\n")
            assert process.wait(10) == 0
            assert output.read() == b"out\n"
    assert line in os.read(heard, 4096)
    os.close(heard)
    assert not folder.exists()


@pytest.mark.timeout(20)
def test_record_that_cannot_be_published_is_given_up(tmp_path: Path) -> None:
    """A disk that refuses a record holds the keeper back for as long as its patience, no longer."""
    refusing = tmp_path / "exit.json"
    (refusing / "in the way").mkdir(parents=True)
    kept = Record(str(refusing), str(tmp_path / "draft"))
    kept.fill({"code": 0}, patience_s=0.0)
    assert refusing.is_dir()
    kept.make_durable()
    kept.discard()
    kept.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


@pytest.mark.parametrize("name", ["3.10", "3.11", "3.12", "3.13"])
def test_keeper_runs_on_every_python(tmp_path: Path, name: str) -> None:
    """With nothing but the standard library of each Python that we support, wherever it is."""
    python = interpreter(name)
    process = subprocess.run(
        [python, *keeper_argv(write_orders(tmp_path, ["sh", "-c", "echo x; exit 4"]))[1:]],
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert record(tmp_path, "exit.json")["code"] == 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    with small_disk(tmp_path / "small", "1m") as folder:
        yield folder


@needs_tmpfs_mount
def test_full_disk_neither_stops_the_training_nor_loses_its_status(disk: Path) -> None:
    """On a full disk the training runs to its end, what was dropped is counted, and exit.json is
    right, because its room was taken before.
    """
    program = (
        "import sys\nfor n in range(3000): sys.stdout.write(f'{n:09d}' + 'x' * 9990 + '\\n')\n"
        "sys.exit(8)"
    )
    assert keep(disk, [PYTHON, "-c", program], linger_s=1.0, timeout_s=30) == 0
    ended = record(disk, "exit.json")
    assert ended["code"] == 8
    written = (disk / "output.log").stat().st_size
    assert ended["dropped_bytes"] == 30_000_000 - written > 20_000_000


@needs_tmpfs_mount
def test_output_goes_on_when_the_disk_has_room_again(disk: Path) -> None:
    """What was held in memory while the disk was full reaches the file in order, nothing lost."""
    os.mkfifo(disk / "gate")
    ballast = disk / "ballast"
    program = (
        "import sys\n"
        "for n in range(200): print(f'{n:09d}' + 'x' * 9990, flush=True)\n"
        "open('gate').read()\nprint('end')"
    )
    orders = write_orders(disk, [PYTHON, "-c", program], cap_bytes=64 * 1024 * 1024)
    ballast.write_bytes(bytes(700 * 1024))
    with start_keeper_process(orders) as process:
        log = disk / "output.log"
        wait_until(lambda: os.statvfs(disk).f_bavail == 0, 10, "the disk is full")
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True, timeout=10)
        wait_until(lambda: log.stat().st_size == 2_000_000, 10, "all output is in the file")
        (disk / "gate").write_text("")
        assert process.wait(15) == 0
    lines = log.read_text().splitlines()
    assert [int(line[:9]) for line in lines[:-1]] == list(range(200))
    assert lines[-1] == "end"
    assert record(disk, "exit.json")["dropped_bytes"] == 0


def test_pump_alone_leaves_all_of_what_a_dead_keeper_left(tmp_path: Path) -> None:
    """Orders without a command drain the given streams to their end and touch no record, also
    where a reader is behind: it does not wait at the gate until its own end.
    """
    (read_end, write_end), (gate, opens) = os.pipe(), os.pipe()
    orders = write_orders(
        tmp_path, None, fds={"output": read_end}, cap_bytes=200_000, gates={"output": gate}
    )
    (tmp_path / "output.log").write_text("before\n")
    with start_keeper_process(orders, pass_fds=(read_end, gate)) as process:
        os.close(read_end)
        os.close(gate)
        with open(write_end, "wb") as stream:
            stream.write(b"x" * 3_000_000)
        assert process.wait(30) == 0
    os.close(opens)
    assert (tmp_path / "output.log").read_bytes() == b"before\n" + b"x" * 3_000_000
    assert not (tmp_path / "exit.json").exists()


def test_keeper_ends_without_who_stays(tmp_path: Path) -> None:
    """A daemon that stays has the stream of a rank open: nobody waits for the end of that."""
    rank = os.pipe()
    own = {"output": {"path": "ranks/0/output.log", "fds": list(rank)}}
    program = (
        "import json, os, subprocess as s\n"
        "place = json.loads(os.environ['RANKS'])['ranks'][0]['output']\n"
        "with open(place, 'w') as own:\n"
        "    daemon = s.Popen(['sleep', '60'], stdout=own, stderr=own, start_new_session=True)\n"
        "    print(daemon.pid, file=own)\n"
    )
    ranks = {"variable": "RANKS", "cap_bytes": 1000, "streams": [own]}
    orders = write_orders(tmp_path, [PYTHON, "-c", program], ranks=ranks, linger_s=60.0)
    with start_keeper_process(orders, pass_fds=rank) as process:
        for end in rank:
            os.close(end)
        record(tmp_path, "exit.json")
        process.terminate()
        assert process.wait(30) == 0
    said = (tmp_path / "ranks/0/output.log").read_text()
    os.kill(int(said), signal.SIGKILL)
    assert said == (tmp_path / "output.log").read_text()


def test_keeper_has_a_name_is_small_and_idle(tmp_path: Path) -> None:
    """`ps` and `top` show wtrain-keeper, not python; beside a silent training the keeper uses no
    CPU time at all, and less than 13 MiB.
    """
    with at_gate(tmp_path, "read _ <gate") as process:
        record(tmp_path, "keeper.json")
        assert Path(f"/proc/{process.pid}/comm").read_text() == "wtrain-keeper\n"
        before = _switches(process.pid)
        since = time.monotonic()
        wait_until(lambda: time.monotonic() - since > 1.5, 5, "a while has passed")
        assert _switches(process.pid) - before <= 3
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident_kib = int(status.partition("VmRSS:")[2].split()[0])
        assert resident_kib < 13 * 1024


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _switches(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text()
        for name in ("nonvoluntary_ctxt_switches:", "\nvoluntary_ctxt_switches:"):
            total += int(text.partition(name)[2].split()[0])
    assert is_alive(pid)
    return total
